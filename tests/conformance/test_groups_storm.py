"""Many rebalances: one owner for each partition, nothing skipped, no commit goes back."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.conformance.members import ConfluentMember, KafkaPythonMember
from tests.conformance.raw_group import new_group
from tests.conformance.storm import Storm
from tests.support.eventually import eventually
from tests.support.seeds import first_seed

COOPERATIVE = (ConfluentMember.client, KafkaPythonMember.client)
SEED = first_seed()
STEPS = 6

pytestmark = pytest.mark.timeout(120)


@pytest.mark.extended
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_group_in_a_storm_reads_everything_and_goes_back_nowhere(group_broker, assignor):
    print(f"HIGHTIDE_SEED={SEED}")
    options: dict[str, Any] = {"clients": COOPERATIVE} if assignor == "cooperative-sticky" else {}
    group = new_group()
    with Storm(group_broker, group, random.Random(SEED), assignor=assignor, **options) as storm:
        for _ in range(STEPS):
            storm.step()
            wait_for_some_reading(storm)
        storm.end()
        assert storm.check_log() >= STEPS / 2


def wait_for_some_reading(storm):
    """Wait for progress, so that every step hits a group that reads, or is about to."""
    before = sum(storm.history.committed().values())
    eventually(lambda: sum(storm.history.committed().values()) > before)
