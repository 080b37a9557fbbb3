"""Replication throttling, so that moving partitions leaves room for clients (KIP-73).

A topic lists its throttled replicas as `partition:broker`, or `*`.  This broker keeps to one rate
for what it copies of them as a follower, and to another for what it serves of them as a leader.
Replicas in the ISR are counted but never held back, because producers wait for them.
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
    """The rates at which this broker copies and serves throttled replicas."""

    def __init__(self, broker_id: int, settings: Callable[[], Settings]) -> None:
        self._broker_id = broker_id
        self._settings = settings
        windows = settings().replication_quota_window_num
        window_ms = settings().replication_quota_window_size_seconds * 1000
        self._copied = Rate(windows, window_ms)
        self._served = Rate(windows, window_ms)

    # -- as a follower ---------------------------------------------------------------------

    def may_copy(self, replica: Replica) -> bool:
        throttled = replica.log.config.follower_replication_throttled_replicas
        if not throttled or not self._is_listed(throttled, replica):
            return True
        if replica.state is not None and self._broker_id in replica.state.isr:
            return True
        limit = self._settings().follower_replication_throttled_rate
        return not self._copied.exceeds(limit, _now_ms())

    def copied(self, replica: Replica, nbytes: int) -> None:
        throttled = replica.log.config.follower_replication_throttled_replicas
        if throttled and self._is_listed(throttled, replica):
            self._copied.record(nbytes, _now_ms())

    def copy_delay_ms(self) -> int:
        """How long to wait after `may_copy` said no: not too long if the limit is raised."""
        limit = self._settings().follower_replication_throttled_rate
        return min(self._copied.delay_ms(limit, _now_ms()), _MOST_DELAY_MS)

    # -- as a leader -----------------------------------------------------------------------

    def may_serve(self, replica: Replica, follower_id: int) -> bool:
        throttled = replica.log.config.leader_replication_throttled_replicas
        if not throttled or not self._is_listed(throttled, replica):
            return True
        if replica.state is not None and follower_id in replica.state.isr:
            return True
        limit = self._settings().leader_replication_throttled_rate
        return not self._served.exceeds(limit, _now_ms())

    def served(self, replica: Replica, _follower_id: int, nbytes: int) -> None:
        throttled = replica.log.config.leader_replication_throttled_replicas
        if throttled and self._is_listed(throttled, replica):
            self._served.record(nbytes, _now_ms())

    def _is_listed(self, throttled: tuple[str, ...], replica: Replica) -> bool:
        """Both lists name the broker that holds the replica, so look for this broker's id."""
        return throttled[0] == _ALL or f"{replica.partition}:{self._broker_id}" in throttled


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
