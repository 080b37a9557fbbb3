"""A replica: who is woken, who is answered, and what a follower does with its leader's answers."""

import uuid

from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_manager import ReplicaManager
from hightide.core.partition.follower import Action
from hightide.core.partition.isr import Proposal
from hightide.core.partition.state import NO_BROKER, PartitionState
from hightide.log.disk import MemoryDisk
from hightide.log.log import Log
from hightide.log.segment import OpenFiles
from hightide.settings import Broker as Settings
from hightide.settings import Topic as TopicSettings
from hightide.wire import batch
from hightide.wire.errors import ErrorCode
from hightide.wire.hot.replica_fetch_codec import ReceivedPartition

NOW_MS = 1_700_000_000_000
LIVE = {1: 10, 2: 20, 3: 30}
NOTHING = memoryview(b"")


def make(replicas: ReplicaManager | None = None, **overrides: str) -> Replica:
    disk = MemoryDisk()
    disk.make_directory("t-0")
    config = TopicSettings.effective(Settings(), overrides)
    log = Log.create(disk, "t", 0, config, OpenFiles(10), NOW_MS)
    return (replicas or ReplicaManager()).add(log, uuid.UUID(int=7), 0)


def state(leader: int = 1, epoch: int = 0, isr: tuple[int, ...] = (1, 2, 3), at: int = 0):
    return PartitionState((1, 2, 3), leader, epoch, isr, partition_epoch=at)


def lead(replica: Replica, of: PartitionState | None = None) -> None:
    replica.lead(of or state(), 1, LIVE[1], LIVE, frozenset(), 1000, NOW_MS)


def append(replica: Replica, value: bytes = b"v") -> int:
    """The offset behind what was appended."""
    buf = batch.build([batch.Record(0, NOW_MS, None, value, ())])
    return replica.append(buf, memoryview(buf), 0, len(buf), NOW_MS)[1]


def fetched(replica: Replica, follower: int, offset: int) -> None:
    replica.fetched(follower, offset, LIVE[follower], NOW_MS, 0)


class Write:
    def __init__(self) -> None:
        self.codes: list[ErrorCode] = []

    def complete(self, code: ErrorCode) -> None:
        self.codes.append(code)


class Fetch:
    """A delayed fetch of a consumer, or of a follower and its session."""

    def __init__(self, missing_bytes: int = 1) -> None:
        self.missing_bytes = missing_bytes
        self.changed: dict[tuple[bytes, int], None] = {}
        self.served = 0
        self.delayed = self

    def try_complete(self, is_last: bool = False) -> None:
        self.served += 1


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


def test_of_writes_that_are_answered_together_the_first_is_the_last():
    """Behind it the others are ready, and a connection sends all in one write."""
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


def test_a_write_with_too_few_replicas_is_told_so_after_the_append():
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


def test_who_needs_more_bytes_is_not_woken_by_few():
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


def test_the_start_of_an_epoch_is_noted_before_its_first_record():
    replica = make()
    lead(replica, state(epoch=4))
    assert replica.log.epochs.entries == [(4, 0)]


def test_who_is_late_is_proposed_for_removal():
    proposed: list[Proposal] = []
    replicas = ReplicaManager()
    replicas.on_proposal = lambda _replica, proposal: proposed.append(proposal)
    replica = make(replicas)
    lead(replica)
    append(replica)
    fetched(replica, 2, 1)
    replica.tick(NOW_MS + 2000)
    assert [each.isr for each in proposed] == [(1, 2)]
    replica.published(state(isr=(1, 2), at=1))
    assert replica.high_watermark == 1


# -- following ---------------------------------------------------------------------------------


def given(
    code: int = 0,
    high_watermark: int = 0,
    start: int = 0,
    records: memoryview = NOTHING,
    diverging: tuple[int, int] | None = None,
) -> ReceivedPartition:
    return ReceivedPartition(0, code, high_watermark, start, records, diverging, None)


def copies(count: int, base: int = 0, epoch: int = 0) -> memoryview:
    """What a leader's log holds at these offsets."""
    leader = make()
    lead(leader, state(epoch=epoch))
    if base:
        leader.log.restart_at(base)
    for _ in range(count):
        append(leader)
    segment = leader.log.segments[-1]
    return memoryview(segment.opened().read(0, segment.size))


def take(replica: Replica, answer: ReceivedPartition) -> Action:
    assert replica.follower is not None
    asked = replica.follower.position()
    assert asked is not None
    return replica.apply_response(asked, answer, NOW_MS).action


def test_a_follower_copies_and_learns_what_is_committed():
    replicas = ReplicaManager()
    replica = make(replicas)
    replica.follow(state(leader=2))
    assert take(replica, given(high_watermark=0, records=copies(3))) is Action.APPEND
    assert (replica.log.end_offset, replica.high_watermark) == (3, 0)
    assert take(replica, given(high_watermark=2)) is Action.APPEND
    assert (replica.high_watermark, replica.log.committed_offset) == (2, 2)


def test_a_follower_cuts_where_its_log_parts_from_the_leaders():
    replica = make()
    lead(replica, state(isr=(1, 2)))
    for _ in range(5):
        append(replica)
    replica.follow(state(leader=2, epoch=1))
    assert take(replica, given(diverging=(0, 3))) is Action.TRUNCATE
    assert replica.log.end_offset == 3


def test_nothing_newer_than_the_leaders_epoch_is_taken():
    replica = make()
    replica.follow(state(leader=2, epoch=3))
    assert take(replica, given(records=copies(1, epoch=4))) is Action.BACK_OFF
    assert replica.log.end_offset == 0
    assert take(replica, given(records=copies(1, epoch=3))) is Action.APPEND


def test_damage_is_not_copied():
    replica = make()
    replica.follow(state(leader=2))
    records = bytearray(copies(2))
    records[-1] ^= 1
    assert take(replica, given(records=memoryview(bytes(records)))) is Action.BACK_OFF
    assert replica.log.end_offset == 1, "what was whole is kept"


def test_records_deleted_on_the_leader_go_here_too():
    replica = make()
    replica.follow(state(leader=2))
    take(replica, given(high_watermark=3, records=copies(3)))
    take(replica, given(high_watermark=3, start=2))
    assert replica.log.start_offset == 2


def test_a_log_that_starts_behind_this_one_is_begun_anew():
    replica = make()
    replica.follow(state(leader=2))
    out_of_range = given(ErrorCode.OFFSET_OUT_OF_RANGE, start=50)
    assert take(replica, out_of_range) is Action.RESTART
    assert (replica.log.start_offset, replica.log.end_offset) == (50, 50)
    assert take(replica, given(high_watermark=50, records=copies(1, base=50))) is Action.APPEND


def test_without_a_leader_the_log_is_kept():
    replica = make()
    lead(replica)
    append(replica)
    replica.rest(state(leader=NO_BROKER, epoch=1, isr=()))
    assert (replica.leader, replica.follower) == (None, None)
    assert replica.log.end_offset == 1
