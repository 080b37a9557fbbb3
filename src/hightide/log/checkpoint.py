"""Kafka's small text files: offset checkpoints, partition.metadata, meta.properties.

A checkpoint is a version, a count and that many lines. It is replaced atomically. Checkpoints only
save work: a damaged one is reported and treated as missing, and where a checkpoint contradicts the
log, the log is right.
"""

from __future__ import annotations

import json
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from uuid import UUID

from hightide.log.disk import Disk

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
TOPIC_IDS = "topic-id-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"

_log = logging.getLogger(__name__)

TopicPartition = tuple[str, int]


def encode_lines(lines: Iterable[str]) -> bytes:
    """Encode a checkpoint of version 0."""
    body = list(lines)
    return "".join(f"{line}\n" for line in ("0", str(len(body)), *body)).encode()


def decode_lines(data: bytes) -> list[list[str]]:
    """Return the fields of each line. Raise ValueError if `data` is not a checkpoint."""
    lines = data.decode().split("\n")
    if len(lines) < 3 or lines[0].strip() != "0":
        raise ValueError(f"its version is {lines[0]!r}, not 0")
    count = int(lines[1])
    if len(lines) - 3 != count or lines[-1]:
        raise ValueError(f"it has {len(lines) - 3} lines, but its count is {count}")
    return [line.split(" ") for line in lines[2:-1]]


def read_offsets(disk: Disk, name: str) -> dict[TopicPartition, int] | None:
    """Return the offsets of a checkpoint; None if it is missing or damaged."""
    if not disk.exists(name):
        return None
    try:
        return {
            (topic, int(partition)): int(offset)
            for topic, partition, offset in decode_lines(disk.read_file(name))
        }
    except ValueError as error:
        _log.warning("ignoring the damaged checkpoint %s/%s: %s", disk.name, name, error)
        return None


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return encode_lines(
        f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()
    )


def write_offsets(disk: Disk, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    disk.replace(name, encode_offsets(offsets))


def is_clean(disk: Disk) -> bool:
    """Say whether the last process that used this directory shut down cleanly."""
    return disk.exists(CLEAN_SHUTDOWN)


def read_clean_shutdown(disk: Disk) -> int:
    """Return the broker epoch of the last clean shutdown of this directory.

    -1 if there was no clean shutdown, or no broker epoch: then records may be missing that other
    replicas count on.
    """
    if not disk.exists(CLEAN_SHUTDOWN):
        return -1
    try:
        return int(json.loads(disk.read_file(CLEAN_SHUTDOWN))["brokerEpoch"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        _log.warning("ignoring the damaged file %s/%s: %s", disk.name, CLEAN_SHUTDOWN, error)
        return -1


def write_clean_shutdown(disk: Disk, broker_epoch: int) -> None:
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    disk.replace(CLEAN_SHUTDOWN, content.encode())


def remove_clean_shutdown(disk: Disk) -> None:
    disk.remove(CLEAN_SHUTDOWN)
    disk.sync_directory("")


def topic_id_text(topic_id: UUID) -> str:
    """Return Kafka's text form of a topic id: URL-safe base64 without padding, 22 characters."""
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def parse_topic_id(text: str) -> UUID:
    return UUID(bytes=urlsafe_b64decode(text + "=="))


def read_topic_id(disk: Disk, directory: str) -> UUID | None:
    """Return the topic id in partition.metadata; None if it is missing or damaged."""
    path = f"{directory}/{PARTITION_METADATA}"
    if not disk.exists(path):
        return None
    try:
        lines = disk.read_file(path).decode().splitlines()
        fields = dict(line.split(": ", 1) for line in lines if line)
        if fields["version"] != "0":
            raise ValueError(f"its version is {fields['version']}, not 0")
        return parse_topic_id(fields["topic_id"])
    except (ValueError, KeyError) as error:
        _log.warning("ignoring the damaged file %s/%s: %s", disk.name, path, error)
        return None


def write_topic_id(disk: Disk, directory: str, topic_id: UUID) -> None:
    """Write partition.metadata without a sync. `write_topic_ids` syncs the ids of many partitions
    at once."""
    text = f"version: 0\ntopic_id: {topic_id_text(topic_id)}"
    disk.create(f"{directory}/{PARTITION_METADATA}").append(text.encode())


def read_topic_ids(disk: Disk) -> dict[TopicPartition, UUID]:
    """Return the topic ids of all partitions in a directory, for those without a valid
    partition.metadata after a crash."""
    if not disk.exists(TOPIC_IDS):
        return {}
    try:
        return {
            (topic, int(partition)): parse_topic_id(text)
            for topic, partition, text in decode_lines(disk.read_file(TOPIC_IDS))
        }
    except ValueError as error:
        _log.warning("ignoring the damaged checkpoint %s/%s: %s", disk.name, TOPIC_IDS, error)
        return {}


def write_topic_ids(disk: Disk, ids: Mapping[TopicPartition, UUID]) -> None:
    lines = (f"{topic} {number} {topic_id_text(id_)}" for (topic, number), id_ in ids.items())
    disk.replace(TOPIC_IDS, encode_lines(lines))


def read_meta_properties(disk: Disk) -> dict[str, str] | None:
    """Return the meta.properties of a log directory (cluster.id, broker.id, ...), or None."""
    if not disk.exists(META_PROPERTIES):
        return None
    lines = (line.strip() for line in disk.read_file(META_PROPERTIES).decode().splitlines())
    return {
        name.strip(): value.strip()
        for name, _, value in (line.partition("=") for line in lines if line and line[0] != "#")
    }


def write_meta_properties(disk: Disk, properties: Mapping[str, str]) -> None:
    text = "".join(f"{name}={value}\n" for name, value in {"version": "0", **properties}.items())
    disk.replace(META_PROPERTIES, text.encode())
