"""Kafka's znode layout: the paths, and the format of the data.

Paths are functions, payloads are named tuples with `encode` and `decode`. The JSON is Kafka's, so
zkCli and tools for Kafka can read the cluster. Decoding any bytes gives a value or MalformedZnode
with the path and the reason. Unknown fields are skipped, payloads of older Kafka versions are read.
Fields that Kafka does not have are Hightide's own; they are left out when they have their default,
so that the usual bytes are Kafka's.

The znode of a partition's state is persistent, although Kafka's documentation calls it ephemeral:
it must outlive the controller that wrote it.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote, unquote

from hightide.zookeeper.znode_json import Payload, to_json
from hightide.zookeeper.zookeeper_errors import MalformedZnode

_NONE: Mapping[int, tuple[int, ...]] = MappingProxyType({})
_NO_FEATURES: Mapping[str, tuple[int, int]] = MappingProxyType({})
_NO_EPOCHS: Mapping[int, int] = MappingProxyType({})
_RECOVERING = 1
_LEAST_KEY_BYTES = 16

CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
BROKER_SEQUENCE = "/brokers/seqid"
TOPICS = "/brokers/topics"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
ISR_CHANGES = "/isr_change_notification"
LOG_DIR_EVENTS = "/log_dir_event_notification"
CONFIG_CHANGES = "/config/changes"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
SECRETS = "/hightide"
BROKER_SECRET = f"{SECRETS}/broker_secret"
"""What brokers prove themselves with. Hightide's own znodes; a snapshot leaves them out."""

ISR_CHANGE_PREFIX = f"{ISR_CHANGES}/isr_change_"
LOG_DIR_EVENT_PREFIX = f"{LOG_DIR_EVENTS}/log_dir_event_"
CONFIG_CHANGE_PREFIX = f"{CONFIG_CHANGES}/config_change_"
"""Create these with `sequence`; ZooKeeper appends the number."""

CLIENT_METRICS = "client-metrics"
CONFIG_TYPES = ("topics", "clients", "users", "brokers", "ips", CLIENT_METRICS)
DEFAULT_ENTITY = "<default>"

PERSISTENT_ROOTS = (
    "/consumers",
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    BROKER_SEQUENCE,
    ISR_CHANGES,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENTS,
    *(f"/config/{kind}" for kind in CONFIG_TYPES),
)
"""A starting broker creates these empty, with their parents, if they are missing."""


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def broker_id_of(path: str) -> int:
    """The inverse of `broker_path`."""
    name = path.rpartition("/")[2]
    if not (name.isascii() and name.isdigit()) or int(name) >= 2**31:
        raise MalformedZnode(path, "the name is not a broker id")
    return int(name)


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}"


def partition_state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


def config_path(entity_path: str) -> str:
    """`entity_path` as in a change notification: topics/T, brokers/1, users/U/clients/C."""
    return f"/config/{entity_path}"


def topic_config_path(topic: str) -> str:
    return f"/config/topics/{topic}"


def broker_config_path(broker_id: int | None) -> str:
    """Return the path of a broker's config; None is the default of all brokers."""
    return f"/config/brokers/{DEFAULT_ENTITY if broker_id is None else broker_id}"


def sanitized(name: str) -> str:
    """Encode a user or client name as a znode name: percent-encoded, as in Kafka."""
    return name if name == DEFAULT_ENTITY else quote(name, safe="")


def desanitized(name: str) -> str:
    return unquote(name)


def sequence_of(name: str) -> int:
    """Return the number at the end of a sequential znode's name or path."""
    digits = name[-10:]
    if len(digits) < 10 or not (digits.isascii() and digits.isdigit()):
        raise MalformedZnode(name, "the name does not end in a sequence number")
    return int(digits)


def id_text(value: uuid.UUID) -> str:
    """Encode a topic or cluster id as Kafka does: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def id_of(text: str, path: str = "") -> uuid.UUID:
    """The inverse of `id_text`; refuses what Kafka does not write."""
    try:
        value = uuid.UUID(bytes=base64.b64decode(text + "==", b"-_", validate=True))
    except ValueError as failure:
        raise MalformedZnode(path, f"{text!r} is not an id") from failure
    if id_text(value) != text:
        raise MalformedZnode(path, f"{text!r} is not an id")
    return value


class ClusterId(NamedTuple):
    """/cluster/id: written once, by the first broker. The id need not be a uuid."""

    id: str

    def encode(self) -> bytes:
        return to_json({"version": "1", "id": self.id})

    @classmethod
    def decode(cls, data: bytes, path: str = CLUSTER_ID) -> ClusterId:
        return cls(Payload.parse(data, path).text("id"))


class Controller(NamedTuple):
    """/controller: the broker that won the election."""

    broker_id: int
    timestamp_ms: int

    def encode(self) -> bytes:
        return to_json(
            {"version": 1, "brokerid": self.broker_id, "timestamp": str(self.timestamp_ms)}
        )

    @classmethod
    def decode(cls, data: bytes, path: str = CONTROLLER) -> Controller:
        payload = Payload.parse(data, path)
        return cls(payload.int32("brokerid"), payload.number_text("timestamp", default=-1))


def encode_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def decode_controller_epoch(data: bytes, path: str = CONTROLLER_EPOCH) -> int:
    """Parse plain text. The znode's version, not this number, fences old controllers."""
    if not data.isdigit() or len(data) > 10 or int(data) >= 2**31:
        raise MalformedZnode(path, "not an epoch")
    return int(data)


class Endpoint(NamedTuple):
    """One advertised listener of a broker."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"

    @classmethod
    def parse(cls, address: str, protocols: Payload, path: str) -> Endpoint:
        listener, separator, rest = address.partition("://")
        host, colon, port = rest.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        plausible = separator and colon and port.isascii() and port.isdigit() and len(port) <= 5
        if not plausible or int(port) > 65535:
            raise MalformedZnode(path, f"{address!r} is not an endpoint")
        return cls(listener, host, int(port), protocols.text(listener, default=listener))


class BrokerRegistration(NamedTuple):
    """/brokers/ids/N: a live broker's registration; the znode's czxid is the broker epoch.

    Version 1 has one address, 2 endpoints named by security protocol, 3 the rack, 4 named
    listeners, 5 features. All are read, version 5 is written.
    """

    endpoints: tuple[Endpoint, ...]
    timestamp_ms: int
    rack: str | None = None
    jmx_port: int = -1
    features: Mapping[str, tuple[int, int]] = _NO_FEATURES
    """The lowest and the highest supported version by feature."""
    previous_epoch: int = -1
    """Hightide's own field: the broker epoch that ended with a clean shutdown, with all logs on
    disk. -1 is left out, and means that the logs may be incomplete: the broker crashed, or is new,
    or its version does not write this field."""

    def encode(self) -> bytes:
        # Clients older than endpoints read host and port, which are those of a PLAINTEXT listener.
        plain = next((e for e in self.endpoints if e.security_protocol == "PLAINTEXT"), None)
        rack = {} if self.rack is None else {"rack": self.rack}
        previous = {} if self.previous_epoch == -1 else {"previous_epoch": str(self.previous_epoch)}
        return to_json(
            {
                "version": 5,
                "host": plain.host if plain else None,
                "port": plain.port if plain else -1,
                "endpoints": [endpoint.address for endpoint in self.endpoints],
                "listener_security_protocol_map": {
                    endpoint.listener: endpoint.security_protocol for endpoint in self.endpoints
                },
                "jmx_port": self.jmx_port,
                "timestamp": str(self.timestamp_ms),
                **rack,
                "features": {
                    name: {"min_version": lowest, "max_version": highest}
                    for name, (lowest, highest) in self.features.items()
                },
                **previous,
            }
        )

    @classmethod
    def decode(cls, data: bytes, path: str) -> BrokerRegistration:
        payload = Payload.parse(data, path)
        protocols = payload.object("listener_security_protocol_map", required=False)
        addresses = payload.texts("endpoints", default=[])
        if payload.int32("version") == 1:
            addresses = [f"PLAINTEXT://{payload.text('host')}:{payload.int32('port')}"]
        features = payload.object("features", required=False)
        return cls(
            tuple(Endpoint.parse(address, protocols, path) for address in addresses),
            payload.number_text("timestamp", default=-1),
            payload.text("rack", default="") or None,
            payload.int32("jmx_port", default=-1),
            {name: _versions(features.object(name)) for name in features},
            payload.number_text("previous_epoch", default=-1),
        )


def _versions(feature: Payload) -> tuple[int, int]:
    return feature.int32("min_version"), feature.int32("max_version")


class TopicAssignment(NamedTuple):
    """/brokers/topics/T: the replicas of each partition, the preferred leader first.

    Written as version 3. A znode of version 1 or 2 has no topic id; it decodes to None, and is
    written back as version 2 until the controller assigns a topic id.
    """

    topic_id: uuid.UUID | None
    partitions: Mapping[int, tuple[int, ...]]
    adding_replicas: Mapping[int, tuple[int, ...]] = _NONE
    removing_replicas: Mapping[int, tuple[int, ...]] = _NONE

    def encode(self) -> bytes:
        topic_id = {} if self.topic_id is None else {"topic_id": id_text(self.topic_id)}
        return to_json(
            {
                "version": 3 if topic_id else 2,
                **topic_id,
                "partitions": _replica_json(self.partitions),
                "adding_replicas": _replica_json(self.adding_replicas),
                "removing_replicas": _replica_json(self.removing_replicas),
            }
        )

    @classmethod
    def decode(cls, data: bytes, path: str) -> TopicAssignment:
        payload = Payload.parse(data, path)
        topic_id = payload.text("topic_id", default="")
        return cls(
            id_of(topic_id, path) if topic_id else None,
            _replicas(payload, "partitions"),
            _replicas(payload, "adding_replicas", required=False),
            _replicas(payload, "removing_replicas", required=False),
        )


def _replica_json(partitions: Mapping[int, tuple[int, ...]]) -> dict[str, list[int]]:
    return {str(partition): list(partitions[partition]) for partition in sorted(partitions)}


def _replicas(payload: Payload, key: str, required: bool = True) -> dict[int, tuple[int, ...]]:
    entries = payload.object(key, required=required)
    partitions = {entries.int32_key(name): tuple(entries.int32s(name)) for name in entries}
    return dict(sorted(partitions.items()))


class PartitionState(NamedTuple):
    """/brokers/topics/T/partitions/P/state; the znode's version is the partition epoch.

    `elr`, `last_known_leader`, `last_known_elr`, `broker_epochs` and `recovery_epoch` are fields of
    Hightide; see core/partition/state.py.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    is_recovering: bool = False
    elr: tuple[int, ...] = ()
    last_known_leader: int = -1
    broker_epochs: Mapping[int, int] = _NO_EPOCHS
    recovery_epoch: int = -1
    last_known_elr: tuple[int, ...] = ()

    def encode(self) -> bytes:
        fields = {
            "version": 1,
            "leader": self.leader,
            "leader_epoch": self.leader_epoch,
            "isr": list(self.isr),
            "controller_epoch": self.controller_epoch,
        }
        if self.is_recovering:
            fields["leader_recovery_state"] = _RECOVERING
        if self.elr:
            fields["elr"] = list(self.elr)
        if self.last_known_leader != -1:
            fields["last_known_leader"] = self.last_known_leader
        if self.broker_epochs:
            fields["broker_epochs"] = {
                str(broker): str(self.broker_epochs[broker])
                for broker in sorted(self.broker_epochs)
            }
        if self.recovery_epoch != -1:
            fields["recovery_epoch"] = self.recovery_epoch
        if self.last_known_elr:
            fields["last_known_elr"] = list(self.last_known_elr)
        return to_json(fields)

    @classmethod
    def decode(cls, data: bytes, path: str) -> PartitionState:
        payload = Payload.parse(data, path)
        epochs = payload.object("broker_epochs", required=False)
        return cls(
            payload.int32("leader"),
            payload.int32("leader_epoch"),
            tuple(payload.int32s("isr")),
            payload.int32("controller_epoch"),
            payload.int32("leader_recovery_state", default=0) == _RECOVERING,
            tuple(payload.int32s("elr", default=[])),
            payload.int32("last_known_leader", default=-1),
            {epochs.int32_key(broker): epochs.number_text(broker) for broker in epochs},
            payload.int32("recovery_epoch", default=-1),
            tuple(payload.int32s("last_known_elr", default=[])),
        )


class EntityConfig(NamedTuple):
    """/config/TYPE/NAME: overrides of one topic, broker, client, user or address."""

    config: Mapping[str, str]

    def encode(self) -> bytes:
        return to_json({"version": 1, "config": dict(self.config)})

    @classmethod
    def decode(cls, data: bytes, path: str) -> EntityConfig:
        """Decode overrides; an empty znode has none. Kafka leaves some of these behind."""
        if not data:
            return cls({})
        entries = Payload.parse(data, path).object("config", required=False)
        return cls({name: entries.text(name) for name in entries})


class ConfigChange(NamedTuple):
    """/config/changes/config_change_N: the entity whose config every broker must read again."""

    entity_path: str

    def encode(self) -> bytes:
        return to_json({"version": 2, "entity_path": self.entity_path})

    @classmethod
    def decode(cls, data: bytes, path: str) -> ConfigChange:
        payload = Payload.parse(data, path)
        if payload.int32("version", default=2) == 1:
            return cls(f"{payload.text('entity_type')}/{payload.text('entity_name')}")
        return cls(payload.text("entity_path"))


class ProducerIdBlock(NamedTuple):
    """/latest_producer_id_block: the last block of producer ids, both ends included."""

    broker_id: int
    first_id: int
    last_id: int

    def encode(self) -> bytes:
        return to_json(
            {
                "version": 1,
                "broker": self.broker_id,
                "block_start": str(self.first_id),
                "block_end": str(self.last_id),
            }
        )

    @classmethod
    def decode(cls, data: bytes, path: str = PRODUCER_ID_BLOCK) -> ProducerIdBlock | None:
        """Decode the block; None if the znode is empty, before the first block."""
        if not data:
            return None
        payload = Payload.parse(data, path)
        block = cls(
            payload.int32("broker"),
            payload.number_text("block_start"),
            payload.number_text("block_end"),
        )
        if not 0 <= block.first_id <= block.last_id:
            raise MalformedZnode(path, "the block of ids is empty or negative")
        return block


class PartitionList(NamedTuple):
    """The partitions of an ISR change notification or of a preferred replica election."""

    partitions: tuple[tuple[str, int], ...]

    def encode(self) -> bytes:
        entries = [{"topic": topic, "partition": number} for topic, number in self.partitions]
        return to_json({"version": 1, "partitions": entries})

    @classmethod
    def decode(cls, data: bytes, path: str) -> PartitionList:
        entries = Payload.parse(data, path).objects("partitions")
        return cls(tuple((entry.text("topic"), entry.int32("partition")) for entry in entries))


class Reassignment(NamedTuple):
    """/admin/reassign_partitions: the replicas that a tool requests for each partition."""

    replicas: Mapping[tuple[str, int], tuple[int, ...]]

    def encode(self) -> bytes:
        entries = [
            {"topic": topic, "partition": partition, "replicas": list(replicas)}
            for (topic, partition), replicas in self.replicas.items()
        ]
        return to_json({"version": 1, "partitions": entries})

    @classmethod
    def decode(cls, data: bytes, path: str = REASSIGN_PARTITIONS) -> Reassignment:
        entries = Payload.parse(data, path).objects("partitions")
        return cls(
            {
                (entry.text("topic"), entry.int32("partition")): tuple(entry.int32s("replicas"))
                for entry in entries
            }
        )


class LogDirEvent(NamedTuple):
    """/log_dir_event_notification/log_dir_event_N: a log directory failed (event 1)."""

    broker_id: int
    event: int = 1

    def encode(self) -> bytes:
        return to_json({"version": 1, "broker": self.broker_id, "event": self.event})

    @classmethod
    def decode(cls, data: bytes, path: str) -> LogDirEvent:
        payload = Payload.parse(data, path)
        return cls(payload.int32("broker"), payload.int32("event"))


class BrokerSecret(NamedTuple):
    """/hightide/broker_secret: the key with which brokers prove themselves to each other."""

    key: bytes

    def __repr__(self) -> str:
        return "BrokerSecret(…)"  # it must not get into a log

    def encode(self) -> bytes:
        return to_json({"version": 1, "key": base64.b64encode(self.key).decode()})

    @classmethod
    def decode(cls, data: bytes, path: str = BROKER_SECRET) -> BrokerSecret:
        try:
            key = base64.b64decode(Payload.parse(data, path).text("key"), validate=True)
        except ValueError:
            key = b""
        if len(key) < _LEAST_KEY_BYTES:
            raise MalformedZnode(path, "the key is missing or too short")
        return cls(key)
