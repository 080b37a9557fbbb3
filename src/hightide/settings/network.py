"""The broker's settings for its name, its listeners, its connections and its requests."""

from __future__ import annotations

from hightide.settings.declaration import Scope, Settings, java_class, long, names, setting
from hightide.settings.listeners import DEFAULT_MAP

CLUSTER = Scope.CLUSTER
MAX_INT = (1 << 31) - 1
NO_KRAFT = (
    "the brokers coordinate through ZooKeeper, an ensemble or the embedded one, not through KRaft"
)
SYSTEM = "the operating system sizes the buffers of each connection by need"
ONE_LOOP = "one event loop does the work of all connections"


class NetworkSettings(Settings):
    """Identity, listeners, sockets, limits."""

    broker_id: int = setting(
        default=-1,
        doc="This broker's number, unique in the cluster; -1 has one made up.",
        at_least=-1,
    )
    broker_id_generation_enable: bool = setting(
        default=True, doc="Whether a broker without broker.id may have one made up."
    )
    reserved_broker_max_id: int = setting(
        default=1000,
        doc="Largest broker.id that may be given by hand; those made up come after it.",
        at_least=0,
    )
    broker_rack: str | None = setting(
        default=None, doc="Where the broker stands; replicas are spread over racks."
    )
    listeners: str = setting(
        default="PLAINTEXT://:9092",
        doc="Addresses to listen on, as NAME://host:port; no host means all addresses, port 0 any"
        " free port.",
    )
    advertised_listeners: str | None = setting(
        default=None,
        doc="Addresses that clients are told to use. Without it, the one that the client already"
        " reached the broker on.",
    )
    listener_security_protocol_map: str = setting(
        default=",".join(f"{name}:{protocol}" for name, protocol in DEFAULT_MAP.items()),
        doc="Security protocol of each listener name, as NAME:PROTOCOL. Only PLAINTEXT listeners"
        " can be opened in this version.",
    )
    inter_broker_listener_name: str | None = setting(
        default=None,
        doc="Listener that brokers use among themselves.",
    )
    security_inter_broker_protocol: str = setting(
        default="PLAINTEXT",
        doc="Security protocol among brokers when inter.broker.listener.name is not set.",
        one_of=("PLAINTEXT",),
    )
    control_plane_listener_name: str | None = setting(
        default=None,
        doc="Listener for the controller's requests.",
        ignored=ONE_LOOP,
    )
    early_start_listeners: str | None = setting(
        default=None,
        doc="Listeners that open before authorization is ready.",
        ignored="all listeners open together, when the broker can answer",
    )

    socket_send_buffer_bytes: int = setting(
        default=100 * 1024,
        doc="Size of a connection's send buffer; -1 leaves it to the system.",
        ignored=SYSTEM,
    )
    socket_receive_buffer_bytes: int = setting(
        default=100 * 1024,
        doc="Size of a connection's receive buffer; -1 leaves it to the system.",
        ignored=SYSTEM,
    )
    socket_request_max_bytes: int = setting(
        default=100 * 1024 * 1024, doc="Largest request that is read.", at_least=1
    )
    socket_listen_backlog_size: int = setting(
        default=1024, doc="Connections that may wait to be accepted.", at_least=1
    )
    connections_max_idle_ms: long = setting(
        default=10 * 60 * 1000, doc="Time after which a silent connection is closed."
    )
    max_connections: int = setting(
        default=4000, doc="Most connections at the same time.", scope=CLUSTER, at_least=0
    )
    max_connections_per_ip: int = setting(
        default=500,
        doc="Most connections at the same time from one address.",
        scope=CLUSTER,
        at_least=0,
    )
    max_connections_per_ip_overrides: str = setting(
        default="",
        doc="Other limits for some addresses, as address:number.",
        scope=CLUSTER,
        later="there is one limit for all addresses",
    )
    max_connection_creation_rate: int = setting(
        default=200,
        doc="Most new connections a second; those from the machine itself are not counted.",
        scope=CLUSTER,
        at_least=0,
    )
    queued_max_request_bytes: long = setting(
        default=256 * 1024 * 1024,
        doc="Bytes of requests in memory above which no more are read; -1 is no limit.",
    )
    max_request_partition_size_limit: int = setting(
        default=2000,
        doc="Most partitions in one answer that describes topics.",
        at_least=1,
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        default=1000, doc="Most incremental fetch sessions that are kept.", at_least=0
    )
    fetch_max_bytes: int = setting(
        default=55 * 1024 * 1024, doc="Most bytes in one answer to a fetch.", at_least=1024
    )
    request_timeout_ms: int = setting(
        default=30 * 1000,
        doc="How long a client waits at most until what a coordinator of transactions has decided"
        " for it is on enough replicas.",
        at_least=1,
    )
    socket_connection_setup_timeout_ms: long = setting(
        default=10 * 1000,
        doc="How long connecting to another broker may take.",
        ignored="replica.socket.timeout.ms counts for connecting too",
    )
    socket_connection_setup_timeout_max_ms: long = setting(
        default=30 * 1000,
        doc="How far socket.connection.setup.timeout.ms grows when connecting fails.",
        ignored="replica.socket.timeout.ms counts for connecting too",
    )

    num_network_threads: int = setting(
        default=3,
        doc="Threads that read and write sockets.",
        scope=CLUSTER,
        at_least=1,
        ignored=ONE_LOOP,
    )
    num_io_threads: int = setting(
        default=8,
        doc="Threads that handle requests.",
        scope=CLUSTER,
        at_least=1,
        ignored=ONE_LOOP,
    )
    background_threads: int = setting(
        default=10,
        doc="Threads for retention, compaction and flushing.",
        scope=CLUSTER,
        at_least=1,
        ignored="the pool of threads is as large as the machine suggests",
    )
    queued_max_requests: int = setting(
        default=500,
        doc="Requests that may wait for a thread.",
        at_least=1,
        ignored="requests are handled as they are read; queued.max.request.bytes bounds them",
    )
    failed_authentication_delay_ms: int = setting(
        default=100,
        doc="How long a failed login is kept waiting for its answer.",
        at_least=0,
        later="it needs authentication",
    )
    connections_max_reauth_ms: long = setting(
        default=0,
        doc="Longest time between two logins of a connection.",
        later="it needs authentication",
    )

    process_roles: names = setting(
        default=(),
        doc="What a KRaft process is.",
        one_of=("broker", "controller"),
        ignored=NO_KRAFT,
    )
    node_id: int = setting(
        default=-1, doc="KRaft's name for broker.id, read when that is not set.", at_least=-1
    )
    controller_listener_names: str | None = setting(
        default=None, doc="KRaft's listeners for controllers; they are left out of listeners here."
    )
    controller_quorum_voters: names = setting(
        default=(), doc="KRaft's controllers.", ignored=NO_KRAFT
    )
    controller_quorum_bootstrap_servers: names = setting(
        default=(), doc="Where to find KRaft's controllers.", ignored=NO_KRAFT
    )

    auto_include_jmx_reporter: bool = setting(
        default=True, doc="Whether figures are served over JMX.", ignored="there is no JVM"
    )
    metric_reporters: names = setting(
        default=(), doc="Classes that report figures.", ignored="Java classes cannot be loaded"
    )
    metrics_num_samples: int = setting(
        default=2,
        doc="Samples that a rate is computed from.",
        at_least=1,
        ignored="figures are counters, and the reader computes the rates",
    )
    metrics_recording_level: str = setting(
        default="INFO",
        doc="How detailed figures are.",
        ignored="all figures are kept, since they cost little",
    )
    metrics_sample_window_ms: long = setting(
        default=30 * 1000,
        doc="Time that one sample covers.",
        at_least=1,
        ignored="figures are counters, and the reader computes the rates",
    )
    principal_builder_class: java_class | None = setting(
        default=None,
        doc="A class that makes a user's name from a connection.",
        ignored="Java classes cannot be loaded",
    )
