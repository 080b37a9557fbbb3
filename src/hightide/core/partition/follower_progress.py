"""How far a follower is, as its leader learns from the follower's fetches.

A follower that fetches from an offset has everything before it, so a fetch gives the follower's log
end offset.  It also says when the follower was last caught up:

    fetches from the leader's end                              it is caught up now
    fetches from the end the leader had at its last fetch      it was caught up at its last fetch
    fetches from less                                          nothing new

The second line is for partitions that are written to all the time: there a follower that takes
everything at once never reaches the end, yet it is never more than one fetch behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

UNKNOWN_OFFSET = -1
UNKNOWN_BROKER_EPOCH = -1
NEVER = -(1 << 62)

_BEYOND_ANY_LOG = 1 << 62


class Standing(Enum):
    """Whether a replica is in sync, or why not."""

    LEADER = "leads"
    IN_SYNC = "in sync"
    JOINING = "has caught up, but the controller has not confirmed it yet"
    NOT_ALIVE = "its broker is not alive"
    SHUTTING_DOWN = "its broker is shutting down"
    RESTARTED = "has not fetched since its broker restarted"
    NEVER_FETCHED = "has not fetched in this leader epoch"
    BEHIND = "is behind"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a replica is, for tools and people."""

    replica: int
    standing: Standing
    end_offset: int | None
    lag_records: int | None
    """Offsets between its end and the leader's."""
    lag_ms: int | None
    """Time since it was caught up; None if it never was in this leader epoch."""

    @property
    def lag(self) -> str:
        """How far it is behind, for a sentence that begins with the replica."""
        if self.standing in (Standing.NOT_ALIVE, Standing.SHUTTING_DOWN):
            return str(self.standing.value)
        if self.lag_records is None:
            return "has not fetched in this leader epoch"
        records = "1 record" if self.lag_records == 1 else f"{self.lag_records} records"
        ms = "" if self.lag_ms is None else f" and was last caught up {self.lag_ms} ms ago"
        return f"is {records} behind{ms}"


class RemoteReplica:
    """One follower, as its leader knows it in one leader epoch."""

    __slots__ = (
        "_fetched_ms",
        "_leader_end_offset",
        "broker_epoch",
        "caught_up_ms",
        "compared_from_offset",
        "end_offset",
        "id",
        "is_counted",
        "is_restarted",
        "log_start_offset",
    )

    def __init__(self, replica: int, broker_epoch: int) -> None:
        self.id = replica
        # The newest known. What an older broker epoch fetched says nothing of the present log.
        self.broker_epoch = broker_epoch
        self.is_restarted = False
        # Whether it is in the maximal ISR: the leader keeps this here for the hot path.
        self.is_counted = False
        self.caught_up_ms = NEVER
        self._forget()

    def _forget(self) -> None:
        self.end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        # Where the leader's log started at the follower's first fetch: from there on the logs
        # agree; before that they have not been compared.
        self.compared_from_offset = UNKNOWN_OFFSET
        self._fetched_ms = NEVER
        self._leader_end_offset = _BEYOND_ANY_LOG

    def restarted(self, broker_epoch: int) -> None:
        """The broker restarted, so its log is unknown.  A member keeps the rest of its lag time:
        `caught_up_ms` stays."""
        assert broker_epoch > self.broker_epoch
        self.is_restarted = self.broker_epoch != UNKNOWN_BROKER_EPOCH
        self.broker_epoch = broker_epoch
        self._forget()

    def fetched(
        self, offset: int, log_start_offset: int, leader_end_offset: int, now_ms: int
    ) -> None:
        """The follower fetched from `offset` when the leader's log ended at `leader_end_offset`."""
        if offset == leader_end_offset:
            caught_up_ms = now_ms
        elif offset >= self._leader_end_offset:
            caught_up_ms = self._fetched_ms
        else:
            caught_up_ms = NEVER
        if caught_up_ms > self.caught_up_ms:  # noqa: PLR1730, max() takes three times as long
            self.caught_up_ms = caught_up_ms
        self.end_offset = offset
        self.log_start_offset = log_start_offset
        self._leader_end_offset = leader_end_offset
        self._fetched_ms = now_ms

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_ms: int) -> bool:
        """Return whether it has everything, or had everything within the last `lag_ms`."""
        return self.end_offset == leader_end_offset or now_ms - self.caught_up_ms <= lag_ms

    def progress(self, standing: Standing, leader_end_offset: int, now_ms: int) -> Progress:
        is_known = self.end_offset != UNKNOWN_OFFSET
        is_at_end = self.end_offset == leader_end_offset
        lag_ms = 0 if is_at_end else max(0, now_ms - self.caught_up_ms)
        return Progress(
            self.id,
            standing,
            self.end_offset if is_known else None,
            leader_end_offset - self.end_offset if is_known else None,
            lag_ms if is_at_end or self.caught_up_ms != NEVER else None,
        )
