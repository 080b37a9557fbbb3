"""Rebalances as events: when they begin and end, and why."""

from __future__ import annotations

from typing import Any

import pytest

from hightide.core.events import Event
from hightide.core.groups.group_events import GroupRebalanced, GroupRebalancing
from hightide.core.groups.turn import Outcome
from tests.unit.core.consumer_world import topics
from tests.unit.core.group_harness import DELAY_MS, REBALANCE_MS, SESSION_MS, Harness
from tests.unit.core.test_consumer_groups import ask


class Recording(Harness):
    """Keeps the events too."""

    events: list[Event]

    def __init__(self, **rules: Any) -> None:
        self.events = []
        super().__init__(**rules)

    def carry_out(self, outcome: Outcome) -> None:
        self.events += outcome.events
        super().carry_out(outcome)

    def rebalancing(self) -> GroupRebalancing:
        """The newest rebalance."""
        found = [event for event in self.events if isinstance(event, GroupRebalancing)]
        return found[-1]


@pytest.fixture
def harness() -> Recording:
    return Recording()


def test_a_rebalance_begins_and_ends(harness) -> None:
    joined = harness.stable(2)
    first = joined[0].members[0].member_id
    assert harness.events == [
        GroupRebalancing("g", 0, 1, f"{first} joined"),
        GroupRebalanced("g", 1, 2, 2 * DELAY_MS),
    ]
    assert str(harness.events[0]) == (
        f"group g rebalances, with 1 member, from generation 0: {first} joined"
    )
    assert str(harness.events[1]) == f"group g is in generation 1, with 2 members, after {6000} ms"


def test_a_member_that_leaves_is_named(harness) -> None:
    first, second = harness.stable(2)
    harness.leave((second.member_id, None))
    event = harness.rebalancing()
    assert (event.group, event.generation) == ("g", 1)
    assert second.member_id in event.why
    assert "left" in event.why
    assert first.member_id not in event.why


def test_a_member_whose_session_has_expired_is_named(harness) -> None:
    first, second = harness.stable(2)
    for _ in range(3):
        harness.wait(SESSION_MS // 2)
        harness.heartbeat(first.member_id, 1)
    event = harness.rebalancing()
    assert event.generation == 1
    assert second.member_id in event.why
    assert "session" in event.why or "heartbeat" in event.why


def test_a_reason_that_a_client_gives_is_kept_up_to_a_length(harness) -> None:
    first, _ = harness.stable(2)
    harness.join(first.member_id, protocols={"range": b"more"}, reason="deploy " + "x" * 5000)
    event = harness.rebalancing()
    assert "deploy x" in event.why
    assert len(event.why) <= 1024


def test_members_that_do_not_sync_are_named(harness) -> None:
    ids = [harness.new_id(), harness.new_id()]
    tickets = [harness.join(member_id) for member_id in ids]
    harness.wait(2 * DELAY_MS)
    joined = [harness.answers[ticket] for ticket in tickets]
    harness.sync(joined[1])
    for _ in range(2 * REBALANCE_MS // SESSION_MS):
        harness.wait(SESSION_MS // 2)
        for response in joined:
            harness.heartbeat(response.member_id, 1)
    assert harness.rebalancing().why == f"{joined[0].member_id} did not send SyncGroup in time"


def test_a_group_of_the_consumer_protocol_says_why_too(harness) -> None:
    harness.coordinator.topics_changed(topics(t=4, u=2))
    ask(harness, "a")
    ask(harness, "b")
    assert [(event.generation, event.members) for event in harness.events] == [(0, 1), (1, 2)]
    assert "b" in harness.rebalancing().why
    ask(harness, "b", -1)
    event = harness.rebalancing()
    assert (event.generation, event.members) == (2, 1)
    assert "b" in event.why
    count = len(harness.events)
    ask(harness, "a", 3)
    assert len(harness.events) == count, "a heartbeat without news is no rebalance"
