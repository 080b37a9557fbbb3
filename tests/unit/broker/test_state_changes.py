"""Roles that cannot be taken at once, because a disk fails, are taken later as they are then."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any
from unittest.mock import Mock

import pytest

from hightide.broker.replication.state_changes import StateChanges
from hightide.core.metadata.image import Delete, Follow, Lead, NoLeader, StateChanged, Stop
from hightide.core.partition.state import PartitionState
from hightide.log.disk import DiskFailed

WHERE = ("t", uuid.UUID(int=7), 0)
FIRST = PartitionState((1, 2, 3), 1, 0, (1, 2, 3))
SHRUNK = PartitionState((1, 2, 3), 1, 0, (1, 2), partition_epoch=1)
LATER = PartitionState((1, 2, 3), 2, 1, (2, 3), partition_epoch=2)


class World:
    """State changes of a broker whose disk fails at first."""

    def __init__(self) -> None:
        self.replica_manager = Mock()
        self.replica_manager.get_by_id.return_value = None
        log_manager = Mock(changes=0, logs={})
        self.changes = StateChanges(
            *(Mock(), Mock(), log_manager, self.replica_manager, Mock(), Mock()),
            *(Mock(), Mock(), Mock()),
        )
        self.disk_works = False
        self.begun: list[Any] = []
        self.changes._begin = self.begin  # type: ignore[method-assign]

    def begin(self, change: Any) -> None:
        if not self.disk_works:
            raise DiskFailed("t-0", "opening", OSError("input/output error"))
        self.begun.append(change)

    def apply(self, *changes: Any) -> None:
        asyncio.run(self.changes._apply(changes))

    def retry(self) -> list[Any]:
        self.disk_works, self.begun = True, []
        asyncio.run(self.changes.retry())
        return self.begun


@pytest.mark.parametrize("role", [Lead(*WHERE, FIRST), Follow(*WHERE, FIRST, None)])
def test_a_role_is_taken_when_the_disk_works_again(role: Any) -> None:
    world = World()
    world.apply(role)
    assert world.retry() == [role]
    assert world.retry() == []


def test_a_role_that_is_taken_late_has_the_newest_isr() -> None:
    world = World()
    world.apply(Lead(*WHERE, FIRST))
    world.apply(StateChanged(*WHERE, SHRUNK))
    assert world.retry() == [Lead(*WHERE, SHRUNK)]


@pytest.mark.parametrize("newer", [Follow(*WHERE, LATER, None), NoLeader(*WHERE, LATER)])
def test_a_role_that_another_one_replaced_is_not_taken(newer: Any) -> None:
    world = World()
    world.apply(Lead(*WHERE, FIRST))
    world.disk_works = True
    world.apply(newer)
    assert world.begun == [newer]
    assert world.retry() == []


@pytest.mark.parametrize("end", [Stop(*WHERE, LATER), Delete(*WHERE, inferred=False)])
def test_a_role_in_a_partition_that_left_is_not_taken(end: Any) -> None:
    world = World()
    world.apply(Lead(*WHERE, FIRST))
    world.apply(end)
    assert world.retry() == []
