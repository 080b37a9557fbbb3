"""The output of `hightide partition`: names, rows, problems, and the bars of replicas."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import typer

from hightide.cli import next_step, render
from hightide.cli.cluster import cluster_info, health_of, paragraph
from hightide.cli.names import named, one_topic
from hightide.cli.partition.elect import NOT_NEEDED, expected_election
from hightide.cli.partition.replica_bars import bars, window
from hightide.cli.partition.rows import (
    chosen,
    page,
    partition_details,
    partition_row,
)
from hightide.client.model.cluster import (
    ClusterDescription,
    Node,
    PartitionDescription,
    TopicDescription,
)
from hightide.client.model.diagnosis import NextStep
from hightide.client.model.health import ProblemKind
from hightide.client.model.replicas import (
    PartitionReplicas,
    ReplicaReport,
    ReplicasDescription,
    ReplicaStatus,
    Role,
)
from hightide.core.controller.controller import ElectionKind
from hightide.core.partition.follower_progress import Progress, Standing
from hightide.core.partition.state import NO_BROKER, PartitionState
from hightide.wire.errors import KafkaError
from hightide.wire.types import NO_UUID

STATE = PartitionState((1, 2, 3), leader=1, leader_epoch=4, isr=(1, 2), partition_epoch=9)
ALL = frozenset({1, 2, 3})


def report(broker, role=Role.FOLLOWER, high_watermark=1100, end_offset=1200, **values):
    return ReplicaReport(
        broker=broker,
        topic="orders",
        topic_id=NO_UUID,
        partition=0,
        role=role,
        leader_epoch=4,
        log_start_offset=0,
        high_watermark=high_watermark,
        end_offset=end_offset,
        size_bytes=5000,
        state=None,
        **values,
    )


LEADER = report(
    1,
    Role.LEADER,
    maximal_isr=(1, 2, 3),
    progress={
        1: Progress(1, Standing.LEADER, 1200, 0, 0),
        2: Progress(2, Standing.IN_SYNC, 1150, 50, 12),
        3: Progress(3, Standing.BEHIND, 600, 600, 31_250),
    },
)


def partition(state=STATE, *reports, live=ALL, topic="orders", index=0):
    return PartitionReplicas(
        topic, index, state, live, {report.broker: report for report in reports}
    )


WHOLE = partition(STATE, LEADER, report(2, end_offset=1150), report(3, Role.FOLLOWER, 600, 600))


# -- names -------------------------------------------------------------------------------------


def test_a_partition_is_named_by_topic_and_number():
    assert named(["orders"]) == [("orders", None)]
    assert named(["orders/12", "orders", "x/0"]) == [("orders", 12), ("orders", None), ("x", 0)]
    assert named(None) == []


@pytest.mark.parametrize("text", ["orders/0,2", "orders:0,2", "orders/0, 2"])
def test_several_partitions_of_a_topic_are_named_together(text):
    assert named([text]) == [("orders", 0), ("orders", 2)]


def test_a_topic_has_its_partitions_in_its_name_or_in_an_option():
    assert one_topic("orders", None) == ("orders", [])
    assert one_topic("orders/1", None) == one_topic("orders", [1]) == ("orders", [1])
    with pytest.raises(typer.BadParameter, match="--partition goes without"):
        one_topic("orders/1", [1])


@pytest.mark.parametrize(
    "text",
    ["", "/1", ":1", "orders/", "orders:", "orders/x", "orders/-1", "orders/1/2", "orders/1,,2"],
)
def test_what_names_no_partition_is_refused(text):
    with pytest.raises(typer.BadParameter, match="it should be like orders, orders/0 or orders"):
        named([text])


def test_topics_and_single_partitions_can_be_chosen_together():
    found = [partition(topic=topic, index=index) for topic in "ab" for index in range(3)]
    names = [
        (partition.topic, partition.partition)
        for partition in chosen(found, [("a", None), ("b", 1)])
    ]
    assert names == [("a", 0), ("a", 1), ("a", 2), ("b", 1)]
    with pytest.raises(KafkaError, match="Topic 'a' has no partition 7"):
        chosen(found, [("a", 7)])


# -- show and list -----------------------------------------------------------------------------


def test_a_page_has_the_decision_the_replicas_and_the_picture(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert page(WHOLE, {"orders": 2}).splitlines() == [
        "orders/0",
        "leader    1 (epoch 4)",
        "AR        1,2,3",
        "ISR       1,2  joining: 3",
        "OSR       3",
        "ELR       -",
        "min ISR   2",
        "",
        "REPLICA  ROLE      IN-SYNC  START    HW   LEO  LAG  LAG-MS  WHY",
        "      1  leader    yes          0  1100  1200    0       0  leads",
        "      2  follower  yes          0  1100  1150   50      12  in sync",
        "      3  follower  no           0   600   600  600   31250  is behind",
        "",
        "1  =====================================|---",
        "2  =====================================|-",
        "3  ====================|",
        "   0                                    1200",
        "= committed   | high watermark   - not known to be committed",
        "",
        "The high watermark, 1100, stands still, because replica 3, which joins the ISR, is"
        " 600 records and 31250 ms behind.",
        "next: hightide cluster health   # The replica leaves the ISR after"
        " replica.lag.time.max.ms, and the high watermark moves on.",
    ]


def test_what_is_unusual_is_said_on_the_page():
    state = replace(
        STATE,
        leader=NO_BROKER,
        isr=(),
        elr=(1,),
        last_known_leader=1,
        adding=(3,),
        removing=(2,),
        is_recovering=True,
    )
    lines = page(partition(state, live=frozenset({2})), {"orders": 2}).splitlines()
    assert lines[1] == (
        "leader    none (epoch 4), last known 1, recovering: elected although it may lack"
        " committed records"
    )
    assert lines[3] == (
        "ISR       -  too few: nothing is committed, writes with acks=all are refused"
    )
    assert lines[7] == "moving    adds 3, then removes 2"
    assert lines[10].split() == [
        *("1", "-", "no", "-", "-", "-", "-", "-"),
        *["its", "broker", "is", "not", "alive;", "eligible", "to", "lead"],
    ]


def test_a_replica_that_lost_committed_records_cannot_be_overlooked():
    found = partition(STATE, LEADER, report(3, lost_records=200))
    text = page(found, {})
    assert "LOST 200 committed records that its leader lacked" in text
    assert "!!! Replica 3 of orders/0 has LOST committed records" in text
    assert "lost-records" in partition_row(found, {}).status


def test_json_has_all_that_is_known(capsys):
    render.show([partition_details(WHOLE, {"orders": 2})], render.Output.JSON)
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["leader"], found["osr"], found["maximal_isr"]) == (1, [3], [1, 2, 3])
    assert (found["high_watermark"], found["held_back_by"]) == (1100, 3)
    assert "replica 3, which joins the ISR," in found["high_watermark_waits"]
    assert found["next"]["command"] == "hightide cluster health"
    assert found["replica_states"][2] == {
        "replica": 3,
        "role": "follower",
        "in_sync": False,
        "eligible": False,
        "log_start_offset": 0,
        "high_watermark": 600,
        "end_offset": 600,
        "lag_records": 600,
        "lag_ms": 31250,
        "size_bytes": 5000,
        "lost_records": 0,
        "why": "is behind",
    }


@pytest.mark.parametrize(
    ("state", "live", "words"),
    [
        (replace(STATE, isr=(1, 2, 3)), ALL, ["ok"]),
        (STATE, ALL, ["under-replicated"]),
        (replace(STATE, isr=(1,)), ALL, ["under-min-isr", "under-replicated"]),
        (replace(STATE, adding=(3,)), ALL, ["reassigning"]),
        (replace(STATE, leader=2, isr=(1, 2, 3)), ALL, ["not-preferred"]),
        (STATE, frozenset({2, 3}), ["offline", "under-replicated"]),
    ],
)
def test_a_row_says_in_words_what_is_wrong(state, live, words):
    assert partition_row(partition(state, live=live), {"orders": 2}).status == words


# -- the picture -------------------------------------------------------------------------------


def status(broker, start, high_watermark, end):
    return ReplicaStatus(
        replica=broker,
        role=Role.FOLLOWER,
        in_sync=True,
        eligible=False,
        log_start_offset=start,
        high_watermark=high_watermark,
        end_offset=end,
        lag_records=0,
        lag_ms=0,
        size_bytes=0,
        lost_records=0,
        why="",
    )


def test_bars_begin_near_the_first_difference():
    million = [status(1, 0, 999_990, 1_000_000), status(12, 0, 999_980, 999_990)]
    assert window(million) == (999_960, 1_000_000)
    assert bars(million, 40) == [
        " 1  ==============================|----------",
        "12  ====================|----------",
        "    999960                            1000000",
    ]


def test_equal_logs_are_shown_whole():
    assert bars([status(1, 10, 50, 50), status(2, 30, 50, 50)], 20) == [
        "1  ====================|",
        "2            ==========|",
        "   10                 50",
    ]


def test_what_is_not_at_the_end_is_not_drawn_there():
    first, second, _ = bars([status(1, 0, 0, 10_000), status(2, 0, 0, 9_999)], 20)
    assert len(second) < len(first)


def test_empty_and_unknown_logs_have_a_bar_too():
    assert bars([status(1, 0, 0, 0)], 20) == ["1  |", "   0"]
    unknown = status(2, None, None, None)
    assert bars([status(1, 0, 5, 5), unknown], 10)[1] == "2  ?"
    assert bars([status(1, 0, 6, 6), status(2, None, None, 3)], 10)[1] == "2  -----"
    assert bars([unknown]) == []


# -- elections ---------------------------------------------------------------------------------

OFFLINE = replace(STATE, leader=NO_BROKER, isr=(), elr=(1,))


@pytest.mark.parametrize(
    ("state", "live", "leader", "sentence"),
    [
        (STATE, ALL, 1, NOT_NEEDED),
        (replace(STATE, leader=2), ALL, 1, "would be elected"),
        (
            replace(STATE, leader=2, isr=(2,)),
            ALL,
            None,
            "replica 1, the preferred one, is not in sync",
        ),
        (
            replace(STATE, leader=2),
            frozenset({2}),
            None,
            "broker 1, the preferred one, is not alive",
        ),
    ],
)
def test_it_is_told_beforehand_what_a_preferred_election_does(state, live, leader, sentence):
    found = expected_election(ElectionKind.PREFERRED, partition(state, live=live))
    assert (found.leader, found.sentence) == (leader, sentence)


def test_it_is_told_beforehand_what_an_unclean_election_does():
    def expected(found):
        what = expected_election(ElectionKind.UNCLEAN, found)
        return what.leader, what.sentence

    assert expected(partition(STATE)) == (1, NOT_NEEDED)
    assert expected(partition(OFFLINE, live=frozenset({7}))) == (
        None,
        "none of its replicas is alive",
    )
    some = partition(
        OFFLINE, report(2, end_offset=80), report(3, end_offset=95), live=frozenset({2, 3})
    )
    assert expected(some) == (
        3,
        "would be elected with records up to 95; replicas 1 did not report theirs",
    )
    newer = partition(
        OFFLINE,
        report(2, end_offset=80, last_epoch=4),
        report(3, end_offset=95, last_epoch=3),
        live=frozenset({2, 3}),
    )
    assert expected(newer) == (
        2,
        "would be elected with records up to 80; replica 3 has records up to 95;"
        " replicas 1 did not report theirs",
    )


# -- the cluster -------------------------------------------------------------------------------


def test_the_cluster_shows_also_brokers_that_are_not_alive():
    topic = TopicDescription(
        "orders",
        NO_UUID,
        False,
        [
            PartitionDescription(0, 1, 4, [1, 2], [1], [2]),
            PartitionDescription(1, 1, 4, [1, 3], [1, 3], []),
        ],
    )
    nodes = [Node(1, "a", 9092, None), Node(3, "c", 9094, "r")]
    found = cluster_info(ClusterDescription("id", 3, nodes), [topic], {1: "0.1.0", 3: None})
    assert (found.controller, found.topics, found.partitions) == (3, 1, 2)
    assert [
        (row.id, row.host, row.alive, row.controller, row.leads, row.in_sync, row.replicas)
        for row in found.nodes
    ] == [
        (1, "a", True, False, 2, 2, 2),
        (2, None, False, False, 0, 0, 1),
        (3, "c", True, True, 0, 1, 1),
    ]
    assert [row.version for row in found.nodes] == ["0.1.0", None, "unknown"]
    assert cluster_info(ClusterDescription("id", -1, nodes), [], {}).controller is None


def test_health_counts_and_names_what_is_wrong():
    well = ReplicasDescription(1, ALL, [partition(replace(STATE, isr=(1, 2, 3)))])
    assert health_of(well, {}).healthy
    ill = ReplicasDescription(1, ALL, [partition(), partition(replace(STATE, isr=(1,)))])
    found = health_of(ill, {"orders": 2})
    assert not found.healthy
    assert (found.offline, found.under_min_isr, found.under_replicated) == (0, 1, 2)
    assert [problem.kind for problem in found.problems] == [
        ProblemKind.UNDER_MIN_ISR,
        ProblemKind.UNDER_REPLICATED,
    ]


def test_a_thousand_problems_of_a_kind_are_not_a_thousand_lines():
    parts = [partition(index=index) for index in range(1000)]
    found = health_of(ReplicasDescription(1, ALL, parts), {})
    assert len(found.problems) == 1000
    (cause,) = found.causes
    lines = paragraph(cause).splitlines()
    assert len(lines) == 3
    assert lines[1] == (
        "  1000 under-replicated: orders/0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,…"
        " (1000 partitions)"
    )


def test_a_cause_is_a_paragraph_that_ends_with_the_next_command(monkeypatch):
    monkeypatch.setenv("HIGHTIDE_BOOTSTRAP", "b:1")
    parts = [
        partition(replace(STATE, isr=(1,)), live=frozenset({1, 2})),
        partition(replace(STATE, leader=3, isr=(3,)), live=frozenset({1, 2}), index=1),
        replace(partition(live=frozenset({1, 2}), topic="__consumer_offsets"), is_internal=True),
    ]
    ill = ReplicasDescription(1, frozenset({1, 2}), parts, addresses={3: "c:9092"})
    found = health_of(ill, {"orders": 2}, "b:1")
    assert [paragraph(cause).splitlines() for cause in found.causes] == [
        [
            "Broker 3 (c:9092) is not alive and holds 3 replicas; last seen: unknown.",
            "  1 offline: neither read nor written: orders/1",
            "  1 under min ISR: writes with acks=all are refused: orders/0",
            "  1 under-replicated: 1 of internal topics",
            "  next: hightide broker start --config server.properties   # On the host of the"
            " broker; the end of its log says why it ended. If it never returns, move its"
            " replicas: hightide partition reassign TOPIC --to …",
        ],
    ]


def test_the_next_command_asks_the_same_cluster(monkeypatch):
    monkeypatch.setenv("HIGHTIDE_BOOTSTRAP", "b:1")
    step = NextStep("hightide cluster health", "soon")
    assert next_step.here(step, "b:1") == step
    assert next_step.here(step, "c:2").command == "hightide cluster health --bootstrap c:2"
    on_the_host = NextStep("hightide broker start --config server.properties")
    assert next_step.here(on_the_host, "c:2") == on_the_host
    assert next_step.line(step) == "next: hightide cluster health   # soon"
