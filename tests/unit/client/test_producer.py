"""A partition's producer against a broker that fails in every way that a broker can.

The broker here is a model: it remembers five sequences of a producer as Kafka does, accepts
any batch as the first of a producer that it does not know, and fails as a test says.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hightide.client import retry
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.producer import IN_FLIGHT, PartitionProducer
from hightide.client.transactional import Fenced
from hightide.wire import frame
from hightide.wire.codec import decode
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

VERSION = 11
REMEMBERED = 5
FAULTS = (
    "none",
    "refused",  # NOT_LEADER_OR_FOLLOWER, and nothing is written
    "written and refused",  # NOT_ENOUGH_REPLICAS_AFTER_APPEND
    "lost",  # the connection breaks before the request is there
    "written and lost",  # the connection breaks before the answer is
    "duplicate refused",  # a duplicate is answered with an error and not with success
)


class ModelBroker:
    """One partition; also the leader cache and the connection, as the producer sees them."""

    retry_ms = timeout_ms = 60_000
    client_id = "test"

    def __init__(self, faults):
        self.log = []
        self._faults = deque(faults)
        self._known = deque(maxlen=REMEMBERED)
        self._is_open = True
        self._answers = []
        self.most_in_flight = 0

    # -- as LeaderCache ---------------------------------------------------------------------

    async def connection(self, _topic, _partition):
        self._is_open = True
        return self

    def forget(self, _topic, connection=None):
        if connection is not None:
            self._is_open = False

    # -- as Connection ------------------------------------------------------------------

    def version_for(self, _request):
        return VERSION

    def read(self, parse):
        return parse()

    def submit(self, encode, _name, _timeout_ms):
        if not self._is_open:
            raise ConnectionFailed("it is closed")
        data = memoryview(encode(1))[4:]
        _, at = frame.decode_request_header(data)
        request = decode(ProduceRequest, data[at:], VERSION)
        sequence = int(bytes(request.topic_data[0].partition_data[0].records or b""))
        answer = asyncio.get_running_loop().create_future()
        self._answers.append((answer, sequence))
        self.most_in_flight = max(self.most_in_flight, len(self._answers))
        asyncio.get_running_loop().call_soon(self._serve)
        return answer

    def _serve(self):
        if not self._answers:
            return
        answer, sequence = self._answers.pop(0)
        fault = self._faults.popleft() if self._faults else "none"
        if fault not in ("refused", "lost"):
            code = self._append(sequence, tells=fault == "duplicate refused")
        else:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if fault.endswith("lost"):
            self._is_open = False
            for waiting, _ in [(answer, sequence), *self._answers]:
                waiting.set_exception(ConnectionFailed("it broke"))
            self._answers.clear()
            return
        if fault == "written and refused" and not code:
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        answer.set_result(answered(code))

    def _append(self, sequence, *, tells):
        if sequence in self._known:
            return ErrorCode.DUPLICATE_SEQUENCE_NUMBER if tells else ErrorCode.NONE
        if self._known and sequence != self._known[-1] + 1:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self._known.append(sequence)
        self.log.append(sequence)
        return ErrorCode.NONE


def answered(code):
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name="t",
                partition_responses=[
                    PartitionProduceResponse(index=0, error_code=code.value, base_offset=0)
                ],
            )
        ]
    )
    return memoryview(frame.encode_response(response, VERSION, 1))[4:]


@pytest.fixture(autouse=True, scope="module")
def no_pauses():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retry, "FIRST_PAUSE_S", 0)
        patch.setattr(retry, "LONGEST_PAUSE_S", 0)
        yield


async def write(broker, count, **named):
    producer = PartitionProducer(broker, "t", 0, **named)
    try:
        for sequence in range(count):
            await producer.append(b"%d" % sequence, 2)
        await producer.flush()
        return producer.written
    finally:
        producer.close()


ok, refused, doubtful = "none", "refused", "written and refused"


# The fifth batch is in doubt and its retry is refused, while the batches after it are written.
@example([ok, doubtful, ok, ok, doubtful, ok, ok, refused], 10)
@given(st.lists(st.sampled_from(FAULTS), max_size=60), st.integers(1, 40))
def test_every_batch_is_written_once_and_in_order(faults, count):
    broker = ModelBroker(faults)
    assert asyncio.run(write(broker, count)) == 2 * count
    assert broker.log == list(range(count))
    assert broker.most_in_flight <= IN_FLIGHT


def test_several_batches_are_under_way_at_once():
    broker = ModelBroker([])
    asyncio.run(write(broker, 40))
    assert broker.most_in_flight == IN_FLIGHT


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.INVALID_PRODUCER_EPOCH, Fenced),
        (ErrorCode.PRODUCER_FENCED, Fenced),
        (ErrorCode.MESSAGE_TOO_LARGE, KafkaError),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError),
    ],
)
def test_what_is_final_is_raised(code, kind, monkeypatch):
    broker = ModelBroker([])
    monkeypatch.setattr(broker, "_append", lambda _sequence, **_: code)
    with pytest.raises(kind) as raised:
        asyncio.run(write(broker, 10))
    assert raised.value.code is code


def test_nothing_is_sent_before_the_transaction_knows_the_partition():
    broker = ModelBroker([])

    async def refuse():
        assert broker.log == []
        raise Fenced(ErrorCode.PRODUCER_FENCED)

    with pytest.raises(Fenced):
        asyncio.run(write(broker, 1, begin=refuse))
    assert broker.log == []


def test_a_writer_that_would_not_hear_of_its_records_is_refused():
    with pytest.raises(ValueError, match="acks is -1"):
        PartitionProducer(cast(Any, ModelBroker([])), "t", 0, acks=0)
