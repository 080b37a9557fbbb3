"""One turn of a coordinator: a fact goes in, and this is what comes out.

    fact, now_ms ──▶ answers ──▶ leave at once
                └──▶ writes ──▶ appended in this order ──▶ written, write_failed ──▶ the next turn

An answer belongs to the request that brought its ticket; the shell chooses the tickets.  What must
not be said before it is written is not among the answers: it comes when `written` is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hightide.core.groups.deadlines import Deadlines
from hightide.core.groups.group_rules import Rules
from hightide.wire.errors import ErrorCode
from hightide.wire.records.consumer_offsets import GroupRecord

NO_PRODUCER = -1

Ticket = int


class Answer(NamedTuple):
    """What a request gets."""

    ticket: Ticket
    response: Any


class Client(NamedTuple):
    """Who sent a request."""

    id: str
    host: str


@dataclass(slots=True, eq=False)
class Write:
    """Records to be appended together.  Hand the same object back to `written`, in the order of the
    log, or to `write_failed` if they are not in the log and never will be.  Not to be changed."""

    records: tuple[GroupRecord, ...]
    purpose: object
    """What follows when they are written; the machine's own business."""
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    """If there is a producer, the batch belongs to its transaction."""


class Outcome(NamedTuple):
    """What the shell has to do after a turn."""

    answers: list[Answer]
    writes: list[Write]


class Turn:
    """What is being done about one fact."""

    __slots__ = ("answers", "deadlines", "now_ms", "rules", "writes")

    def __init__(self, now_ms: int, rules: Rules, deadlines: Deadlines) -> None:
        self.now_ms = now_ms
        self.rules = rules
        self.deadlines = deadlines
        self.answers: list[Answer] = []
        self.writes: list[Write] = []

    def answer(self, ticket: Ticket, response: Any) -> None:
        self.answers.append(Answer(ticket, response))

    def write(self, purpose: object, *records: GroupRecord) -> None:
        self.writes.append(Write(records, purpose))


_TOLD_AS: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


def told_as(error: ErrorCode, *, of_offsets: bool = False) -> ErrorCode:
    """What a client is told when records could not be written: it knows groups, and no logs."""
    if of_offsets and error in _TOO_LARGE:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return _TOLD_AS.get(error, error)
