"""Broker settings for its identity, listeners, connections and requests."""

from __future__ import annotations

from hightide.settings.declaration import Scope, Settings, java_class, long, names, setting
from hightide.settings.listeners import DEFAULT_MAP

CLUSTER = Scope.CLUSTER
MAX_INT = (1 << 31) - 1
NO_KRAFT = "brokers use ZooKeeper, an ensemble or the embedded server, instead of KRaft"
SYSTEM = "the operating system sizes the buffers of each connection as needed"
ONE_LOOP = "one event loop serves all connections"


class NetworkSettings(Settings):
    """Identity, listeners, sockets, limits."""

    broker_id: int = setting(
        default=-1,
        doc="Id of the broker, unique in the cluster; -1 generates one.",
        at_least=-1,
    )
    broker_id_generation_enable: bool = setting(
        default=True, doc="Whether a broker without broker.id gets a generated id."
    )
    reserved_broker_max_id: int = setting(
        default=1000,
        doc="Largest broker.id that may be configured; generated ids are larger.",
        at_least=0,
    )
    broker_rack: str | None = setting(
        default=None, doc="Rack of the broker; the replicas of a partition are spread over racks."
    )
    listeners: str = setting(
        default="PLAINTEXT://127.0.0.1:9092",
        doc="Addresses to listen on, as NAME://host:port; no host means this host only (127.0.0.1),"
        " 0.0.0.0 all addresses, port 0 any free port. Clients are not authenticated, so a listener"
        " that other hosts can reach is logged as a warning.",
    )
    advertised_listeners: str | None = setting(
        default=None,
        doc="Addresses that clients connect to. If not set, each client gets the address at which"
        " it reached the broker.",
    )
    listener_security_protocol_map: str = setting(
        default=",".join(f"{name}:{protocol}" for name, protocol in DEFAULT_MAP.items()),
        doc="Security protocol of each listener name, as NAME:PROTOCOL. Only PLAINTEXT listeners"
        " can be opened in this version.",
    )
    inter_broker_listener_name: str | None = setting(
        default=None,
        doc="Name of the listener for connections between brokers.",
    )
    security_inter_broker_protocol: str = setting(
        default="PLAINTEXT",
        doc="Security protocol between brokers if inter.broker.listener.name is not set.",
        one_of=("PLAINTEXT",),
    )
    control_plane_listener_name: str | None = setting(
        default=None,
        doc="Name of the listener for requests of the controller.",
        ignored=ONE_LOOP,
    )
    early_start_listeners: str | None = setting(
        default=None,
        doc="Listeners that open before authorization is ready.",
        ignored="all listeners open together, when the broker is ready",
    )
    metrics_listeners: str = setting(
        default="",
        doc="Address that serves /metrics, /livez and /readyz, as HTTP://host:port; empty"
        " means none. No host means this host only (127.0.0.1), port 0 any free port, which is"
        " logged. Clients are not authenticated.",
    )

    socket_send_buffer_bytes: int = setting(
        default=100 * 1024,
        doc="Send buffer of a connection (SO_SNDBUF); -1 means the default of the system.",
        ignored=SYSTEM,
    )
    socket_receive_buffer_bytes: int = setting(
        default=100 * 1024,
        doc="Receive buffer of a connection (SO_RCVBUF); -1 means the default of the system.",
        ignored=SYSTEM,
    )
    socket_request_max_bytes: int = setting(
        default=100 * 1024 * 1024, doc="Maximum size of a request.", at_least=1
    )
    socket_listen_backlog_size: int = setting(
        default=1024, doc="Maximum number of connections that wait to be accepted.", at_least=1
    )
    connections_max_idle_ms: long = setting(
        default=10 * 60 * 1000, doc="Time after which an idle connection is closed."
    )
    max_connections: int = setting(
        default=4000, doc="Maximum number of connections.", scope=CLUSTER, at_least=0
    )
    max_connections_per_ip: int = setting(
        default=500,
        doc="Maximum number of connections from one address.",
        scope=CLUSTER,
        at_least=0,
    )
    max_connections_per_ip_overrides: str = setting(
        default="",
        doc="Different limits for single addresses, as address:number.",
        scope=CLUSTER,
        later="there is one limit for all addresses",
    )
    max_connection_creation_rate: int = setting(
        default=200,
        doc="Maximum number of new connections per second; those from the same host do not count.",
        scope=CLUSTER,
        at_least=0,
    )
    queued_max_request_bytes: long = setting(
        default=256 * 1024 * 1024,
        doc="Size of all requests in memory above which no more are read; -1 means no limit.",
    )
    request_max_names: int = setting(
        default=10_000,
        doc="Maximum number of different topics, partitions, groups and other things that one"
        " request may name; a connection that sends more is closed. Requests of other brokers are"
        " not limited.",
        at_least=1,
    )
    response_max_bytes: int = setting(
        default=64 * 1024 * 1024,
        doc="Maximum size of a response, except of Fetch; a connection whose response would be"
        " larger is closed.",
        at_least=1024 * 1024,
    )
    request_receive_timeout_ms: int = setting(
        default=30_000,
        doc="How long the rest of a request may take to arrive; then its connection is closed.",
        at_least=100,
    )
    response_send_timeout_ms: int = setting(
        default=60_000,
        doc="How long a client may leave its responses unread; then its connection is closed.",
        at_least=100,
    )
    queued_max_response_bytes: long = setting(
        default=256 * 1024 * 1024,
        doc="Size of all responses in memory that clients do not read, above which the connections"
        " that have not read for longest are closed; -1 means no limit.",
    )
    work_pool_max_bytes: long = setting(
        default=128 * 1024 * 1024,
        doc="Size of the requests and batches that are decoded, decompressed, scanned or encoded in"
        " threads at the same time; more of them wait.",
        at_least=1024 * 1024,
    )
    max_request_partition_size_limit: int = setting(
        default=2000,
        doc="Maximum number of partitions in a DescribeTopicPartitions response.",
        at_least=1,
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        default=1000, doc="Maximum number of incremental fetch sessions.", at_least=0
    )
    max_incremental_fetch_session_cache_partitions: int = setting(
        default=200_000,
        doc="Maximum number of partitions in all incremental fetch sessions; past it, fetches are"
        " served without a session.",
        at_least=0,
    )
    min_incremental_fetch_session_eviction_ms: long = setting(
        default=2 * 60 * 1000,
        doc="How long an incremental fetch session must be unused before another one may take its"
        " place. A follower's session takes the place of a consumer's at once.",
        at_least=0,
    )
    fetch_max_bytes: int = setting(
        default=55 * 1024 * 1024, doc="Maximum size of a fetch response.", at_least=1024
    )
    request_timeout_ms: int = setting(
        default=30 * 1000,
        doc="How long the transaction coordinator waits for the replication of its records before"
        " it responds with a timeout.",
        at_least=1,
    )
    socket_connection_setup_timeout_ms: long = setting(
        default=10 * 1000,
        doc="Timeout for the connection to another broker.",
        ignored="replica.socket.timeout.ms counts for connecting too",
    )
    socket_connection_setup_timeout_max_ms: long = setting(
        default=30 * 1000,
        doc="Maximum of socket.connection.setup.timeout.ms after failed connections.",
        ignored="replica.socket.timeout.ms counts for connecting too",
    )

    num_network_threads: int = setting(
        default=3,
        doc="Number of threads for sockets.",
        scope=CLUSTER,
        at_least=1,
        ignored=ONE_LOOP,
    )
    num_io_threads: int = setting(
        default=8,
        doc="Number of threads for requests.",
        scope=CLUSTER,
        at_least=1,
        ignored=ONE_LOOP,
    )
    background_threads: int = setting(
        default=10,
        doc="Number of threads for background work.",
        scope=CLUSTER,
        at_least=1,
        ignored="the number of CPUs gives the size of the thread pool",
    )
    queued_max_requests: int = setting(
        default=500,
        doc="Maximum number of requests that wait for a thread.",
        at_least=1,
        ignored="requests are handled as they are read; queued.max.request.bytes limits them",
    )
    failed_authentication_delay_ms: int = setting(
        default=100,
        doc="Delay of the response to a failed authentication.",
        at_least=0,
        later="it needs authentication",
    )
    connections_max_reauth_ms: long = setting(
        default=0,
        doc="Maximum time after which a connection must authenticate again.",
        later="it needs authentication",
    )

    process_roles: names = setting(
        default=(),
        doc="Roles of a KRaft process.",
        one_of=("broker", "controller"),
        ignored=NO_KRAFT,
    )
    node_id: int = setting(
        default=-1, doc="KRaft's name of broker.id, used if that is not set.", at_least=-1
    )
    controller_listener_names: str | None = setting(
        default=None, doc="KRaft's controller listeners, which this broker does not open."
    )
    controller_quorum_voters: names = setting(
        default=(), doc="KRaft's controllers.", ignored=NO_KRAFT
    )
    controller_quorum_bootstrap_servers: names = setting(
        default=(), doc="Addresses of KRaft's controllers.", ignored=NO_KRAFT
    )

    auto_include_jmx_reporter: bool = setting(
        default=True, doc="Whether metrics are served over JMX.", ignored="there is no JVM"
    )
    metric_reporters: names = setting(
        default=(), doc="Classes that report metrics.", ignored="Java classes cannot be loaded"
    )
    metrics_num_samples: int = setting(
        default=2,
        doc="Number of samples for a rate.",
        at_least=1,
        ignored="metrics are counters, and the reader computes the rates",
    )
    metrics_recording_level: str = setting(
        default="INFO",
        doc="Level of detail of the metrics.",
        ignored="all metrics are recorded, since they cost little",
    )
    metrics_sample_window_ms: long = setting(
        default=30 * 1000,
        doc="Duration of one sample.",
        at_least=1,
        ignored="metrics are counters, and the reader computes the rates",
    )
    principal_builder_class: java_class | None = setting(
        default=None,
        doc="A class that derives the principal of a connection.",
        ignored="Java classes cannot be loaded",
    )
