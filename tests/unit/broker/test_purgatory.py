"""A Produce that waits is answered once, and alike whether it is one batch or several."""

import asyncio

import pytest

from hightide.broker.network.connection import Slot
from hightide.broker.replication.purgatory import DelayedBatch, DelayedProduce, ProduceContext
from hightide.wire.errors import ErrorCode
from hightide.wire.hot import produce_codec as hot

RESULT = hot.ProducedPartition(3, 0, 17, -1, 5)


class Connection:
    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.slot = Slot()

    def defer(self, cancel) -> Slot:
        self.slot.cancel = cancel
        return self.slot

    def complete(self, _slot: Slot, answer: bytes) -> None:
        self.answers.append(answer)


def one_batch(asked: ProduceContext):
    return DelayedBatch(
        asked, "t", RESULT, hot.ResponseTemplate(asked.version, b"t", RESULT.partition)
    )


def any_request(asked: ProduceContext):
    pending = DelayedProduce(asked, [(b"t", [RESULT])])
    part = pending.partition(RESULT)
    pending.park(has_timeout=True)
    return part


def answers(wait, version: int, *codes: ErrorCode, timeout_ms: int = 60_000, leaves: bool = False):
    """What a client is answered if its write is settled with these codes, or nothing is heard."""

    async def run() -> list[bytes]:
        connection = Connection()
        write = wait(ProduceContext(connection, 9, version, -1, timeout_ms))
        if leaves:
            assert connection.slot.cancel is not None
            connection.slot.cancel()
        for code in codes:
            write.complete(code)
        await asyncio.sleep(0.02)
        return connection.answers

    return asyncio.run(run())


@pytest.mark.parametrize("version", [3, 5, 8, 9, 12])
@pytest.mark.parametrize(
    "code", [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR]
)
def test_one_batch_is_answered_as_any_request_is(version, code):
    (answer,) = answers(one_batch, version, code)
    assert answers(any_request, version, code) == [answer]
    if code is ErrorCode.NONE:
        assert answer == hot.encode(9, version, [(b"t", [RESULT])])


@pytest.mark.parametrize("wait", [one_batch, any_request])
def test_an_answer_is_given_once(wait):
    late = ErrorCode.REQUEST_TIMED_OUT
    first = answers(wait, 9, ErrorCode.NONE)
    assert answers(wait, 9, ErrorCode.NONE, late) == first
    assert answers(wait, 9, timeout_ms=0) == answers(wait, 9, late, ErrorCode.NONE)
    assert answers(wait, 9, ErrorCode.NONE, leaves=True, timeout_ms=0) == []
