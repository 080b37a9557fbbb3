"""What is declared: names that dashboards query, and the page that is made of them."""

from __future__ import annotations

import re
from pathlib import Path

from hightide.broker.metrics.declarations import METRICS, Kind, reference_page
from hightide.core.telemetry.client_values import translated

REFERENCE = Path(__file__).parents[4] / "docs" / "reference" / "metrics.md"

STRIMZI = [
    "kafka_server_replicamanager_underreplicatedpartitions",
    "kafka_server_replicamanager_partitioncount",
    "kafka_server_replicamanager_leadercount",
    "kafka_cluster_partition_underminisr",
    "kafka_cluster_partition_atminisr",
    "kafka_controller_kafkacontroller_activecontrollercount",
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    "kafka_server_brokertopicmetrics_messagesin_total",
    "kafka_server_brokertopicmetrics_bytesin_total",
    "kafka_server_brokertopicmetrics_bytesout_total",
    "kafka_server_brokertopicmetrics_totalproducerequests_total",
    "kafka_server_brokertopicmetrics_failedproducerequests_total",
    "kafka_server_brokertopicmetrics_totalfetchrequests_total",
    "kafka_server_brokertopicmetrics_failedfetchrequests_total",
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    "kafka_network_socketserver_networkprocessoravgidle_percent",
    "kafka_server_socket_server_metrics_connection_count",
    "kafka_log_log_size",
    "kafka_server_kafkaserver_linux_disk_read_bytes",
    "kafka_server_kafkaserver_linux_disk_write_bytes",
    "process_open_fds",
    "kafka_server_replicamanager_underminisrpartitioncount",
    "kafka_log_logmanager_offlinelogdirectorycount",
    "kafka_server_replicamanager_isrshrinks_total",
    "kafka_server_replicamanager_isrexpands_total",
    "kafka_server_replicamanager_failedisrupdates_total",
    "kafka_server_replicafetchermanager_maxlag",
    "kafka_network_requestmetrics_totaltimems",
    "kafka_network_requestmetrics_requestqueuetimems",
    "kafka_network_requestmetrics_localtimems",
    "kafka_network_requestmetrics_remotetimems",
    "kafka_network_requestmetrics_responsequeuetimems",
    "kafka_network_requestmetrics_responsesendtimems",
    "kafka_network_requestmetrics_requests_total",
    "kafka_network_requestmetrics_errors_total",
    "kafka_log_log_logstartoffset",
    "kafka_log_log_logendoffset",
    "kafka_coordinator_group_groupmetadatamanager_numgroups",
    "kafka_coordinator_group_groupmetadatamanager_numgroupsstable",
    "kafka_coordinator_group_groupmetadatamanager_numgroupsempty",
    "kafka_coordinator_group_groupmetadatamanager_numgroupsdead",
    "kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance",
    "kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance",
]
KAFKA_EXPORTER = [
    "kafka_brokers",
    "kafka_broker_info",
    "kafka_topic_partitions",
    "kafka_topic_partition_current_offset",
    "kafka_topic_partition_oldest_offset",
    "kafka_topic_partition_in_sync_replica",
    "kafka_topic_partition_leader",
    "kafka_topic_partition_leader_is_preferred",
    "kafka_topic_partition_replicas",
    "kafka_topic_partition_under_replicated_partition",
    "kafka_consumergroup_current_offset",
    "kafka_consumergroup_lag",
    "kafka_consumergroup_lag_sum",
    "kafka_consumergroup_members",
]


def test_the_page_is_fresh() -> None:
    assert REFERENCE.read_text("utf-8") == reference_page(), "run `make docs`"


def test_every_name_that_known_dashboards_query_is_declared() -> None:
    assert {*STRIMZI, *KAFKA_EXPORTER} - METRICS.keys() == set()


def test_names_follow_the_rules_of_prometheus() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch("[a-z][a-z0-9_]*", name), name
        assert name.endswith("_total") == (metric.kind is Kind.COUNTER) or metric.kind is Kind.GAUGE
        assert metric.help.endswith("."), name
        assert not {"quantile", "le", "job", "instance"} & {*metric.labels}


def test_no_metric_that_a_client_pushes_can_have_the_name_of_ours() -> None:
    for name in METRICS:
        assert translated(name, "gauge") not in METRICS
        assert translated(name, "counter") not in METRICS
