"""When a Produce is answered: at once, or when its records are on disk or on the other replicas.

A request that must wait takes its place in the order of answers, so the requests behind it on the
same connection are appended meanwhile.  Each of its partitions that has to wait is a `WaitingPart`
on its replica; when the last is settled, or the time is up, the answer leaves.  Most requests are
one batch for one partition, which is one thing and not three: a `WaitingBatch`.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from hightide.broker.network.connection import Connection, Slot
from hightide.wire.errors import ErrorCode
from hightide.wire.hot import produce_codec as hot

Results = list[tuple[bytes, list[hot.ProducedPartition]]]


class Asked(NamedTuple):
    """Whom to answer, and how long he waits."""

    connection: Connection
    correlation_id: int
    version: int
    acks: int
    timeout_ms: int


class WaitingBatch:
    """A request of one batch that waits to be committed."""

    __slots__ = ("_answer", "_asked", "_name", "_result", "_slot", "_timer")

    def __init__(
        self, asked: Asked, name: str, result: hot.ProducedPartition, answer: hot.ResponseTemplate
    ) -> None:
        self._asked = asked
        self._name = name
        self._result = result
        self._answer = answer
        self._slot: Slot | None = asked.connection.defer(self._leave)
        seconds = max(asked.timeout_ms, 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(
            seconds, self.settle, ErrorCode.REQUEST_TIMED_OUT
        )

    def settle(self, code: ErrorCode) -> None:
        slot, asked, result = self._slot, self._asked, self._result
        if slot is None:
            return
        self._leave()
        if code is ErrorCode.NONE:
            _, _, base_offset, time_ms, log_start_offset, _, _ = result
            answer = self._answer.encode(
                asked.correlation_id, base_offset, time_ms, log_start_offset
            )
        else:
            results = [(self._name.encode(), [_failed(result, code)])]
            answer = hot.encode(asked.correlation_id, asked.version, results)
        asked.connection.complete(slot, answer)

    def _leave(self) -> None:
        """Wait no longer."""
        self._slot = None
        self._timer.cancel()


class PendingProduce:
    """An answer that waits."""

    __slots__ = ("_asked", "_missing", "_parts", "_results", "_slot", "_timer")

    def __init__(self, asked: Asked, results: Results) -> None:
        self._asked = asked
        self._results = results
        self._parts: list[WaitingPart] = []
        self._missing = 0
        self._slot: Slot | None = None
        self._timer: asyncio.TimerHandle | None = None

    def part(self, result: hot.ProducedPartition) -> WaitingPart:
        """One more partition to wait for, with what is to be told when all is well."""
        part = WaitingPart(self, result)
        self._parts.append(part)
        self._missing += 1
        return part

    def wait(self, has_timeout: bool) -> None:
        self._slot = self._asked.connection.defer(self._leave)
        if has_timeout:
            seconds = max(self._asked.timeout_ms, 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(seconds, self._time_out)

    def part_settled(self) -> None:
        self._missing -= 1
        if self._missing == 0 and self._slot is not None:
            slot, asked = self._slot, self._asked
            self._leave()
            answer = hot.encode(asked.correlation_id, asked.version, self._told())
            asked.connection.complete(slot, answer)

    def _time_out(self) -> None:
        for part in self._parts:
            part.settle(ErrorCode.REQUEST_TIMED_OUT)

    def _leave(self) -> None:
        """Wait no longer."""
        self._slot = None
        if self._timer is not None:
            self._timer.cancel()

    def _told(self) -> Results:
        failed = {id(part.result): part.code for part in self._parts if part.code}
        if not failed:
            return self._results
        return [
            (
                name,
                [_failed(each, failed[id(each)]) if id(each) in failed else each for each in told],
            )
            for name, told in self._results
        ]


class WaitingPart:
    """One partition of it; settled once."""

    __slots__ = ("_pending", "code", "result")

    def __init__(self, pending: PendingProduce, result: hot.ProducedPartition) -> None:
        self._pending = pending
        self.result = result
        self.code: ErrorCode | None = None

    def settle(self, code: ErrorCode) -> None:
        if self.code is None:
            self.code = code
            self._pending.part_settled()


_WORDS = {
    ErrorCode.KAFKA_STORAGE_ERROR: "the disk did not keep the records",
    ErrorCode.REQUEST_TIMED_OUT: "the records are written, but not on all replicas yet",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "another broker leads since; it may have the records or not",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "the records are written, but on too few replicas",
}


def _failed(result: hot.ProducedPartition, code: ErrorCode | None) -> hot.ProducedPartition:
    assert code is not None
    return hot.ProducedPartition(result.partition, code, error_message=_WORDS.get(code))
