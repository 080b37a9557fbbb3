"""Replication that is held back so that moving partitions leaves room for clients (KIP-73).

A topic lists replicas as `partition:broker`, or `*`: as followers copy them, and as leaders give
them away, this broker keeps to its two rates.  Replicas in sync are counted but never held back:
producers wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hightide.broker.replication.replica import Replica
from hightide.core.rate import Rate
from hightide.settings import Broker as Settings

_ALL = "*"
_MOST_DELAY_MS = 1000


class ReplicationThrottle:
    """What this broker copies and serves of the replicas that are to be held back."""

    def __init__(self, broker_id: int, settings: Callable[[], Settings]) -> None:
        self._broker_id = broker_id
        self._settings = settings
        given = settings()
        windows = given.replication_quota_window_num
        window_ms = given.replication_quota_window_size_seconds * 1000
        self._copied = Rate(windows, window_ms)
        self._served = Rate(windows, window_ms)

    # -- as a follower ---------------------------------------------------------------------

    def may_copy(self, replica: Replica) -> bool:
        held_back = replica.log.config.follower_replication_throttled_replicas
        if not held_back or not self._is_listed(held_back, replica):
            return True
        if replica.state is not None and self._broker_id in replica.state.isr:
            return True
        limit = self._settings().follower_replication_throttled_rate
        return not self._copied.exceeds(limit, _now_ms())

    def copied(self, replica: Replica, nbytes: int) -> None:
        held_back = replica.log.config.follower_replication_throttled_replicas
        if held_back and self._is_listed(held_back, replica):
            self._copied.record(nbytes, _now_ms())

    def copy_delay_ms(self) -> int:
        """When to ask again after `may_copy` said no: soon enough if the limit is raised."""
        limit = self._settings().follower_replication_throttled_rate
        return min(self._copied.delay_ms(limit, _now_ms()), _MOST_DELAY_MS)

    # -- as a leader -----------------------------------------------------------------------

    def may_serve(self, replica: Replica, follower_id: int) -> bool:
        held_back = replica.log.config.leader_replication_throttled_replicas
        if not held_back or not self._is_listed(held_back, replica):
            return True
        if replica.state is not None and follower_id in replica.state.isr:
            return True
        limit = self._settings().leader_replication_throttled_rate
        return not self._served.exceeds(limit, _now_ms())

    def served(self, replica: Replica, _follower_id: int, nbytes: int) -> None:
        held_back = replica.log.config.leader_replication_throttled_replicas
        if held_back and self._is_listed(held_back, replica):
            self._served.record(nbytes, _now_ms())

    def _is_listed(self, held_back: tuple[str, ...], replica: Replica) -> bool:
        """Both lists name the broker that holds the replica, so each looks for itself."""
        return held_back[0] == _ALL or f"{replica.partition}:{self._broker_id}" in held_back


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
