"""All logs of a broker, spread over its log directories.

A new partition goes to the directory that holds the fewest. Every directory is locked for the
process, knows by a marker whether the last process left it in order, and keeps checkpoints of what
would otherwise have to be found out by reading: recovery points, start offsets.

Housekeeping comes out of `jobs` as `Job`s: `run` does the slow part in any thread, `finish` swaps
the result in on the owner's thread.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from hightide.log import checkpoint
from hightide.log.checkpoint import TopicPartition
from hightide.log.disk import Disk, DiskFailed
from hightide.log.log import Log
from hightide.log.recovery import Known, load
from hightide.log.segment import OpenFiles
from hightide.settings import Broker, Topic
from hightide.wire.errors import ErrorCode, KafkaError

DELETE_SUFFIX = "-delete"

_log = logging.getLogger(__name__)


class LogStore:
    """The logs of one broker."""

    def __init__(
        self, disks: Sequence[Disk], settings: Broker, config_for: Callable[[str], Topic]
    ) -> None:
        self.disks = list(disks)
        self.settings = settings
        self.config_for = config_for
        self.logs: dict[TopicPartition, Log] = {}
        self.topic_ids: dict[TopicPartition, UUID] = {}
        self.files = OpenFiles(_file_limit())
        self._now_ms = 0

    # ---- opening

    def open(self, now_ms: int) -> None:
        """Take the directories and load every log in them, recovering where need be."""
        self._now_ms = now_ms
        for disk in self.disks:
            if not disk.lock():
                raise DiskFailed(disk.name, "locking", "another process is using this directory")
            self._open_disk(disk)

    def _open_disk(self, disk: Disk) -> None:
        clean = checkpoint.read_clean_shutdown(disk)
        recovery_points = checkpoint.read_offsets(disk, checkpoint.RECOVERY_POINTS)
        starts = checkpoint.read_offsets(disk, checkpoint.LOG_START_OFFSETS)
        found = list(_partition_directories(disk))
        for key in found:
            if key in self.logs:
                raise DiskFailed(
                    disk.name,
                    "opening",
                    f"{key[0]}-{key[1]} is also in {self.logs[key].disk.name}; "
                    "move one of the two away",
                )
            self.logs[key] = None  # type: ignore[assignment]

        def open_one(key: TopicPartition) -> Log:
            known = Known(clean, recovery_points.get(key, 0), starts.get(key, 0))
            config = self.config_for(key[0])
            return load(disk, *key, config, self.files, known, self._now_ms)

        opened = map(open_one, found)
        for key, log in zip(found, opened, strict=True):
            self._add(key, log)
            topic_id = checkpoint.read_topic_id(disk, log.directory)
            if topic_id is not None:
                self.topic_ids[key] = topic_id
        checkpoint.remove_clean_shutdown(disk)

    def _add(self, key: TopicPartition, log: Log) -> None:
        self.logs[key] = log
        log.recovery_point_lowered = lambda: self._write_recovery_points(log.disk)

    # ---- partitions

    def create(self, topic: str, partition: int, topic_id: UUID) -> Log:
        """A new log, in the directory with the fewest."""
        key = (topic, partition)
        if key in self.logs:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"{topic}-{partition} exists")
        counts = {disk.name: 0 for disk in self.disks}
        for log in self.logs.values():
            counts[log.disk.name] += 1
        disk = min(self.disks, key=lambda disk: counts[disk.name])
        directory = f"{topic}-{partition}"
        disk.make_directory(directory)
        checkpoint.write_topic_id(disk, directory, topic_id)
        log = Log.create(disk, topic, partition, self.config_for(topic), self.files, self._now_ms)
        disk.sync_directory("")
        self._add(key, log)
        self.topic_ids[key] = topic_id
        return log

    def delete(self, topic: str, partition: int) -> None:
        """Drop a log. Its directory gets another name at once, its bytes go with a later job."""
        log = self.logs.pop((topic, partition))
        topic_id = self.topic_ids.pop((topic, partition), UUID(int=0))
        for segment in log.segments:
            self.files.forget(segment)
        # As in Kafka, the new name must fit into the 255 bytes that file systems allow.
        suffix = f"-{partition}.{topic_id.hex}{DELETE_SUFFIX}"
        log.disk.rename(log.directory, topic[: 255 - len(suffix)] + suffix)
        log.disk.sync_directory("")

    def reconfigure(self, topic: str) -> None:
        """Follow a change of the topic's settings."""
        config = self.config_for(topic)
        for (name, _), log in self.logs.items():
            if name == topic:
                log.reconfigure(config)

    # ---- checkpoints

    def _logs_on(self, disk: Disk) -> Iterable[tuple[TopicPartition, Log]]:
        return ((key, log) for key, log in self.logs.items() if log.disk is disk)

    def _write_recovery_points(self, disk: Disk) -> None:
        points = {key: log.recovery_point for key, log in self._logs_on(disk)}
        checkpoint.write_offsets(disk, checkpoint.RECOVERY_POINTS, points)

    def _write_start_offsets(self, disk: Disk) -> None:
        # Only starts that the names of the segments do not already say.
        starts = {
            key: log.start_offset
            for key, log in self._logs_on(disk)
            if log.start_offset > log.segments[0].base_offset
        }
        checkpoint.write_offsets(disk, checkpoint.LOG_START_OFFSETS, starts)

    def jobs(self, now_ms: int) -> Iterator[Job]:
        self._now_ms = now_ms
        return iter(())

    def close(self, now_ms: int) -> None:
        """Stop in order, so that the next start has nothing to check."""
        self._now_ms = now_ms
        for disk in self.disks:
            clean = True
            for _, log in self._logs_on(disk):
                try:
                    log.close()
                except DiskFailed as failure:
                    _log.error("%s", failure)
                clean = clean and log.failure is None
            try:
                self._write_recovery_points(disk)
                self._write_start_offsets(disk)
                if clean:
                    checkpoint.write_clean_shutdown(disk)
            except DiskFailed as failure:
                _log.error("%s", failure)
            disk.unlock()
        self.logs.clear()


class Job:
    """A piece of housekeeping."""

    def run(self) -> None:
        """The slow part; may be called in any thread."""

    def finish(self) -> None:
        """Make the result count; called in the thread that owns the logs."""


def _partition_directories(disk: Disk) -> Iterator[TopicPartition]:
    for name, size in disk.list("").items():
        topic, dash, number = name.rpartition("-")
        if size == -1 and dash and topic and number.isdecimal():
            yield topic, int(number)


def _file_limit() -> int:
    """Half of what the process may open; the rest is for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(64, min(soft, 1 << 16) // 2)
