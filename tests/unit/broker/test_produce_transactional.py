"""Transactional batches in Produce: verification, order, and the errors of other producers."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.core.transactions.transaction import Producer
from hightide.wire.errors import ErrorCode
from tests.unit.broker.transactional_world import (
    FIRST,
    NAME,
    codes,
    marker_request,
    part,
    produce_request,
    results,
    world,
)


def test_the_first_batch_of_a_transaction_in_a_partition_is_verified():
    async def run():
        async with world() as it:
            client = await it.client()
            for sequence in range(3):
                answer = await client.send(produce_request(part(sequence)))
                assert results(answer) == [(0, sequence)]
            assert it.verdicts.requests == [(NAME, FIRST, ("t", 0))]
            assert codes(await client.send(marker_request(FIRST, True))) == [0]
            assert results(await client.send(produce_request(part(3)))) == [(0, 4)]
            assert results(await client.send(produce_request(part(4)))) == [(0, 5)]
            assert len(it.verdicts.requests) == 2, "the marker ended the verified transaction"
            client.close()

    asyncio.run(run())


def test_a_coordinator_on_the_same_broker_is_asked_at_once():
    async def run():
        async with world() as it:
            it.verdicts.is_here = True
            client = await it.client()
            assert results(await client.send(produce_request(part(0), part(0, partition=1)))) == [
                (0, 0),
                (0, 0),
            ]
            assert [requests[2] for requests in it.verdicts.requests] == [("t", 0), ("t", 1)]
            client.close()

    asyncio.run(run())


def test_batches_behind_one_that_is_being_verified_are_appended_after_it():
    async def run():
        async with world() as it:
            it.verdicts.may_answer.clear()
            client = await it.client()
            sent = [
                asyncio.ensure_future(client.send(request))
                for request in (
                    produce_request(part(0, b"a")),
                    produce_request(part(1, b"b")),
                    produce_request(part(0, b"c", producer=None, transactional=False), name=None),
                )
            ]
            await it.until(lambda: it.verdicts.requests)
            other = await it.client()
            plain = produce_request(part(0, b"x", producer=None, transactional=False), name=None)
            assert results(await other.send(plain)) == [(0, 0)], "other connections need not wait"
            assert it.values() == [b"x"]
            it.verdicts.may_answer.set()
            answers = [results(response) for response in await asyncio.gather(*sent)]
            assert answers == [[(0, 1)], [(0, 2)], [(0, 3)]]
            assert it.values() == [b"x", b"a", b"b", b"c"]
            assert len(it.verdicts.requests) == 1
            client.close()
            other.close()

    asyncio.run(run())


def test_a_marker_that_comes_during_a_verification_voids_it():
    async def run():
        async with world() as it:
            client, coordinator = await it.client(), await it.client()
            await client.send(produce_request(part(0)))
            await coordinator.send(marker_request(FIRST, True))
            it.verdicts.may_answer.clear()
            late = asyncio.ensure_future(client.send(produce_request(part(1))))
            await it.until(lambda: len(it.verdicts.requests) == 2)
            marker = marker_request(FIRST, False, coordinator_epoch=1)
            assert codes(await coordinator.send(marker)) == [0]
            it.verdicts.may_answer.set()
            assert results(await late) == [(ErrorCode.INVALID_TXN_STATE, -1)]
            assert it.values() == [b"v"]
            client.close()
            coordinator.close()

    asyncio.run(run())


def test_a_client_that_comes_back_while_its_batch_is_verified_has_it_once():
    async def run():
        async with world() as it:
            it.verdicts.may_answer.clear()
            client = await it.client()
            sending = asyncio.ensure_future(client.send(produce_request(part(0))))
            await it.until(lambda: it.verdicts.requests)
            client.close()
            await asyncio.gather(sending, return_exceptions=True)
            client = await it.client()
            again = asyncio.ensure_future(client.send(produce_request(part(0))))
            await it.until(lambda: len(it.verdicts.requests) == 2)
            it.verdicts.may_answer.set()
            assert results(await again) == [(0, 0)]
            assert results(await client.send(produce_request(part(1)))) == [(0, 1)]
            client.close()

    asyncio.run(run())


def test_a_verification_does_not_count_for_the_next_request():
    """Another connection has opened the transaction during the verification."""

    async def run():
        async with world() as it:
            client, other = await it.client(), await it.client()
            await client.send(produce_request(part(0)))
            await other.send(marker_request(FIRST, True))
            it.verdicts.may_answer.clear()
            waiting = asyncio.ensure_future(client.send(produce_request(part(1))))
            await it.until(lambda: len(it.verdicts.requests) == 2)
            it.verdicts.is_here = True
            assert results(await other.send(produce_request(part(1)))) == [(0, 2)]
            it.verdicts.is_here, it.verdicts.code = False, ErrorCode.TRANSACTION_ABORTABLE
            it.verdicts.may_answer.set()
            assert results(await waiting) == [(0, 2)], "the batch is a duplicate"
            await other.send(marker_request(FIRST, True))
            it.verdicts.code = ErrorCode.NONE
            assert results(await client.send(produce_request(part(2)))) == [(0, 4)]
            client.close()
            other.close()

    asyncio.run(run())


@pytest.mark.parametrize("is_here", [False, True])
@pytest.mark.parametrize(
    ("code", "version", "error"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.PRODUCER_FENCED, 11, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 3, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_a_refusal_of_the_coordinator_becomes_an_error_that_the_client_knows(
    code, version, error, is_here
):
    async def run():
        async with world() as it:
            it.verdicts.code, it.verdicts.is_here = code, is_here
            client = await it.client()
            request = produce_request(part(0))
            assert results(await client.send(request, version=version)) == [(error, -1)]
            assert it.values() == []
            it.verdicts.code = ErrorCode.NONE
            # Later batches must not overtake a refused one, and wait if it is sent again.
            is_sent_again = error == ErrorCode.NOT_ENOUGH_REPLICAS
            refused = error if is_sent_again else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            later = produce_request(part(1))
            assert results(await client.send(later, version=version)) == [(refused, -1)]
            assert results(await client.send(request, version=version)) == [(0, 0)]
            client.close()

    asyncio.run(run())


def test_a_batch_of_a_transaction_needs_a_transactional_id():
    """Also where requests of the same shape have been served before."""

    async def run():
        async with world() as it:
            client = await it.client()
            plain = part(0, producer=None, transactional=False)
            assert results(await client.send(produce_request(plain, name=None))) == [(0, 0)]
            for _ in range(2):
                request = produce_request(part(0), name=None)
                code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                assert results(await client.send(request)) == [(code, -1)]
            assert it.verdicts.requests == []
            assert it.values() == [b"v"]
            client.close()

    asyncio.run(run())


def test_batches_of_several_producers_are_not_one_transaction():
    async def run():
        async with world() as it:
            client = await it.client()
            request = produce_request(part(0), part(0, producer=Producer(8, 0), partition=1))
            code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
            assert results(await client.send(request)) == [(code, -1)] * 2
            client.close()

    asyncio.run(run())


def test_one_partition_can_be_refused_and_another_be_appended_to():
    async def run():
        async with world() as it:
            client = await it.client()
            await client.send(produce_request(part(0)))
            it.verdicts.code = ErrorCode.TRANSACTION_ABORTABLE
            request = produce_request(part(1), part(0, partition=1))
            assert results(await client.send(request)) == [
                (0, 1),
                (ErrorCode.TRANSACTION_ABORTABLE, -1),
            ]
            client.close()

    asyncio.run(run())


def test_a_duplicate_batch_is_answered_without_verification_and_refused_after_the_end():
    async def run():
        async with world() as it:
            client = await it.client()
            assert results(await client.send(produce_request(part(0, b"a", b"b")))) == [(0, 0)]
            it.verdicts.code = ErrorCode.TRANSACTION_ABORTABLE
            assert results(await client.send(produce_request(part(0, b"a", b"b")))) == [(0, 0)]
            await client.send(marker_request(FIRST, True))
            assert results(await client.send(produce_request(part(0, b"a", b"b")))) == [
                (ErrorCode.UNKNOWN_PRODUCER_ID, -1)
            ]
            assert it.values() == [b"a", b"b"]
            assert len(it.verdicts.requests) == 1
            client.close()

    asyncio.run(run())


def test_a_plain_batch_of_a_producer_with_an_open_transaction_is_refused():
    async def run():
        async with world() as it:
            client = await it.client()
            await client.send(produce_request(part(0)))
            for name in (NAME, None):
                request = produce_request(part(1, transactional=False), name=name)
                assert results(await client.send(request)) == [(ErrorCode.INVALID_TXN_STATE, -1)]
            client.close()

    asyncio.run(run())


def test_the_setting_disables_verification():
    async def run():
        async with world(transaction_partition_verification_enable=False) as it:
            client = await it.client()
            it.verdicts.code = ErrorCode.TRANSACTION_ABORTABLE
            assert results(await client.send(produce_request(part(0)))) == [(0, 0)]
            await client.send(marker_request(FIRST, True))
            await it.broker.broker_configs.configure(
                lambda _had: {"transaction.partition.verification.enable": "true"}, own=False
            )
            code = ErrorCode.TRANSACTION_ABORTABLE
            assert results(await client.send(produce_request(part(1)))) == [(code, -1)]
            client.close()

    asyncio.run(run())


def test_damaged_batches_are_not_verified():
    async def run():
        async with world() as it:
            client = await it.client()
            damaged = part(0)
            damaged.records = bytes(damaged.records or b"")[:-1] + b"\xff"
            answer = await client.send(produce_request(damaged))
            assert results(answer) == [(ErrorCode.CORRUPT_MESSAGE, -1)]
            assert it.verdicts.requests == []
            assert len(it.replica().log.transactions.verification) == 0
            client.close()

    asyncio.run(run())


class SlowVerdicts:
    """A slow coordinator on another broker, which sometimes refuses with a retriable error."""

    def __init__(self, turns: list[int]) -> None:
        self.turns = turns

    async def verify(self, *_verify_request: object) -> ErrorCode:
        turns = self.turns.pop() if self.turns else 0
        for _ in range(turns):
            await asyncio.sleep(0)
        return ErrorCode.CONCURRENT_TRANSACTIONS if turns % 3 == 2 else ErrorCode.NONE


async def pipelined(client, producer: Producer, partitions: list[int]) -> dict[int, list[bytes]]:
    """Send all batches at once, and again from the first refused one until all are appended.

    Return the expected values of each partition.
    """
    sequences, batches = {0: 0, 1: 0}, []
    for number, partition in enumerate(partitions):
        value = b"%d-%d" % (producer.id, number)
        batches.append((partition, sequences[partition], value))
        sequences[partition] += 1
    left = list(batches)
    while left:
        requests = [
            produce_request(part(sequence, value, producer=producer, partition=partition))
            for partition, sequence, value in left
        ]
        answers = await asyncio.gather(*(client.send(request) for request in requests))
        codes_ = [results(answer)[0][0] for answer in answers]
        assert set(codes_) <= {
            0,
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,  # behind a refused batch
        }
        left = [refused for refused, code in zip(left, codes_, strict=True) if code]
    return {
        partition: [value for index, _, value in batches if index == partition]
        for partition in (0, 1)
    }


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 1), max_size=6), min_size=2, max_size=2),
    st.lists(st.integers(0, 8), max_size=8),
)
def test_the_batches_of_a_producer_are_in_order_however_long_verification_takes(drawn, turns):
    async def run():
        async with world() as it:
            it.broker.transactions.verify = SlowVerdicts(turns).verify  # type: ignore[assignment]
            clients = [await it.client() for _ in drawn]
            wanted = await asyncio.gather(
                *(
                    pipelined(client, Producer(7 + number, 0), partitions)
                    for number, (client, partitions) in enumerate(zip(clients, drawn, strict=True))
                )
            )
            for partition in (0, 1):
                found = it.values(partition=partition)
                for number, values in enumerate(wanted):
                    name = b"%d-" % (7 + number)
                    assert [value for value in found if value.startswith(name)] == values[partition]
            for client in clients:
                client.close()

    asyncio.run(run())
