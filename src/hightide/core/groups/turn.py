"""One turn of a coordinator: the input is a fact, the output is answers and writes.

    fact, now_ms ──▶ answers ──▶ sent at once
                └──▶ writes ──▶ appended in this order ──▶ written, write_failed ──▶ the next turn

An answer belongs to the request with the same ticket; the shell chooses the tickets.  An answer
that depends on a write is not in this outcome: the call to `written` returns it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hightide.core.events import Event
from hightide.core.groups.deadlines import Deadlines
from hightide.core.groups.group_rules import Rules
from hightide.wire.errors import ErrorCode
from hightide.wire.records.consumer_offsets import GroupRecord

NO_PRODUCER = -1

Ticket = int


class Answer(NamedTuple):
    """The response to the request with this ticket."""

    ticket: Ticket
    response: Any


class Client(NamedTuple):
    """The sender of a request."""

    id: str
    host: str


@dataclass(slots=True, eq=False)
class Write:
    """Records to append as one batch.

    Pass the same object to `written`, in the order of the log, or to `write_failed` if the records
    are not in the log and never will be.  Immutable.
    """

    records: tuple[GroupRecord, ...]
    purpose: object
    """What to do once the records are committed; private to the coordinator."""
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    """With a producer, the batch is part of its transaction."""


class Outcome(NamedTuple):
    """What the shell must do after a turn: send the answers, append the writes."""

    answers: list[Answer]
    writes: list[Write]
    events: Sequence[Event] = ()
    """To record."""


class Turn:
    """The answers and writes collected while one fact is handled."""

    __slots__ = ("answers", "deadlines", "events", "now_ms", "rules", "writes")

    def __init__(self, now_ms: int, rules: Rules, deadlines: Deadlines) -> None:
        self.now_ms = now_ms
        self.rules = rules
        self.deadlines = deadlines
        self.answers: list[Answer] = []
        self.writes: list[Write] = []
        self.events: list[Event] = []

    def answer(self, ticket: Ticket, response: Any) -> None:
        self.answers.append(Answer(ticket, response))

    def write(self, purpose: object, *records: GroupRecord) -> None:
        self.writes.append(Write(records, purpose))


_CLIENT_ERRORS: Mapping[ErrorCode, ErrorCode] = {
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


def client_error(error: ErrorCode, *, of_offsets: bool = False) -> ErrorCode:
    """Translate the error of a failed append into one that group clients understand."""
    if of_offsets and error in _TOO_LARGE:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return _CLIENT_ERRORS.get(error, error)
