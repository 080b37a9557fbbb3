"""A replica: one partition's log on this broker, what of it is committed, and who waits for it.

Waits hang on the thing waited for.  A fetch that found too little is a waiter on each replica that
it reads; an append counts bytes into its replica, and after the answers of the turn have left, the
waiters that now have enough are served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hightide.core.topics import INTERNAL_TOPICS
from hightide.log.log import Log

if TYPE_CHECKING:
    from hightide.broker.replicas import Replicas


class Waiter(Protocol):
    """Somebody who needs more bytes."""

    need_bytes: int

    def serve(self, is_last_try: bool = False) -> None:
        """Called when there are enough, or when there will be no more."""


class Replica:
    """The leader of one partition; it is the only replica, so what is appended is committed."""

    __slots__ = (
        "_replicas",
        "complained_ms",
        "fresh_bytes",
        "high_watermark",
        "is_internal",
        "leader_epoch",
        "log",
        "partition",
        "topic",
        "waiters",
    )

    def __init__(self, log: Log, leader_epoch: int, replicas: Replicas) -> None:
        self.topic = log.topic
        self.partition = log.partition
        self.log = log
        self.leader_epoch = leader_epoch
        self.high_watermark = log.end_offset
        self.is_internal = log.topic in INTERNAL_TOPICS
        self.complained_ms = 0
        self.fresh_bytes = 0
        self.waiters: dict[Waiter, None] = {}
        self._replicas = replicas

    def append(
        self, buf: bytearray, view: memoryview, start: int, end: int, now_ms: int
    ) -> tuple[int, int, int]:
        """Append a producer's batch; (base offset, next offset, log append time or -1)."""
        log = self.log
        result = log.append(buf, view, start, end, self.leader_epoch, now_ms)
        if result[1] > self.high_watermark and log.end_offset < log.flush_at:
            self.high_watermark = result[1]
            if self.waiters:
                if not self.fresh_bytes:
                    self._replicas.grown.append(self)
                self.fresh_bytes += end - start
        return result

    @property
    def needs_flush(self) -> bool:
        """Whether what was appended last may be answered for only after a flush."""
        return self.log.end_offset >= self.log.flush_at

    def flushed(self, offset: int) -> None:
        """Everything before `offset` is on disk, so it may be shown."""
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.wake_all()

    def wake_all(self) -> None:
        """Let everybody who waits look again."""
        if self.waiters:
            self.fresh_bytes = 1 << 31
            self._replicas.grown.append(self)
