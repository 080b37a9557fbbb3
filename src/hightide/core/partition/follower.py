"""The follower's half of replication: where to fetch from, and what a fetch response means.

    position() ─▶ Fetch ─▶ answered(...) ─▶ APPEND     write the records, then appended()
         ▲                                  TRUNCATE   truncate the log there, then truncated()
         │                                  RESTART    empty the log, start there, then truncated()
         └──────────────────────────────────ASK_AGAIN, BACK_OFF
                                            WAIT       until a newer leader epoch is published

One `Follower` lasts for one leader epoch.  Two logs that agree on the epoch of a record agree on
all records before it, because each leader writes its epoch once, on top of a log that its followers
copied.  So each fetch names the epoch of the follower's last record.  A leader that does not have
that epoch up to the fetch offset answers with the largest epoch not above it that it has, and where
that epoch ends (`divergence`).  The follower truncates what cannot be in the leader's log and asks
again: after several failovers one step may not reach the point where the logs diverge (KIP-279).
The follower's high watermark has no say in where to truncate: it is as old as the last response,
and truncating there loses records (KIP-101).

**Truncating below the high watermark means that committed records are lost.**  The controller
elects leaders from replicas that have all committed records, so a clean leader never lacks what a
follower knows to be committed.  If the leader does lack it, the records are lost to the cluster:
the leader serves consumers without them and accepts writes at their offsets.  Waiting would not
bring the records back, and would leave the partition with a replica less until a person decides.
So the follower truncates, as in Kafka, and `Step.lost` says how many records below the high
watermark go; the broker reports them as an error.  `expects_loss` says whether an election explains
the loss: in `recovery_epoch` a replica led that was not known to have all committed records, and
this log has nothing written since.  A loss that no election explains is a defect of a disk or of
this program, and the simulator takes it for a violation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import ClassVar, NamedTuple, Protocol

from hightide.core.events import Event, Severity, partition_name
from hightide.core.partition.state import PartitionState
from hightide.wire.errors import ErrorCode

UNDEFINED_EPOCH = -1


class EpochHistory(Protocol):
    """Where each leader epoch starts in a log."""

    @property
    def latest(self) -> int:
        """The newest leader epoch, or -1."""
        ...

    def end_offset_for(self, epoch: int, log_end_offset: int, /) -> tuple[int, int]:
        """Return the largest known epoch not above `epoch` and its end; (-1, -1) if unknown."""
        ...


class FollowerLog(Protocol):
    """The part of a follower's log that this module uses."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def epochs(self) -> EpochHistory: ...


class FetchPosition(NamedTuple):
    """What a fetch requests, and what it says about the follower's log."""

    offset: int
    last_fetched_epoch: int
    leader_epoch: int
    log_start_offset: int


class Action(Enum):
    """What the broker must do after a fetch response."""

    APPEND = auto()
    TRUNCATE = auto()
    RESTART = auto()
    ASK_AGAIN = auto()
    BACK_OFF = auto()
    WAIT = auto()


class Step(NamedTuple):
    """What to do, and at which offset."""

    action: Action
    offset: int = -1
    lost: int = 0
    """How many committed records it removes: those below the high watermark."""


class FollowerChanges(NamedTuple):
    """What moved with an append."""

    high_watermark: int | None = None
    log_start_offset: int | None = None
    """The leader deleted the records before this offset; delete them here too."""


NO_CHANGES = FollowerChanges()

_APPEND = Step(Action.APPEND)
_ASK_AGAIN = Step(Action.ASK_AGAIN)
_BACK_OFF = Step(Action.BACK_OFF)
_WAIT = Step(Action.WAIT)


def divergence(
    epochs: EpochHistory, end_offset: int, fetch_offset: int, last_fetched_epoch: int
) -> tuple[int, int] | None:
    """Return None if a fetch agrees with the leader's log, else the diverging epoch and its end.

    This is the leader's half.  (-1, -1) means that the log's epoch history does not reach back so
    far: answer OFFSET_OUT_OF_RANGE.
    """
    if last_fetched_epoch == UNDEFINED_EPOCH:
        return None
    epoch, epoch_end = epochs.end_offset_for(last_fetched_epoch, end_offset)
    if epoch < last_fetched_epoch or epoch_end < fetch_offset:
        return epoch, epoch_end
    return None


@dataclass(frozen=True, slots=True)
class LogTruncated(Event):
    """A follower has dropped the end of its log, or all of it, because the leader's differs."""

    severity: ClassVar[Severity] = Severity.INFO
    topic: str
    partition: int
    before: int
    """The log end offset before."""
    last_epoch: int
    """The leader epoch of the last record before."""
    end_offset: int
    high_watermark: int
    """The high watermark that this replica knew, which may be lower than the leader's was."""
    leader: int
    leader_epoch: int
    is_restart: bool
    """Whether the log begins again, empty, at its end offset."""
    may_be_committed: bool
    """Whether a replica led that was not known to have all committed records."""

    def __str__(self) -> str:
        name = partition_name(self.topic, self.partition)
        leader = f"broker {self.leader}, the leader in epoch {self.leader_epoch}"
        if self.is_restart:
            return (
                f"{name}: begins again at offset {self.end_offset}, without what it had before"
                f" offset {self.before} of leader epoch {self.last_epoch}: nothing of that is in"
                f" the log of {leader}"
            )
        text = (
            f"{name}: truncated from offset {self.before} of leader epoch {self.last_epoch} to"
            f" {self.end_offset}, where it diverges from the log of {leader}"
        )
        if self.high_watermark > self.end_offset:
            return text
        if self.may_be_committed:
            return (
                f"{text}; some of what is dropped may have been committed, because a leader was"
                " elected that was not known to have all committed records"
            )
        return (
            f"{text}; what is dropped was never committed, because a leader from the ISR has all"
            " that was, and does not have it"
        )


@dataclass(frozen=True, slots=True)
class RecordsLost(Event):
    """The leader lacks records that this replica knows to be committed."""

    severity: ClassVar[Severity] = Severity.ERROR
    topic: str
    partition: int
    count: int
    first_offset: int
    last_offset: int
    leader: int
    leader_epoch: int
    why: str

    def __str__(self) -> str:
        return (
            f"{partition_name(self.topic, self.partition)}: {self.count} committed records are"
            f" lost, at offsets {self.first_offset} to {self.last_offset}: the leader, broker"
            f" {self.leader} in leader epoch {self.leader_epoch}, does not have them; this replica"
            f" truncates its log to the leader's. Reason: {self.why}"
        )


class Follower:
    """One replica that follows, in one leader epoch."""

    __slots__ = ("_due", "_log", "expects_loss", "high_watermark", "is_waiting", "state")

    def __init__(self, state: PartitionState, log: FollowerLog, high_watermark: int) -> None:
        self.state = state
        self._log = log
        self.expects_loss = state.is_recovering or state.recovery_epoch > log.epochs.latest
        """Whether an election explains it if the leader lacks committed records.  Also after the
        recovery has ended: a replica that was away has not truncated yet."""
        # Deleted records had been committed; records that are not here cannot be shown.
        self.high_watermark = min(max(high_watermark, log.start_offset), log.end_offset)
        self.is_waiting = False
        """Whether it fetches no more in this leader epoch, because there is a newer one."""
        # A truncation that was asked for and has not been reported as done.
        self._due: Step | None = None

    def position(self) -> FetchPosition | None:
        """Where to fetch from; None while waiting for a newer leader epoch."""
        if self.is_waiting:
            return None
        assert self._due is None, "the log must be truncated first"
        log = self._log
        return FetchPosition(
            log.end_offset, log.epochs.latest, self.state.leader_epoch, log.start_offset
        )

    def answered(
        self,
        asked: FetchPosition,
        error: ErrorCode = ErrorCode.NONE,
        *,
        diverging: tuple[int, int] | None = None,
        leader_log_start_offset: int = -1,
    ) -> Step:
        """The leader answered a fetch from `asked`.

        `diverging` is the epoch and end of a diverging response.  For OFFSET_OUT_OF_RANGE the
        caller asks for the leader's log start offset if the response does not name it.
        """
        if asked != self.position():
            return _WAIT if self.is_waiting else _ASK_AGAIN
        if error is ErrorCode.NONE:
            if diverging is None:
                return _APPEND
            return self._diverged(*diverging, leader_log_start_offset)
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:
            # An offset above the leader's end would have diverged.  So either the leader's log
            # starts after the end of this one, or the leader has moved on meanwhile.
            if leader_log_start_offset > self._log.end_offset:
                return self._truncate(Action.RESTART, leader_log_start_offset)
            return _BACK_OFF
        if error is ErrorCode.FENCED_LEADER_EPOCH:
            # There is a newer leader epoch; the controller is about to publish it.
            self.is_waiting = True
            return _WAIT
        # The leader may not have heard yet of this leader epoch, or that it leads: it will, and
        # no newer state is due here.  A failed disk may be repaired.
        return _BACK_OFF

    def appended(self, leader_high_watermark: int, leader_log_start_offset: int) -> FollowerChanges:
        """The records of the response, if any, are in the log.

        The high watermark never goes back here.  A new leader's high watermark is older than what
        the former leader sent, but committed records stay committed.
        """
        assert self._due is None
        assert not self.is_waiting
        high_watermark = min(leader_high_watermark, self._log.end_offset)
        moved = None
        if high_watermark > self.high_watermark:
            moved = self.high_watermark = high_watermark
        log_start_offset = min(leader_log_start_offset, self.high_watermark)
        if log_start_offset > self._log.start_offset:
            return FollowerChanges(moved, log_start_offset)
        return NO_CHANGES if moved is None else FollowerChanges(moved)

    def not_truncated(self) -> None:
        """The disk refused the truncation that the last step asked for: ask the leader again."""
        self._due = None

    def truncated(self) -> None:
        """The log was truncated or restarted, as the last step asked."""
        due, log = self._due, self._log
        assert due is not None
        assert log.end_offset <= due.offset, "not enough was truncated"
        self._due = None
        self.high_watermark = min(self.high_watermark, log.end_offset)
        if due.action is Action.RESTART:
            assert log.start_offset == log.end_offset == due.offset
            self.high_watermark = due.offset

    def truncation_failed(self) -> None:
        """The disk failed, or the log is damaged: the leader's next response asks again."""
        self._due = None
        self.high_watermark = min(self.high_watermark, self._log.end_offset)

    def published(self, state: PartitionState) -> None:
        """The controller published a newer decision in this leader epoch.

        It changes nothing for a follower: when the leader counts as recovered, followers that have
        not fetched from it must still truncate.
        """
        assert state.leader_epoch == self.state.leader_epoch, "a new epoch needs a new Follower"
        if state.partition_epoch > self.state.partition_epoch:
            self.state = state

    def _diverged(self, epoch: int, epoch_end: int, leader_log_start_offset: int) -> Step:
        """The leader has `epoch` up to `epoch_end`, and not the epoch that this log ends with."""
        log = self._log
        own_epoch, own_end = log.epochs.end_offset_for(epoch, log.end_offset)
        if own_epoch == epoch:
            offset = min(own_end, epoch_end)
        elif own_epoch == UNDEFINED_EPOCH:
            offset = min(log.end_offset, epoch_end)
        else:
            # This log does not have the leader's epoch, so no record after a smaller epoch can be
            # the leader's.  The next fetch finds out whether that smaller epoch ends alike.
            offset = own_end
        if offset >= log.end_offset and log.epochs.latest <= epoch:
            # The response makes no sense: truncating there would change nothing.
            return _BACK_OFF
        # What is left cannot be compared with records that the leader has deleted.  It must not be
        # on disk: a crash may bring an older start of this log back, and it would be served.
        is_deleted = offset <= leader_log_start_offset and leader_log_start_offset > 0
        offset = leader_log_start_offset if is_deleted else offset
        lost = max(0, self.high_watermark - max(offset, log.start_offset))
        # Deleted records may still be on disk, of other epochs: if no other is left, drop all.
        is_empty = is_deleted or offset < log.start_offset or 0 < offset == log.start_offset
        return self._truncate(Action.RESTART if is_empty else Action.TRUNCATE, offset, lost)

    def _truncate(self, action: Action, offset: int, lost: int = 0) -> Step:
        self._due = Step(action, offset, lost)
        return self._due

    def check(self) -> None:
        """Assert what must hold between any two facts."""
        self.state.check()
        log = self._log
        assert 0 <= log.start_offset <= log.end_offset
        assert self.high_watermark <= log.end_offset
        assert log.epochs.latest <= self.state.leader_epoch, "the log has a later epoch"
        assert self._due is None or not self.is_waiting
