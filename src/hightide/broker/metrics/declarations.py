"""Every metric of a broker, declared once: its name, type, labels and meaning.

The names are those that dashboards query: Strimzi's spelling of Kafka's own metrics
(`kafka_server_…`, `kafka_network_…`), and those of kafka_exporter (`kafka_topic_partition_…`,
`kafka_consumergroup_…`).  What Kafka does not measure begins with `hightide_`.

A number of the whole cluster is reported by one broker, so that a sum over brokers is right: that
of a partition by its leader, that of a group by its coordinator, and that of the cluster by the
controller.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """The type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric."""

    name: str
    """As it is queried: a counter's name ends in `_total`."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The name without the suffix of a counter."""
        return self.name.removesuffix("_total") if self.kind is Kind.COUNTER else self.name


METRICS: dict[str, Metric] = {}
"""All metrics by name, in the order of the page."""
SECTIONS: dict[str, list[Metric]] = {}
"""The same metrics by the heading of the page."""


def _section(title: str) -> None:
    SECTIONS[title] = []


def _declare(kind: Kind, name: str, text: str, *labels: str) -> Metric:
    assert name not in METRICS, name
    metric = METRICS[name] = Metric(name, kind, text, labels)
    list(SECTIONS.values())[-1].append(metric)
    return metric


def _counter(name: str, text: str, *labels: str) -> Metric:
    return _declare(Kind.COUNTER, name, text, *labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return _declare(Kind.GAUGE, name, text, *labels)


def _summary(name: str, text: str, *labels: str) -> Metric:
    return _declare(Kind.SUMMARY, name, text, *labels)


# -- traffic -----------------------------------------------------------------------------------

_section("Traffic of topics")
_TOPIC = "kafka_server_brokertopicmetrics"
_BOTH = " With a topic, those of the topic; without, those of all topics."
MESSAGES_IN = _counter(
    f"{_TOPIC}_messagesin_total", f"Records that clients have produced.{_BOTH}", "topic"
)
BYTES_IN = _counter(
    f"{_TOPIC}_bytesin_total",
    f"Bytes of the record batches that clients have produced.{_BOTH}",
    "topic",
)
BYTES_OUT = _counter(
    f"{_TOPIC}_bytesout_total",
    f"Bytes of the record batches sent to consumers.{_BOTH}",
    "topic",
)
PRODUCE_REQUESTS = _counter(
    f"{_TOPIC}_totalproducerequests_total",
    "Produce requests, counted once for each partition in them, as in Kafka." + _BOTH,
    "topic",
)
FAILED_PRODUCE_REQUESTS = _counter(
    f"{_TOPIC}_failedproducerequests_total",
    f"Those of them that were refused.{_BOTH}",
    "topic",
)
FETCH_REQUESTS = _counter(
    f"{_TOPIC}_totalfetchrequests_total",
    "Fetch requests of consumers, counted once for each partition in them." + _BOTH,
    "topic",
)
FAILED_FETCH_REQUESTS = _counter(
    f"{_TOPIC}_failedfetchrequests_total",
    f"Partitions of Fetch requests that got an error.{_BOTH}",
    "topic",
)
REPLICATION_BYTES_IN = _counter(
    f"{_TOPIC}_replicationbytesin_total", "Bytes that this broker has copied from leaders."
)
REPLICATION_BYTES_OUT = _counter(
    f"{_TOPIC}_replicationbytesout_total", "Bytes that followers have copied from this broker."
)

# -- requests ----------------------------------------------------------------------------------

_section("Requests and the network")
_REQUEST = "kafka_network_requestmetrics"
REQUESTS = _counter(f"{_REQUEST}_requests_total", "Requests served.", "request", "version")
ERRORS = _counter(
    f"{_REQUEST}_errors_total",
    "Errors in responses, by Kafka's name of the error. A response may have several.",
    "request",
    "error",
)
_TIMES = " The quantiles are those of the last 1024 requests. In milliseconds."
TOTAL_TIME = _summary(
    f"{_REQUEST}_totaltimems",
    "From the arrival of a request until its response is given to the socket." + _TIMES,
    "request",
)
QUEUE_TIME = _summary(
    f"{_REQUEST}_requestqueuetimems",
    "How long a request waits until it is served: for requests before it, and for the turns of"
    " other connections." + _TIMES,
    "request",
)
LOCAL_TIME = _summary(
    f"{_REQUEST}_localtimems",
    "The first turn of a request on the event loop." + _TIMES,
    "request",
)
REMOTE_TIME = _summary(
    f"{_REQUEST}_remotetimems",
    "How long a request waits for what it needs: replicas, records, other members, threads."
    + _TIMES,
    "request",
)
RESPONSE_QUEUE_TIME = _summary(
    f"{_REQUEST}_responsequeuetimems",
    "How long a response waits for those before it on its connection." + _TIMES,
    "request",
)
RESPONSE_SEND_TIME = _summary(
    f"{_REQUEST}_responsesendtimems",
    "How long the socket takes for a response with records; other responses are sent at once."
    + _TIMES,
    "request",
)
CONNECTIONS = _gauge(
    "kafka_server_socket_server_metrics_connection_count", "Open connections.", "listener"
)
CONNECTIONS_CREATED = _counter(
    "kafka_server_socket_server_metrics_connection_creation_total", "Connections accepted."
)
CONNECTIONS_REFUSED = _counter(
    "hightide_connections_refused_total", "Connections refused because of a limit."
)
NETWORK_IDLE = _gauge(
    "kafka_network_socketserver_networkprocessoravgidle_percent",
    "The part of the last seconds in which the event loop had nothing to do, from 0 to 1.",
)
HANDLER_IDLE = _gauge(
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    "The same number: one event loop serves sockets and requests.",
)
PURGATORY_SIZE = _gauge(
    "kafka_server_delayedoperationpurgatory_purgatorysize",
    "Requests that wait: Produce for replicas (once for each partition), Fetch for records,"
    " Rebalance for the members of a group.",
    "delayedoperation",
)
FETCH_SESSIONS = _gauge(
    "kafka_server_fetchsessioncache_numincrementalfetchsessions", "Incremental fetch sessions."
)
LOOP_LAG = _summary(
    "hightide_event_loop_lag_seconds",
    "How late a timer of the event loop fires. The quantiles are those of the last minute.",
)

# -- replication -------------------------------------------------------------------------------

_section("Replication")
_REPLICAS = "kafka_server_replicamanager"
PARTITION_COUNT = _gauge(f"{_REPLICAS}_partitioncount", "Replicas on this broker.")
LEADER_COUNT = _gauge(f"{_REPLICAS}_leadercount", "Partitions that this broker leads.")
UNDER_REPLICATED = _gauge(
    f"{_REPLICAS}_underreplicatedpartitions",
    "Partitions that this broker leads whose ISR lacks a replica.",
)
UNDER_MIN_ISR_COUNT = _gauge(
    f"{_REPLICAS}_underminisrpartitioncount",
    "Partitions that this broker leads whose ISR is smaller than min.insync.replicas: producers"
    " with acks=all are refused.",
)
AT_MIN_ISR_COUNT = _gauge(
    f"{_REPLICAS}_atminisrpartitioncount",
    "Partitions that this broker leads whose ISR is as large as min.insync.replicas: one failure"
    " more, and producers are refused.",
)
OFFLINE_REPLICAS = _gauge(
    f"{_REPLICAS}_offlinereplicacount",
    "Replicas on this broker that cannot be served, because of a disk or of damaged records.",
)
REASSIGNING = _gauge(
    f"{_REPLICAS}_reassigningpartitions",
    "Partitions that this broker leads whose replicas are being moved.",
)
PRODUCER_IDS = _gauge(
    f"{_REPLICAS}_produceridcount", "Producer ids that this broker's replicas remember."
)
ISR_SHRINKS = _counter(f"{_REPLICAS}_isrshrinks_total", "How often an ISR lost a replica.")
ISR_EXPANDS = _counter(f"{_REPLICAS}_isrexpands_total", "How often an ISR gained a replica.")
FAILED_ISR_UPDATES = _counter(
    f"{_REPLICAS}_failedisrupdates_total", "Proposed ISRs that the controller refused."
)
MAX_LAG = _gauge(
    "kafka_server_replicafetchermanager_maxlag",
    "The most records that a follower lacks of a partition that this broker leads.",
)
PARTITION_UNDER_REPLICATED = _gauge(
    "kafka_cluster_partition_underreplicated",
    "1 if the ISR lacks a replica, else 0; by the leader.",
    "topic",
    "partition",
)
PARTITION_UNDER_MIN_ISR = _gauge(
    "kafka_cluster_partition_underminisr",
    "1 if the ISR is smaller than min.insync.replicas, else 0; by the leader.",
    "topic",
    "partition",
)
PARTITION_AT_MIN_ISR = _gauge(
    "kafka_cluster_partition_atminisr",
    "1 if the ISR is as large as min.insync.replicas, else 0; by the leader.",
    "topic",
    "partition",
)
_REPLICA = ("topic", "partition", "broker")
REPLICA_END_OFFSET = _gauge(
    "kafka_topic_partition_replica_log_end_offset",
    "Where the log of a replica ends, as its leader knows.",
    *_REPLICA,
)
REPLICA_LAG_RECORDS = _gauge(
    "kafka_topic_partition_replica_lag_records",
    "How many offsets a replica is behind its leader.",
    *_REPLICA,
)
REPLICA_LAG_SECONDS = _gauge(
    "kafka_topic_partition_replica_lag_seconds",
    "How long ago a replica had all records of its leader.",
    *_REPLICA,
)

# -- the controller ----------------------------------------------------------------------------

_section("The controller")
_CONTROLLER = "kafka_controller_kafkacontroller"
ACTIVE_CONTROLLER = _gauge(
    f"{_CONTROLLER}_activecontrollercount", "1 on the controller, 0 on other brokers."
)
OFFLINE_PARTITIONS = _gauge(
    f"{_CONTROLLER}_offlinepartitionscount",
    "Partitions without a leader; 0 on brokers that are not the controller.",
)
GLOBAL_TOPICS = _gauge(
    f"{_CONTROLLER}_globaltopiccount", "Topics of the cluster; 0 except on the controller."
)
GLOBAL_PARTITIONS = _gauge(
    f"{_CONTROLLER}_globalpartitioncount", "Partitions of the cluster; 0 except on the controller."
)
PREFERRED_IMBALANCE = _gauge(
    f"{_CONTROLLER}_preferredreplicaimbalancecount",
    "Partitions whose leader is not the preferred one; 0 except on the controller.",
)
ACTIVE_BROKERS = _gauge(
    f"{_CONTROLLER}_activebrokercount", "Live brokers; 0 except on the controller."
)
LEADER_ELECTIONS = _counter(
    "kafka_controller_controllerstats_leaderelections_total",
    "Leaders that this broker has elected as the controller.",
)
UNCLEAN_ELECTIONS = _counter(
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    "Those of them that may lack committed records.",
)

# -- logs and disks ----------------------------------------------------------------------------

_section("Logs and disks")
_LOG = ("topic", "partition")
LOG_SIZE = _gauge("kafka_log_log_size", "Bytes of the segments of a replica.", *_LOG)
LOG_START = _gauge("kafka_log_log_logstartoffset", "The first offset of a replica.", *_LOG)
LOG_END = _gauge("kafka_log_log_logendoffset", "The next offset of a replica.", *_LOG)
LOG_SEGMENTS = _gauge("kafka_log_log_numlogsegments", "The segments of a replica.", *_LOG)
FLUSH_TIME = _summary(
    "kafka_log_logflushstats_logflushrateandtimems",
    "How long a flush to disk takes that an acknowledgement waits for (`flush.messages`), in"
    " milliseconds. The quantiles are those of the last 256 flushes.",
)
OFFLINE_DIRECTORIES = _gauge(
    "kafka_log_logmanager_offlinelogdirectorycount", "Log directories that have failed."
)
DIRECTORY_OFFLINE = _gauge(
    "kafka_log_logmanager_logdirectoryoffline",
    "1 if a log directory has failed, else 0.",
    "logdirectory",
)
DIRECTORY_TOTAL_BYTES = _gauge(
    "hightide_log_directory_total_bytes",
    "The size of the file system of a log directory.",
    "logdirectory",
)
DIRECTORY_FREE_BYTES = _gauge(
    "hightide_log_directory_free_bytes",
    "What is free of it for the broker.",
    "logdirectory",
)
DISK_READ_BYTES = _gauge(
    "kafka_server_kafkaserver_linux_disk_read_bytes",
    "Bytes that this process has read from disks (Linux).",
)
DISK_WRITE_BYTES = _gauge(
    "kafka_server_kafkaserver_linux_disk_write_bytes",
    "Bytes that this process has written to disks (Linux).",
)

# -- topics ------------------------------------------------------------------------------------

_section("Topics, as kafka_exporter reports them")
BROKERS = _gauge("kafka_brokers", "Live brokers; by the controller.")
BROKER_INFO = _gauge(
    "kafka_broker_info", "1 for each live broker; by the controller.", "id", "address"
)
TOPIC_PARTITIONS = _gauge(
    "kafka_topic_partitions", "The partitions of a topic; by the controller.", "topic"
)
_PARTITION = "kafka_topic_partition"
_LEADER = " By the leader."
CURRENT_OFFSET = _gauge(
    f"{_PARTITION}_current_offset",
    "The high watermark: consumers read the records before it." + _LEADER,
    *_LOG,
)
OLDEST_OFFSET = _gauge(f"{_PARTITION}_oldest_offset", "The first offset." + _LEADER, *_LOG)
IN_SYNC_REPLICAS = _gauge(
    f"{_PARTITION}_in_sync_replica",
    "The size of the ISR; by the leader, or by the controller if there is no leader.",
    *_LOG,
)
REPLICAS = _gauge(
    f"{_PARTITION}_replicas",
    "The number of replicas; by the leader, or by the controller if there is no leader.",
    *_LOG,
)
PARTITION_LEADER = _gauge(
    f"{_PARTITION}_leader",
    "The id of the leader; by the leader, or -1 by the controller if there is none.",
    *_LOG,
)
LEADER_IS_PREFERRED = _gauge(
    f"{_PARTITION}_leader_is_preferred", "1 if the first replica leads, else 0." + _LEADER, *_LOG
)
UNDER_REPLICATED_PARTITION = _gauge(
    f"{_PARTITION}_under_replicated_partition",
    "1 if the ISR lacks a replica, else 0; by the leader, or by the controller if there is none.",
    *_LOG,
)

# -- groups and transactions -------------------------------------------------------------------

_section("Consumer groups")
_GROUP = ("consumergroup", "topic", "partition")
_COORDINATOR = " By the group's coordinator."
GROUP_OFFSET = _gauge(
    "kafka_consumergroup_current_offset", "A committed offset." + _COORDINATOR, *_GROUP
)
GROUP_OFFSET_SUM = _gauge(
    "kafka_consumergroup_current_offset_sum",
    "The sum of the committed offsets of a topic." + _COORDINATOR,
    "consumergroup",
    "topic",
)
GROUP_LAG = _gauge(
    "kafka_consumergroup_lag",
    "How many offsets a committed offset is before the high watermark. There is no sample while"
    " the leader of the partition cannot be asked." + _COORDINATOR,
    *_GROUP,
)
GROUP_LAG_SUM = _gauge(
    "kafka_consumergroup_lag_sum",
    "The sum of the lags of a topic." + _COORDINATOR,
    "consumergroup",
    "topic",
)
GROUP_LAG_SECONDS = _gauge(
    "kafka_consumergroup_lag_seconds",
    "The age of the first record that is not read; 0 if all are. There is no sample where the"
    " record cannot be read in time." + _COORDINATOR,
    *_GROUP,
)
GROUP_MEMBERS = _gauge(
    "kafka_consumergroup_members", "The members of a group." + _COORDINATOR, "consumergroup"
)
_GROUPS = "kafka_coordinator_group_groupmetadatamanager"
GROUPS = _gauge(f"{_GROUPS}_numgroups", "Groups that this broker coordinates.")
GROUP_STATES = {
    state: _gauge(f"{_GROUPS}_numgroups{state.lower()}", f"Those of them in the state {state}.")
    for state in (
        "Stable",
        "Empty",
        "Dead",
        "PreparingRebalance",
        "CompletingRebalance",
        "Assigning",
        "Reconciling",
    )
}
GROUP_OFFSETS = _gauge(f"{_GROUPS}_numoffsets", "Committed offsets that this broker coordinates.")

_section("Transactions")
OPEN_TRANSACTIONS = _gauge(
    "hightide_open_transactions",
    "Open transactions in the partitions that this broker leads, once for each partition.",
)
TRANSACTIONAL_IDS = _gauge(
    "hightide_transactional_ids",
    "Transactional ids that this broker coordinates, by the state of their transaction.",
    "state",
)

# -- clients -----------------------------------------------------------------------------------

_section("Clients that push their metrics")
CLIENTS = _gauge(
    "hightide_client_instances",
    "Clients that have asked this broker which metrics to push, or have pushed (KIP-714).",
)
CLIENT_PUSHES = _counter(
    "hightide_client_pushes_total",
    "Requests of these clients: those that were taken, and why others were not.",
    "result",
)
CLIENT_VALUES_BYTES = _gauge(
    "hightide_client_values_bytes",
    "The size of the values that clients have pushed last; telemetry.values.max.bytes limits it.",
)
CLIENT_VALUES_DROPPED = _counter(
    "hightide_client_values_dropped_total",
    "Pushed values that were not kept, because of that limit.",
)

# -- the process -------------------------------------------------------------------------------

_section("ZooKeeper")
ZOOKEEPER_LATENCY = _summary(
    "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms",
    "Time until ZooKeeper answers, in milliseconds. The quantiles are those of the last 256 calls.",
)
ZOOKEEPER_STATE = _gauge(
    "hightide_zookeeper_session_state", "1 for the state that the session is in, else 0.", "state"
)
ZOOKEEPER_DISCONNECTS = _counter(
    "kafka_server_sessionexpirelistener_zookeeperdisconnects_total",
    "How often the connection to ZooKeeper ended.",
)
ZOOKEEPER_EXPIRES = _counter(
    "kafka_server_sessionexpirelistener_zookeeperexpires_total",
    "How often the session was lost.",
)

_section("The process")
BROKER_STATE = _gauge(
    "kafka_server_kafkaserver_brokerstate", "Kafka's numbers: 1 starting, 3 running, 6 stopping."
)
BUILD_INFO = _gauge("hightide_build_info", "Always 1.", "version", "python", "broker_id")
EVENTS = _counter(
    "hightide_events_total",
    "What has happened on this broker, as `hightide events` shows it.",
    "kind",
)
COLLECTION_SECONDS = _gauge(
    "hightide_metrics_collection_seconds", "How long the collection of this response took."
)
PROCESS_START = _gauge(
    "process_start_time_seconds", "When the process started, in seconds since 1970."
)
PROCESS_CPU = _counter("process_cpu_seconds_total", "CPU time of the process.")
PROCESS_RESIDENT = _gauge("process_resident_memory_bytes", "Memory of the process in RAM.")
PROCESS_VIRTUAL = _gauge("process_virtual_memory_bytes", "Address space of the process.")
PROCESS_FDS = _gauge("process_open_fds", "Open files and sockets.")
PROCESS_MAX_FDS = _gauge("process_max_fds", "The limit of open files and sockets.")


# -- the page ----------------------------------------------------------------------------------


def reference_page() -> str:
    """Return the reference of all metrics, in Markdown."""
    lines = [
        "# Metrics",
        "",
        "<!-- Generated from the declarations by `make docs`; changes here are lost. -->",
        "",
        "What `/metrics` serves where `metrics.listeners` is set."
        " [The guide](../guide/metrics.md) says what to watch.",
        "Names and meanings are Kafka's, as [Strimzi](https://strimzi.io) spells them, and",
        "those of kafka_exporter; names that begin with `hightide_` are additions. One broker",
        "reports each number of the cluster: a partition's leader, a group's coordinator, or the",
        "controller. So sums over brokers are right.",
    ]
    for title, metrics in SECTIONS.items():
        lines += ["", f"## {title}", "", "| name | type | labels | meaning |"]
        lines.append("| --- | --- | --- | --- |")
        for metric in metrics:
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            lines.append(f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"
