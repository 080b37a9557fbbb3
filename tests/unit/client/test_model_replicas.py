"""The reports of brokers combined: the newest state, lag, and why a replica is out of sync."""

from __future__ import annotations

import uuid
from dataclasses import replace

from hightide.client.model.cluster import PartitionDescription, TopicDescription
from hightide.client.model.health import ProblemKind, problems
from hightide.client.model.replicas import (
    PartitionReplicas,
    Reassignment,
    ReplicaReport,
    ReplicasDescription,
    Role,
    combine_reports,
    with_reassignments,
)
from hightide.core.partition.follower_progress import Progress, Standing
from hightide.core.partition.state import NO_BROKER, PartitionState

ID = uuid.UUID(int=7)
STATE = PartitionState((1, 2, 3), leader=1, leader_epoch=4, isr=(1, 2), partition_epoch=9)


def topic(state=STATE, *, leader_epoch=None, topic_id=ID):
    epoch = state.leader_epoch if leader_epoch is None else leader_epoch
    partition = PartitionDescription(
        0, state.leader, epoch, list(state.replicas), list(state.isr), []
    )
    return TopicDescription("orders", topic_id, False, [partition])


def report(broker, role=Role.FOLLOWER, state=STATE, **values):
    defaults = {
        "leader_epoch": state.leader_epoch if state else -1,
        "log_start_offset": 0,
        "high_watermark": 100,
        "end_offset": 100,
        "size_bytes": 5000,
    }
    return ReplicaReport(
        broker=broker,
        topic="orders",
        topic_id=ID,
        partition=0,
        role=role,
        state=state,
        **{**defaults, **values},
    )


LEADER = report(
    1,
    Role.LEADER,
    end_offset=120,
    progress={
        1: Progress(1, Standing.LEADER, 120, 0, 0),
        2: Progress(2, Standing.IN_SYNC, 118, 2, 15),
        3: Progress(3, Standing.BEHIND, 20, 100, 31_000),
    },
)


def together(*reports, live=(1, 2, 3), eligible=None, silent=(), topics=None):
    (found,) = combine_reports(
        topics or [topic()], reports, live=live, eligible=eligible or {}, silent=silent
    )
    return found


def whys(found):
    return {status.replica: status.why for status in found.statuses()}


def test_a_leader_tells_of_its_followers_and_each_of_itself():
    found = together(LEADER, report(2, end_offset=119), report(3, end_offset=20, high_watermark=15))
    one, two, three = found.statuses()
    assert (one.role, one.end_offset, one.lag_records, one.why) == (Role.LEADER, 120, 0, "leads")
    assert (two.end_offset, two.lag_records, two.lag_ms, two.in_sync) == (119, 2, 15, True)
    assert (three.high_watermark, three.lag_records, three.lag_ms) == (15, 100, 31_000)
    assert (three.in_sync, three.why) == (False, "is behind")


def test_a_replica_that_cannot_be_asked_is_known_by_its_leader():
    found = together(LEADER, live=(1, 2, 3), silent=(2,))
    two = found.statuses()[1]
    assert (two.end_offset, two.lag_records, two.high_watermark, two.role) == (118, 2, None, None)
    assert two.why == "in sync; its broker does not answer"


def test_the_newest_state_counts_whichever_broker_reports_it():
    newer = replace(STATE, isr=(1, 2, 3), partition_epoch=10)
    found = together(replace(LEADER, state=newer), report(2), report(3))
    assert found.state == newer
    assert together(report(2), topics=[topic(leader_epoch=5)]).state.leader_epoch == 5
    assert together().state.partition_epoch == -1


def test_a_former_leader_is_not_believed():
    now = replace(STATE, leader=2, leader_epoch=5, partition_epoch=10)
    new = report(
        2, Role.LEADER, now, end_offset=90, progress={1: Progress(1, Standing.RESTARTED, 9, 81, 0)}
    )
    found = together(LEADER, new, report(3))
    assert found.leader_report == new
    assert whys(found)[1] == (
        "has not fetched since its broker restarted; still acts as leader of epoch 4"
    )
    assert together(LEADER, report(2, Role.FOLLOWER, now)).leader_report is None


def test_reports_of_a_deleted_topic_do_not_count_for_a_new_one_of_the_same_name():
    found = together(LEADER, topics=[topic(topic_id=uuid.UUID(int=8))])
    assert found.reports == {}
    unknown = together(LEADER, topics=[topic(topic_id=uuid.UUID(int=0))])
    assert unknown.reports == {1: LEADER}


def test_a_leader_that_is_not_alive_leads_nothing():
    found = together(report(2), live=(2, 3))
    assert (found.leader, found.is_offline) == (NO_BROKER, True)
    assert whys(found) == {1: "its broker is not alive", 2: "in sync", 3: "no leader"}


def test_a_follower_that_lost_committed_records_says_so():
    lossy = report(3, lost_records=20)
    found = together(LEADER, lossy)
    assert whys(found)[3].endswith("; LOST 20 committed records that its leader lacked")
    assert found.losses == [lossy]


def test_a_replica_on_a_full_disk_says_so():
    full = report(3, failure="full: the disk of /data is full")
    found = together(LEADER, full)
    assert whys(found)[3].endswith("; full: the disk of /data is full")
    assert found.failures == [full]


def test_what_else_is_known_of_a_replica_is_said():
    state = replace(STATE, isr=(1,), elr=(2,), adding=(3,), removing=(2,))
    found = together(
        report(1, Role.LEADER, state), report(2, state=state, is_waiting=True), report(3)
    )
    assert whys(found)[2] == (
        "out of sync; waits for a newer leader epoch; eligible to lead; being removed"
    )
    assert whys(found)[3] == "out of sync; being added"
    assert found.missing == (2,)


def test_other_clusters_tell_what_metadata_has():
    (found,) = with_reassignments(
        [together(eligible={("orders", 0): (3,)})], {("orders", 0): Reassignment((), (3,), ())}
    )
    assert (found.state.elr, found.state.adding, found.missing) == ((3,), (3,), ())
    assert [status.end_offset for status in found.statuses()] == [None, None, None]
    assert whys(found)[1] == "leads"


# -- health ------------------------------------------------------------------------------------


def cluster(*partitions, controller=1, live=(1, 2, 3), silent=None):
    return ReplicasDescription(controller, frozenset(live), list(partitions), silent or {})


def partition(state, live=(1, 2, 3), *reports):
    by_broker = {report.broker: report for report in reports}
    return PartitionReplicas("orders", 0, state, frozenset(live), by_broker)


def described(found, min_isr=2):
    return [(problem.kind, problem.problem) for problem in problems(found, {"orders": min_isr})]


def test_nothing_is_wrong_with_a_cluster_in_sync_or_on_the_move():
    whole = replace(STATE, isr=(1, 2, 3))
    moving = replace(STATE, replicas=(1, 2, 3), isr=(1, 2), adding=(3,))
    assert described(cluster(partition(whole), partition(moving))) == []


def test_each_problem_is_a_sentence_and_the_worst_comes_first():
    offline = replace(STATE, leader=NO_BROKER, isr=(), elr=(3, 2), last_known_leader=1)
    few = replace(STATE, isr=(1,), elr=(2,))
    found = cluster(
        partition(STATE, (1, 2), LEADER),
        partition(few, (1, 2)),
        partition(offline, (1, 2)),
        controller=NO_BROKER,
        live=(1, 2),
        silent={2: "It did not answer within 5 s."},
    )
    assert described(found) == [
        (
            ProblemKind.NO_CONTROLLER,
            "The cluster has no controller: no leader can be elected and no topic created.",
        ),
        (
            ProblemKind.OFFLINE,
            "orders/0 is offline: it has no leader. It waits for one of brokers 3,2.",
        ),
        (
            ProblemKind.UNDER_MIN_ISR,
            "orders/0 has 1 replica in sync and needs 2: writes with acks=all are refused.",
        ),
        (ProblemKind.BROKER_NOT_ALIVE, "Broker 3 is not alive and holds 3 replicas."),
        (
            ProblemKind.BROKER_SILENT,
            "Broker 2 is registered but does not answer. It did not answer within 5 s.",
        ),
        (
            ProblemKind.UNDER_REPLICATED,
            "orders/0 is under-replicated: replica 3: its broker is not alive.",
        ),
    ]


def test_an_offline_partition_names_who_brings_it_back():
    def sentence(**values):
        state = replace(STATE, leader=NO_BROKER, isr=(), **values)
        ((_, sentence),) = described(cluster(partition(state)))
        return sentence.removeprefix("orders/0 is offline: it has no leader. ")

    assert sentence(last_known_leader=1) == "It waits for broker 1."
    assert sentence(elr=(2,), last_known_leader=1) == "It waits for broker 2."
    assert sentence() == (
        "No replica is known to have all records; an unclean election can choose one."
    )


def test_a_partition_needs_no_more_in_sync_than_it_has_replicas():
    alone = PartitionState((1,), 1, 0, (1,))
    assert described(cluster(partition(alone)), min_isr=2) == []


def test_a_replica_that_its_broker_cannot_serve_is_a_problem():
    everywhere = replace(STATE, isr=(1, 2, 3))
    full = report(1, Role.LEADER, everywhere, failure="full: the disk of /data is full")
    (problem,) = problems(cluster(partition(everywhere, (1, 2, 3), full)), {})
    assert (problem.kind, problem.broker) == (ProblemKind.REPLICA_FAILED, 1)
    assert problem.problem.endswith("is full: the disk of /data is full.")


def test_a_replica_that_lost_committed_records_is_a_separate_problem():
    lossy = report(3, lost_records=20)
    found = cluster(partition(STATE, (1, 2, 3), LEADER, lossy))
    kinds = [problem.kind for problem in problems(found, {})]
    assert kinds == [ProblemKind.LOST_RECORDS, ProblemKind.UNDER_REPLICATED]
    assert problems(found, {})[0].broker == 3
