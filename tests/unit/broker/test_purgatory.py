"""Delayed requests: completed once, in order, and when what they wait for has happened."""

import asyncio

import pytest

from hightide.broker.network.connection import Slot
from hightide.broker.replication.purgatory import DelayedBatch, DelayedProduce, ProduceContext
from hightide.broker.replication.replica_manager import ReplicaManager
from hightide.settings import Broker as Settings
from hightide.settings import Topic as TopicSettings
from hightide.wire.errors import ErrorCode
from hightide.wire.hot import produce_codec as hot
from tests.unit.broker.replica_world import Fetch, Write, append, fetched, lead, make, state

RESULT = hot.ProducedPartition(3, 0, 17, -1, 5)


class Connection:
    def __init__(self) -> None:
        self.responses: list[bytes] = []
        self.slot = Slot()

    def defer(self, cancel) -> Slot:
        self.slot.cancel = cancel
        return self.slot

    def complete(self, _slot: Slot, response: bytes) -> None:
        self.responses.append(response)


def one_batch(context: ProduceContext):
    return DelayedBatch(
        context, "t", RESULT, hot.ResponseTemplate(context.version, b"t", RESULT.partition)
    )


def any_request(context: ProduceContext):
    delayed = DelayedProduce(context, [(b"t", [RESULT])])
    partition = delayed.partition(RESULT)
    delayed.park(has_timeout=True)
    return partition


def responses(
    wait, version: int, *codes: ErrorCode, timeout_ms: int = 60_000, leaves: bool = False
):
    """The responses to a write that is completed with these codes, or times out."""

    async def run() -> list[bytes]:
        connection = Connection()
        write = wait(ProduceContext(connection, 9, version, -1, timeout_ms))
        if leaves:
            assert connection.slot.cancel is not None
            connection.slot.cancel()
        for code in codes:
            write.complete(code)
        await asyncio.sleep(0.02)
        return connection.responses

    return asyncio.run(run())


@pytest.mark.parametrize("version", [3, 5, 8, 9, 12])
@pytest.mark.parametrize(
    "code", [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR]
)
def test_one_batch_is_answered_as_any_request_is(version, code):
    (response,) = responses(one_batch, version, code)
    assert responses(any_request, version, code) == [response]
    if code is ErrorCode.NONE:
        assert response == hot.encode(9, version, [(b"t", [RESULT])])


@pytest.mark.parametrize("wait", [one_batch, any_request])
def test_an_answer_is_given_once(wait):
    late = ErrorCode.REQUEST_TIMED_OUT
    first = responses(wait, 9, ErrorCode.NONE)
    assert responses(wait, 9, ErrorCode.NONE, late) == first
    assert responses(wait, 9, timeout_ms=0) == responses(wait, 9, late, ErrorCode.NONE)
    assert responses(wait, 9, ErrorCode.NONE, leaves=True, timeout_ms=0) == []


# -- waits on a partition -----------------------------------------------------------------------


def test_a_write_is_answered_when_the_whole_isr_has_it():
    replica = make()
    lead(replica)
    first, second = Write(), Write()
    end = append(replica)
    replica.purgatory.when_committed(end, first)
    replica.purgatory.when_committed(append(replica), second)
    fetched(replica, 2, 2)
    assert (first.codes, second.codes, replica.high_watermark) == ([], [], 0)
    fetched(replica, 3, 1)
    assert (first.codes, second.codes, replica.high_watermark) == ([ErrorCode.NONE], [], 1)
    fetched(replica, 3, 2)
    assert (second.codes, replica.log.committed_offset) == ([ErrorCode.NONE], 2)


def test_of_writes_that_complete_together_the_first_is_completed_last():
    """The responses behind it are ready then, and the connection sends all in one write."""
    replica = make()
    lead(replica)
    order: list[int] = []

    class Numbered:
        def __init__(self, number: int) -> None:
            self.number = number

        def complete(self, _code: ErrorCode) -> None:
            order.append(self.number)

    for number in range(4):
        replica.purgatory.when_committed(append(replica), Numbered(number))
    fetched(replica, 2, 3)
    fetched(replica, 3, 3)
    assert order == [2, 1, 0]


def test_a_write_is_not_lost_nor_sure_when_another_leads():
    replica = make()
    lead(replica)
    write = Write()
    replica.purgatory.when_committed(append(replica), write)
    replica.follow(state(leader=2, epoch=1))
    assert write.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert replica.leader is None
    assert replica.log.end_offset == 1


def test_a_write_with_too_few_replicas_is_not_committed():
    replica = make(**{"min.insync.replicas": "2"})
    lead(replica, state(isr=(1, 2)))
    write = Write()
    replica.purgatory.when_committed(append(replica), write)
    replica.log.reconfigure(TopicSettings.effective(Settings(), {"min.insync.replicas": "3"}))
    fetched(replica, 2, 1)
    replica.configured(1000)
    assert write.codes == [ErrorCode.NONE]
    late = Write()
    replica.purgatory.when_committed(append(replica), late)
    fetched(replica, 2, 2)
    assert late.codes == [], "nothing is committed with too few"


def test_consumers_wait_for_the_high_watermark_and_followers_for_the_end():
    replicas = ReplicaManager()
    replica = make(replicas)
    lead(replica)
    consumer, follower = Fetch(), Fetch()
    replica.purgatory.consumers[consumer] = None
    replica.purgatory.followers[follower] = None
    append(replica)
    replicas.purgatory.wake()
    assert (consumer.served, follower.served) == (0, 1)
    assert list(follower.changed) == [replica.key]
    replica.purgatory.followers.clear()
    fetched(replica, 2, 1)
    fetched(replica, 3, 1)
    replicas.purgatory.wake()
    assert consumer.served == 1


def test_a_fetch_that_misses_many_bytes_is_not_woken_by_few():
    replicas = ReplicaManager()
    replica = make(replicas)
    lead(replica, state(isr=(1,)))
    consumer = Fetch(missing_bytes=100_000)
    replica.purgatory.consumers[consumer] = None
    append(replica)
    replicas.purgatory.wake()
    assert consumer.served == 0
    append(replica, b"v" * 100_000)
    replicas.purgatory.wake()
    assert consumer.served == 1
