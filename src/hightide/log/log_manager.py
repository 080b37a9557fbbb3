"""All logs of a broker, spread over its log directories.

A new partition goes to the directory that holds the fewest. Every directory is locked for the
process, knows by a marker whether the last process left it in order, and keeps checkpoints of what
would otherwise have to be found out by reading: recovery points, start offsets, compaction's
progress. What is done to the logs as time goes by is in `Housekeeping`.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

from hightide.log import checkpoint
from hightide.log.checkpoint import TopicPartition
from hightide.log.disk import Disk, DiskFailed
from hightide.log.housekeeping import DELETE_SUFFIX, Housekeeping
from hightide.log.jobs import Job
from hightide.log.log import Log
from hightide.log.recovery import Known, load
from hightide.log.segment import OpenFiles
from hightide.settings import Broker, Topic
from hightide.wire.errors import ErrorCode, KafkaError

STRAY_SUFFIX = "-stray"

_MAX_NAME_BYTES = 255
_CLOSING_THREADS = 16

_log = logging.getLogger(__name__)


class LogManager:
    """The logs of one broker."""

    def __init__(
        self, disks: Sequence[Disk], settings: Broker, config_for: Callable[[str], Topic]
    ) -> None:
        self.disks = list(disks)
        self.settings = settings  # replaced when a setting changes while the broker runs
        self.config_for = config_for
        self.logs: dict[TopicPartition, Log] = {}
        # Of these the checkpoints on disk may still speak.
        self._taken_away: dict[TopicPartition, None] = {}
        self.changes = 0
        """How often a log was made or taken away."""
        self.topic_ids: dict[TopicPartition, UUID] = {}
        self.previous_epoch = -1
        """The broker epoch in which the last process closed all directories in order, or -1."""
        self.high_watermarks: dict[TopicPartition, int] = {}
        """What was known to be committed when the last process wrote it down."""
        self.files = OpenFiles(_file_limit())
        self._housekeeping = Housekeeping(self.disks, lambda: self.settings, self.logs)
        self._now_ms = 0
        self._locked: list[Disk] = []

    def lock(self) -> None:
        """Take the directories for this process, or none of them."""
        for disk in self.disks:
            if not disk.lock():
                self.unlock()
                raise DiskFailed(disk.name, "locking", "another process is using this directory")
            self._locked.append(disk)

    def unlock(self) -> None:
        while self._locked:
            self._locked.pop().unlock()

    def open(self, now_ms: int) -> None:
        """Load every log in the directories, recovering where need be."""
        self._now_ms = now_ms
        if not self._locked:
            self.lock()
        found: dict[TopicPartition, Disk] = {}
        for disk in self.disks:
            for key in _partition_directories(disk):
                if key in found:
                    name = f"{key[0]}-{key[1]}"
                    both = f"{found[key].name} and {disk.name}"
                    raise DiskFailed(name, "opening", f"it is in {both}; move one of them away")
                found[key] = disk
        epochs = {checkpoint.read_clean_shutdown(disk) for disk in self.disks}
        self.previous_epoch = epochs.pop() if len(epochs) == 1 else -1
        loading = [
            (disk, self._load(disk, [key for key, at in found.items() if at is disk]))
            for disk in self.disks
        ]
        for disk, logs in loading:
            known = checkpoint.read_topic_ids(disk)
            is_clean = checkpoint.is_clean(disk)
            for log in logs:
                self._add(log)
                key = (log.topic, log.partition)
                topic_id = checkpoint.read_topic_id(disk, log.directory)
                # After a crash the list counts, which was forced to disk; the note may be torn.
                if key in known and (topic_id is None or not is_clean):
                    self.identify(log, known[key])
                elif topic_id is not None:
                    self.topic_ids[key] = topic_id
            checkpoint.remove_clean_shutdown(disk)
        self._housekeeping.start(now_ms)

    def _load(self, disk: Disk, keys: list[TopicPartition]) -> Iterator[Log]:
        """Begin to load the logs of a directory; the loaded ones come out one by one."""
        clean = checkpoint.is_clean(disk)
        points = checkpoint.read_offsets(disk, checkpoint.RECOVERY_POINTS)
        starts = checkpoint.read_offsets(disk, checkpoint.LOG_START_OFFSETS) or {}
        cleaned = checkpoint.read_offsets(disk, checkpoint.CLEANER_OFFSETS) or {}
        self.high_watermarks |= checkpoint.read_offsets(disk, checkpoint.HIGH_WATERMARKS) or {}

        def load_one(key: TopicPartition) -> Log:
            point = (points or {}).get(key, 0)
            known = Known(
                clean,
                point,
                starts.get(key, 0),
                allows_gaps=points is None,
                high_watermark=self.high_watermarks.get(key, 0),
            )
            config = self.config_for(key[0])
            log = load(disk, *key, config, self.files, known, self._now_ms)
            log.cleaned_offset = cleaned.get(key, 0)
            log.recovery_point_written = min(point, log.recovery_point)
            # Until it has a role: what is behind may be committed or not, and nobody may take it
            # for committed, neither retention nor the next life.
            committed = max(known.high_watermark, log.start_offset)
            log.high_watermark = min(committed, log.end_offset)
            return log

        # After a clean stop there is little to read, and threads would only cost time.
        if clean or not keys:
            return map(load_one, keys)
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(self.settings.num_recovery_threads_per_data_dir, "recovery")
        loading = [pool.submit(load_one, key) for key in keys]
        pool.shutdown(wait=False)
        return (future.result() for future in loading)

    def _add(self, log: Log) -> None:
        self.logs[log.topic, log.partition] = log
        log.offsets_lowered = lambda: self._housekeeping.write_offsets(log.disk)

    def create(self, topic: str, partition: int, topic_id: UUID) -> Log:
        """A new log, in the directory with the fewest. `sync_names` makes it last."""
        if (topic, partition) in self.logs:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"{topic}-{partition} exists")
        counts = {disk.name: 0 for disk in self.disks}
        for log in self.logs.values():
            counts[log.disk.name] += 1
        disk = min(self.disks, key=lambda disk: counts[disk.name])
        directory = f"{topic}-{partition}"
        if (topic, partition) in self._taken_away:
            # What they say of the former log must not be believed of this one after a crash.
            for each in self.disks:
                self._housekeeping.write_checkpoints(each)
            self._taken_away.clear()
        disk.make_directory(directory)
        self.changes += 1
        log = Log.create(disk, topic, partition, self.config_for(topic), self.files, self._now_ms)
        self._add(log)
        self.identify(log, topic_id)
        return log

    def identify(self, log: Log, topic_id: UUID) -> None:
        """Note which topic a log belongs to."""
        checkpoint.write_topic_id(log.disk, log.directory, topic_id)
        self.topic_ids[log.topic, log.partition] = topic_id

    def delete(self, topic: str, partition: int) -> None:
        """Drop a log. Its directory gets another name at once, its bytes go with a later job."""
        log, name = self._take_away(topic, partition, DELETE_SUFFIX)
        self._housekeeping.directory_deleted(log, name, self._now_ms)

    def set_aside(self, topic: str, partition: int) -> str:
        """Take a log that belongs to no topic out of the way, and keep it under the name told."""
        return self._take_away(topic, partition, STRAY_SUFFIX)[1]

    def _take_away(self, topic: str, partition: int, suffix: str) -> tuple[Log, str]:
        self.changes += 1
        self._taken_away[topic, partition] = None
        log = self.logs.pop((topic, partition))
        topic_id = self.topic_ids.pop((topic, partition), UUID(int=0))
        self.high_watermarks.pop((topic, partition), None)
        log.failure = KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{log.directory} has been deleted"
        )
        log.reconfigure(log.config)
        log.forget(log.segments)
        # As in Kafka; the name must fit into the bytes that file systems allow.
        suffix = f"-{partition}.{topic_id.hex}{suffix}"
        name = topic[: _MAX_NAME_BYTES - len(suffix)] + suffix
        log.disk.rename(log.directory, name)
        return log, name

    def sync_names(self) -> None:
        """Force to disk which logs there are and whose they are; may be called in any thread.

        A log that is taken for that of another topic of the same name is served as that topic's.
        """
        logs, ids = dict(self.logs), dict(self.topic_ids)
        for disk in self.disks:
            own = {key: ids[key] for key, log in logs.items() if log.disk is disk and key in ids}
            checkpoint.write_topic_ids(disk, own)
            disk.sync_directory("")

    def reconfigure(self, topic: str) -> None:
        """Follow a change of the topic's settings."""
        config = self.config_for(topic)
        for (name, _), log in self.logs.items():
            if name == topic:
                log.reconfigure(config)

    def jobs(self, now_ms: int) -> Iterator[Job]:
        """The housekeeping that is due. Call it every second or so."""
        self._now_ms = now_ms
        return self._housekeeping.jobs(now_ms)

    def close(self, now_ms: int, broker_epoch: int = -1) -> None:
        """Stop in order, so that the next start has nothing to check.

        The file that says so names the broker epoch of this life, so that the cluster knows which
        of its replicas are as it left them.
        """
        self._now_ms = now_ms
        for disk in self.disks:
            try:
                if self._close_logs(disk):
                    self._housekeeping.write_checkpoints(disk)
                    checkpoint.write_clean_shutdown(disk, broker_epoch)
            except DiskFailed as failure:
                _log.error("%s", failure)
        self.unlock()
        self.logs.clear()

    def _close_logs(self, disk: Disk) -> bool:
        """Close the logs of a directory; says whether all of them are in order."""

        def close(log: Log) -> bool:
            try:
                log.close()
            except DiskFailed as failure:
                _log.error("%s", failure)
                return False
            return log.failure is None

        from concurrent.futures import ThreadPoolExecutor

        # Closing is waiting for the disk, and file systems write several files in one go.
        with ThreadPoolExecutor(_CLOSING_THREADS, "closing") as pool:
            return all(
                list(pool.map(close, [log for log in self.logs.values() if log.disk is disk]))
            )


def _partition_directories(disk: Disk) -> Iterator[TopicPartition]:
    for name, size in disk.list("").items():
        topic, _, number = name.rpartition("-")
        if size == -1 and topic and number.isdecimal():
            yield topic, int(number)


def _file_limit() -> int:
    """Half of what the process may open; the rest is for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(64, min(soft, 1 << 16) // 2)
