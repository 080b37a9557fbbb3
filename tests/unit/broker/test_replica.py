"""A replica: its roles, and what a follower does with its leader's responses."""

from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_manager import ReplicaManager
from hightide.core.partition.follower import Action
from hightide.core.partition.isr import Proposal
from hightide.core.partition.state import NO_BROKER
from hightide.log.disk import DiskFailed
from hightide.wire.errors import ErrorCode
from hightide.wire.hot.replica_fetch_codec import ReceivedPartition
from tests.unit.broker.replica_world import (
    NOW_MS,
    append,
    fetched,
    lead,
    make,
    received,
    state,
)


def test_the_start_of_an_epoch_is_noted_before_its_first_record():
    replica = make()
    lead(replica, state(epoch=4))
    assert replica.log.epochs.entries == [(4, 0)]


def test_a_late_follower_is_proposed_for_removal():
    proposed: list[Proposal] = []
    replicas = ReplicaManager()
    replicas.on_proposal = lambda _replica, proposal: proposed.append(proposal)
    replica = make(replicas)
    lead(replica)
    append(replica)
    fetched(replica, 2, 1)
    replica.tick(NOW_MS + 2000)
    assert [proposal.isr for proposal in proposed] == [(1, 2)]
    replica.published(state(isr=(1, 2), at=1))
    assert replica.high_watermark == 1


def copies(count: int, base: int = 0, epoch: int = 0) -> memoryview:
    """The bytes of a leader's log at these offsets."""
    leader = make()
    lead(leader, state(epoch=epoch))
    if base:
        leader.log.restart_at(base)
    for _ in range(count):
        append(leader)
    segment = leader.log.segments[-1]
    return memoryview(segment.opened().read(0, segment.size))


def respond(replica: Replica, response: ReceivedPartition) -> Action:
    assert replica.follower is not None
    asked = replica.follower.position()
    assert asked is not None
    return replica.apply_response(asked, response, NOW_MS).action


def test_a_follower_copies_and_learns_what_is_committed():
    replicas = ReplicaManager()
    replica = make(replicas)
    replica.follow(state(leader=2))
    assert respond(replica, received(high_watermark=0, records=copies(3))) is Action.APPEND
    assert (replica.log.end_offset, replica.high_watermark) == (3, 0)
    assert respond(replica, received(high_watermark=2)) is Action.APPEND
    assert (replica.high_watermark, replica.log.committed_offset) == (2, 2)


def test_a_follower_truncates_where_its_log_diverges_from_the_leaders():
    replica = make()
    lead(replica, state(isr=(1, 2)))
    for _ in range(5):
        append(replica)
    replica.follow(state(leader=2, epoch=1))
    assert respond(replica, received(diverging=(0, 3))) is Action.TRUNCATE
    assert replica.log.end_offset == 3


def test_a_truncation_that_a_full_disk_refuses_is_tried_again():
    replica = make()
    lead(replica)
    for _ in range(5):
        append(replica)
    replica._set_high_watermark(5)
    replica.follow(state(2, 1))

    def no_space() -> None:
        raise DiskFailed("checkpoint", "writing to", "no space left on device", harmless=True)

    replica.log.offsets_lowered, works = no_space, replica.log.offsets_lowered
    assert respond(replica, received(diverging=(0, 3))) is Action.BACK_OFF
    assert replica.log.end_offset == 5
    replica.log.offsets_lowered = works
    assert respond(replica, received(diverging=(0, 3))) is Action.TRUNCATE
    assert replica.log.end_offset == 3


def test_nothing_newer_than_the_leaders_epoch_is_appended():
    replica = make()
    replica.follow(state(leader=2, epoch=3))
    assert respond(replica, received(records=copies(1, epoch=4))) is Action.BACK_OFF
    assert replica.log.end_offset == 0
    assert respond(replica, received(records=copies(1, epoch=3))) is Action.APPEND


def test_damage_is_not_copied():
    replica = make()
    replica.follow(state(leader=2))
    records = bytearray(copies(2))
    records[-1] ^= 1
    assert respond(replica, received(records=memoryview(bytes(records)))) is Action.BACK_OFF
    assert replica.log.end_offset == 1, "the batch before the damage is kept"


def test_records_deleted_on_the_leader_go_here_too():
    replica = make()
    replica.follow(state(leader=2))
    respond(replica, received(high_watermark=3, records=copies(3)))
    respond(replica, received(high_watermark=3, start=2))
    assert replica.log.start_offset == 2


def test_a_log_that_ends_before_the_leaders_log_starts_is_restarted_there():
    replica = make()
    replica.follow(state(leader=2))
    out_of_range = received(ErrorCode.OFFSET_OUT_OF_RANGE, start=50)
    assert respond(replica, out_of_range) is Action.RESTART
    assert (replica.log.start_offset, replica.log.end_offset) == (50, 50)
    assert (
        respond(replica, received(high_watermark=50, records=copies(1, base=50))) is Action.APPEND
    )


def test_without_a_leader_the_log_is_kept():
    replica = make()
    lead(replica)
    append(replica)
    replica.rest(state(leader=NO_BROKER, epoch=1, isr=()))
    assert (replica.leader, replica.follower) == (None, None)
    assert replica.log.end_offset == 1
