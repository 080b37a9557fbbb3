"""Groups in the console: the survey's history, resets, and what a change answers."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from hightide.client.admin.group_survey import Surveyed, _rounds
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.model.cluster import Extent, OffsetAt, PartitionDescription
from hightide.client.model.events import BrokerEvent, FoundEvents
from hightide.client.model.groups import (
    Commit,
    GroupDescription,
    GroupLag,
    GroupListing,
    GroupMember,
    PartitionLag,
    Rebalance,
)
from hightide.console import group_watch
from hightide.console.context import Console, Options
from hightide.console.group_reset import Refused, planned, target
from hightide.console.group_watch import GroupHistory, GroupWatch, Point, total_records, worst_ms
from hightide.console.replies import on_failure
from hightide.console.routes import groups
from hightide.core.events import Severity
from hightide.wire.errors import ErrorCode, KafkaError

NOW_MS = 1_700_000_000_000
MEMBER = GroupMember("m-1", None, "billing", "/10.0.0.7", (("orders", 0),))


def commit(offset: int) -> Commit:
    return Commit(offset, 1, "", NOW_MS - 500)


def group(*members: GroupMember, name: str = "billing") -> GroupDescription:
    return GroupDescription(
        group=name,
        type="Classic",
        state="Stable" if members else "Empty",
        coordinator=1,
        protocol_type="consumer",
        assignor="range",
        generation=4,
        members=[*members],
        since_ms=NOW_MS - 9000,
        last_rebalance=Rebalance("a member joined", NOW_MS - 9500, 3),
    )


def behind(
    partition: int, committed: int | None, end: int, oldest_ms: int | None = None
) -> PartitionLag:
    return PartitionLag(
        "orders",
        partition,
        None if committed is None else commit(committed),
        Extent(0, end),
        oldest_ms,
        MEMBER if partition == 0 else None,
    )


LAG = GroupLag(group(MEMBER), [behind(0, 10, 30, NOW_MS - 4000), behind(1, 7, 7)])


# -- lag and its history -------------------------------------------------------------------------


def test_the_lag_is_that_of_the_partition_furthest_behind() -> None:
    assert (worst_ms(LAG, NOW_MS), total_records(LAG)) == (4000, 20)


def test_a_group_that_has_everything_is_at_zero() -> None:
    done = GroupLag(group(), [behind(1, 7, 7)])
    assert (worst_ms(done, NOW_MS), total_records(done)) == (0, 0)


def test_what_is_not_known_is_not_zero() -> None:
    assert worst_ms(GroupLag(group(), [behind(0, 10, 30)]), NOW_MS) is None
    assert total_records(GroupLag(group(), [behind(0, None, 30)])) is None


def test_a_history_is_bounded_in_time_and_in_points() -> None:
    history = GroupHistory()
    for second in range(0, 3600):
        history.add(Point(second * 1000, second, second, 1))
    times = [point.time_ms for point in history.points]
    assert times[0] >= times[-1] - group_watch.KEPT_MS
    assert len(times) <= group_watch.MOST_POINTS
    assert all(after - before >= 4500 for before, after in pairwise(times))


def test_the_trend_is_that_of_a_minute() -> None:
    history = GroupHistory()
    for second, records in ((0, 0), (40, 100), (70, 250)):
        history.add(Point(second * 1000, 0, records, 1))
    assert history.trend(Point(100_000, 0, 400, 1)) == 300
    assert GroupHistory().trend(Point(0, 0, 1, 1)) is None


def test_groups_at_different_offsets_take_a_round_each() -> None:
    places = [("orders", 0, 5), ("orders", 0, 9), ("bills", 0, 1)]
    assert _rounds(places) == [{("orders", 0): 5, ("bills", 0): 1}, {("orders", 0): 9}]


# -- resets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "after", "words"),
    [
        ({"to": "earliest"}, 5, ["--to-earliest"]),
        ({"to": "latest"}, 30, ["--to-latest"]),
        ({"to": "offset", "value": 12}, 12, ["--to-offset", "12"]),
        ({"to": "offset", "value": "99"}, 30, ["--to-offset", "99"]),
        ({"to": "shift", "value": -3}, 7, ["--shift", "-3"]),
        ({"to": "shift", "value": "-90"}, 5, ["--shift", "-90"]),
        ({"to": "duration", "value": "15m"}, 22, ["--to-time", "15m"]),
        (
            {"to": "time", "value": "2026-11-15T10:00:00Z"},
            22,
            ["--to-time", "2026-11-15T10:00:00Z"],
        ),
        ({"to": "time", "value": "2026-11-15 10:00"}, 22, ["--to-time", "2026-11-15T10:00:00Z"]),
        ({"to": "time", "value": "1731664800000"}, 22, ["--to-time", "1731664800000"]),
    ],
)
def test_a_reset_stays_inside_of_the_log(
    wanted: dict[str, Any], after: int, words: list[str]
) -> None:
    found = target(wanted, NOW_MS)
    assert list(found.words) == words
    row = planned(("orders", 0), {("orders", 0): commit(10)}, Extent(5, 30), found, 22)
    assert (row.before, row.after, row.moved) == (10, after, after - 10)


def test_a_duration_is_that_long_ago() -> None:
    assert target({"to": "duration", "value": "15m"}, NOW_MS).value == NOW_MS - 900_000


def test_after_the_last_record_is_the_end() -> None:
    row = planned(("orders", 0), {}, Extent(5, 30), target({"to": "duration", "value": "1s"}), None)
    assert (row.before, row.after, row.moved) == (None, 30, None)


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"to": "sideways"},
        {"to": "offset"},
        {"to": "offset", "value": -1},
        {"to": "offset", "value": 2**63},
        {"to": "offset", "value": [1]},
        {"to": "shift", "value": "many"},
        {"to": "duration", "value": "soon"},
        {"to": "time", "value": "yesterday"},
        {"to": "time", "value": 1_700_000_000},
        {"to": "time", "value": None},
    ],
)
def test_a_target_that_means_nothing_is_refused(wanted: dict[str, Any]) -> None:
    with pytest.raises(Refused, match=r"\.$"):
        target(wanted, NOW_MS)


def test_without_a_commit_nothing_is_shifted() -> None:
    with pytest.raises(Refused, match="no commit"):
        planned(("orders", 0), {}, Extent(5, 30), target({"to": "shift", "value": 1}))


# -- the routes ----------------------------------------------------------------------------------


class FakeGroups:
    """Answers as `admin.groups` of a cluster with one group does."""

    def __init__(self, *members: GroupMember) -> None:
        self.description = group(*members)
        self.commits = {("orders", 0): commit(10), ("orders", 1): commit(7)}
        self.refusals: dict[tuple[str, int], KafkaError | None] = {}
        self.done: list[Any] = []
        self.stable_offset: int | Exception = 30

    async def lag(self, name: str) -> GroupLag:
        await self.describe(name)
        return LAG

    async def describe(self, name: str) -> GroupDescription:
        if name != self.description.group:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no group {name!r}.")
        return self.description

    async def committed(self, name: str, **_: Any) -> dict[tuple[str, int], Commit]:
        return self.commits if name == self.description.group else {}

    async def commit(self, name: str, offsets: Any) -> dict[tuple[str, int], KafkaError | None]:
        self.done.append(("commit", name, offsets))
        return {key: self.refusals.get(key) for key in offsets}

    async def delete_offsets(self, name: str, keys: Any) -> dict[tuple[str, int], ErrorCode | None]:
        self.done.append(("delete offsets", name, keys))
        return dict.fromkeys(keys)

    async def stable(self, wanted: Any, _ask: Any) -> dict[tuple[str, int], OffsetAt]:
        if isinstance(self.stable_offset, Exception):
            raise self.stable_offset
        return {key: OffsetAt(self.stable_offset, -1, 0) for key in wanted}

    async def delete(self, name: str) -> None:
        self.done.append(("delete", name))


class FakeRecords:
    async def extents(self, partitions: Any) -> dict[tuple[str, int], Extent]:
        return {key: Extent(5, 30) for key in partitions}


class FakeTopics:
    async def describe(self, names: Any) -> list[Any]:
        partitions = [PartitionDescription(n, 1, 1, [1], [1], []) for n in range(3)]
        return [SimpleNamespace(name=name, partitions=partitions) for name in names]


class FakeReader:
    async def newest(self, _limit: int = 0) -> FoundEvents:
        return FoundEvents(answered={1})

    newer = newest


class FakeSurvey:
    def __init__(self, surveyed: Surveyed | Exception) -> None:
        self.surveyed = surveyed

    async def look(self) -> Surveyed:
        if isinstance(self.surveyed, Exception):
            raise self.surveyed
        return self.surveyed


LISTED = [
    GroupListing("billing", "Classic", "Stable", "consumer", 1),
    GroupListing("lost", "Classic", "Empty", "", 2),
]
SURVEYED = Surveyed(LISTED, {"billing": LAG}, {2: "It did not answer."})


def client(known: FakeGroups, surveyed: Surveyed | Exception = SURVEYED) -> TestClient:
    admin: Any = SimpleNamespace(
        groups=known,
        records=FakeRecords(),
        topics=FakeTopics(),
        events=SimpleNamespace(reader=lambda _wanted: FakeReader()),
        router=SimpleNamespace(timeout_ms=1000, ask_leaders=known.stable),
    )
    console = Console(admin, None, Options("localhost:9092"))  # type: ignore[arg-type]
    console.group_watch = GroupWatch(admin)
    console.group_watch._survey = FakeSurvey(surveyed)  # type: ignore[assignment]
    app = Starlette(
        routes=groups.routes(console),
        exception_handlers={KafkaError: on_failure, ValueError: on_failure},
    )
    return TestClient(app)


def test_groups_are_listed_with_what_is_known() -> None:
    reply = client(FakeGroups()).get("/api/v1/groups")
    assert reply.status_code == 200
    found, lost = reply.json()["groups"]
    assert (found["group"], found["members"], found["lag_records"]) == ("billing", 1, 20)
    assert found["lag_ms"] > 4000
    assert (found["topics"], found["partitions"]) == (["orders"], 2)
    assert (lost["group"], lost["lag_ms"], lost["members"]) == ("lost", None, None)
    assert "Broker 2 does not answer" in reply.json()["notes"][0]


def test_a_cluster_that_is_away_is_a_sentence() -> None:
    reply = client(FakeGroups(), ConnectionFailed("No broker answers.")).get("/api/v1/groups")
    assert (reply.status_code, reply.json()["error"]) == (503, "No broker answers.")


def test_a_group_is_described_with_its_partitions_and_history() -> None:
    with client(FakeGroups(MEMBER)) as browser:
        browser.get("/api/v1/groups")
        found = browser.get("/api/v1/groups/billing").json()
    assert found["last_rebalance"]["reason"] == "a member joined"
    assert found["members"][0]["assignment"] == {"orders": [0]}
    assert [row["lag_records"] for row in found["partitions"]] == [20, 0]
    assert found["partitions"][0]["owner"] == "m-1"
    assert found["history"]["lag_records"] == [20]
    assert client(FakeGroups()).get("/api/v1/groups/none").status_code == 404


def test_an_open_transaction_at_the_position_is_the_reason() -> None:
    known = FakeGroups()
    for stable_offset, held in ((30, [False, False]), (10, [True, False])):
        known.stable_offset = stable_offset
        found = client(known).get("/api/v1/groups/billing").json()
        assert [row["held"] for row in found["partitions"]] == held
    known.stable_offset = ConnectionFailed("No leader answers.")
    found = client(known).get("/api/v1/groups/billing").json()
    assert "No leader answers." in found["notes"][0]


def test_a_dry_run_changes_nothing_and_names_the_command() -> None:
    known = FakeGroups()
    body = {"to": "offset", "value": 12, "partitions": ["orders/1", "orders/0"]}
    found = client(known).post("/api/v1/groups/billing/reset?dry_run=1", json=body).json()
    command = "hightide group reset billing --topic orders/0,1 --to-offset 12"
    assert found["command"] == command
    assert [(row["before"], row["after"]) for row in found["rows"]] == [(10, 12), (7, 12)]
    assert not known.done


def test_a_reset_commits_what_the_dry_run_has_shown() -> None:
    known = FakeGroups()
    found = client(known).post("/api/v1/groups/billing/reset", json={"to": "earliest"}).json()
    assert found["command"] == "hightide group reset billing --to-earliest"
    assert known.done == [("commit", "billing", {("orders", 0): 5, ("orders", 1): 5})]
    assert {row["result"] for row in found["rows"]} == {"reset"}


def test_a_group_with_members_is_not_reset_nor_deleted() -> None:
    known = FakeGroups(MEMBER)
    for reply in (
        client(known).post("/api/v1/groups/billing/reset?dry_run=1", json={"to": "latest"}),
        client(known).request("DELETE", "/api/v1/groups/billing", json={"name": "billing"}),
    ):
        assert reply.status_code == 409
        assert "1 member: billing at 10.0.0.7" in reply.json()["error"]
        assert reply.json()["command"].startswith("hightide group ")
    assert not known.done


def test_a_member_that_joins_meanwhile_is_the_reason() -> None:
    known = FakeGroups()
    known.refusals = {("orders", 0): KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)}
    reply = client(known).post("/api/v1/groups/billing/reset", json={"to": "latest"})
    assert reply.status_code == 409
    assert "just joined" in reply.json()["error"]


def test_offsets_are_deleted_by_name() -> None:
    known = FakeGroups()
    url, body = "/api/v1/groups/billing/delete-offsets", {"partitions": ["orders/1"]}
    dry = client(known).post(f"{url}?dry_run=1", json=body).json()
    assert (dry["command"], known.done) == ("hightide group offset-delete billing orders/1", [])
    done = client(known).post(url, json=body).json()
    assert done["rows"] == [{"topic": "orders", "partition": 1, "before": 7, "result": "deleted"}]
    assert known.done == [("delete offsets", "billing", [("orders", 1)])]


@pytest.mark.parametrize("names", ["orders", [1], [""], ["orders/x"], ["orders/99999999999"]])
def test_names_that_mean_nothing_are_refused(names: Any) -> None:
    known = FakeGroups()
    body = {"to": "latest", "partitions": names}
    reply = client(known).post("/api/v1/groups/billing/reset", json=body)
    assert (reply.status_code, known.done) == (400, [])


def test_a_group_is_deleted_when_its_name_is_typed() -> None:
    known = FakeGroups()
    url = "/api/v1/groups/billing"
    dry = client(known).delete(f"{url}?dry_run=1").json()
    assert (dry["command"], dry["offsets"]) == ("hightide group delete billing", 2)
    assert client(known).request("DELETE", url, json={"name": "bill"}).status_code == 400
    assert not known.done
    assert client(known).request("DELETE", url, json={"name": "billing"}).status_code == 200
    assert known.done == [("delete", "billing")]


def test_a_name_with_slashes_and_spaces_is_one_name() -> None:
    known = FakeGroups()
    known.description = group(name="a/b c")
    reply = client(known).post("/api/v1/groups/a%2Fb%20c/reset?dry_run=1", json={"to": "latest"})
    assert reply.json()["command"] == "hightide group reset 'a/b c' --to-latest"


# -- the task ------------------------------------------------------------------------------------


def test_rebalances_are_kept_by_group_and_bounded() -> None:
    watch = GroupWatch(SimpleNamespace(events=SimpleNamespace(reader=lambda _: FakeReader())))  # type: ignore[arg-type]
    for number in range(200):
        data = {"group": "billing", "generation": number, "members": 1, "why": "left"}
        watch.take_events(
            [
                BrokerEvent(
                    number, 0, 1, "s", number, "group_rebalancing", Severity.INFO, "text", data
                )
            ]
        )
    found = watch.rebalances("billing")
    assert len(found) == group_watch.MOST_REBALANCES
    assert (found[0]["generation"], found[0]["why"]) == (199, "left")
    assert watch.rebalances("other") == []


def test_a_group_that_is_gone_is_forgotten() -> None:
    admin: Any = SimpleNamespace(events=SimpleNamespace(reader=lambda _: FakeReader()))
    watch = GroupWatch(admin)
    survey = FakeSurvey(Surveyed(LISTED[:1], {"billing": LAG}, {}))
    watch._survey = survey  # type: ignore[assignment]
    asyncio.run(watch.look())
    assert list(watch.histories) == ["billing"]
    survey.surveyed = Surveyed()
    asyncio.run(watch.look())
    assert not watch.histories
