"""All logs of a broker, in its log directories.

A new partition goes to the directory with the fewest partitions. A process locks its directories.
Each directory has a marker file after a clean shutdown, and checkpoints that save reading the logs:
recovery points, start offsets, high watermarks, and the progress of compaction. The periodic work
on the logs is in `Housekeeping`.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

from hightide.log import checkpoint
from hightide.log.checkpoint import TopicPartition
from hightide.log.disk import Disk, DiskFailed
from hightide.log.flush import close, flush_recovered
from hightide.log.housekeeping import DELETE_SUFFIX, Housekeeping, Job
from hightide.log.log import Log
from hightide.log.recovery import CheckpointedState, load
from hightide.log.reserve import Reserve
from hightide.log.segment import OpenFiles, Segment
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
        self.settings = settings  # replaced when a dynamic setting changes
        self.config_for = config_for
        self.logs: dict[TopicPartition, Log] = {}
        # Removed logs that the checkpoints on disk may still contain.
        self._removed: dict[TopicPartition, None] = {}
        self.changes = 0
        """Counts the logs that were created, removed or opened again."""
        self.topic_ids: dict[TopicPartition, UUID] = {}
        self.other_ids: dict[TopicPartition, UUID] = {}
        """A second id of a log, where its two files disagree."""
        self.previous_epoch = -1
        """The broker epoch in which the last process shut all directories down cleanly, or -1."""
        self.high_watermarks: dict[TopicPartition, int] = {}
        """The high watermarks in the checkpoints of the last process."""
        self.files = OpenFiles(_file_limit())
        self._housekeeping = Housekeeping(self.disks, lambda: self.settings, self.logs)
        size = settings.log_dir_reserve_bytes
        self.reserves = {disk.name: Reserve(disk, size) for disk in self.disks}
        self.on_disk_failure: Callable[[Log, KafkaError], None] = lambda _log, _failure: None
        """Called when a log has failed, or could not be appended to because its disk is full."""
        self._now_ms = 0
        self._locked: list[Disk] = []

    def lock(self) -> None:
        """Lock all directories for this process, or none of them."""
        for disk in self.disks:
            if not disk.lock():
                self.unlock()
                raise DiskFailed(disk.name, "locking", "another process is using this directory")
            self._locked.append(disk)

    def unlock(self) -> None:
        while self._locked:
            self._locked.pop().unlock()

    def open(self, now_ms: int) -> None:
        """Load every log in the directories, with recovery where necessary."""
        self._now_ms = now_ms
        if not self._locked:
            self.lock()
        for reserve in self.reserves.values():
            reserve.release_if_short()
        found: dict[TopicPartition, Disk] = {}
        for disk in self.disks:
            for key in _partition_directories(disk):
                if key in found:
                    name = f"{key[0]}-{key[1]}"
                    both = f"{found[key].name} and {disk.name}"
                    raise DiskFailed(name, "opening", f"it is in {both}; remove one of the two")
                found[key] = disk
        epochs = {checkpoint.read_clean_shutdown(disk) for disk in self.disks}
        self.previous_epoch = epochs.pop() if len(epochs) == 1 else -1
        loading = [
            (disk, self._load(disk, [key for key, at in found.items() if at is disk]))
            for disk in self.disks
        ]
        for disk, logs in loading:
            topic_ids = checkpoint.read_topic_ids(disk)
            is_clean = checkpoint.is_clean(disk)
            for log in logs:
                self._add(log)
                key = (log.topic, log.partition)
                topic_id = checkpoint.read_topic_id(disk, log.directory)
                # After a crash the checkpoint counts, which was synced; partition.metadata may be
                # torn.
                if topic_id is not None and topic_ids.get(key, topic_id) != topic_id:
                    # One of the two files is damaged, or old; the cluster knows which.
                    other = topic_id if not is_clean else topic_ids[key]
                    self.topic_ids[key] = topic_id if is_clean else topic_ids[key]
                    self.other_ids[key] = other
                elif key in topic_ids and (topic_id is None or not is_clean):
                    self.identify(log, topic_ids[key])
                elif topic_id is not None:
                    self.topic_ids[key] = topic_id
            checkpoint.remove_clean_shutdown(disk)
        self._housekeeping.start(now_ms)

    def _load(self, disk: Disk, keys: list[TopicPartition]) -> Iterator[Log]:
        """Begin to load the logs of a directory; yield them one by one."""
        clean = checkpoint.is_clean(disk)
        points = checkpoint.read_offsets(disk, checkpoint.RECOVERY_POINTS)
        starts = checkpoint.read_offsets(disk, checkpoint.LOG_START_OFFSETS) or {}
        cleaned = checkpoint.read_offsets(disk, checkpoint.CLEANER_OFFSETS) or {}
        self.high_watermarks |= checkpoint.read_offsets(disk, checkpoint.HIGH_WATERMARKS) or {}

        def load_one(key: TopicPartition) -> Log:
            point = (points or {}).get(key, 0)
            state = CheckpointedState(
                clean,
                point,
                starts.get(key, 0),
                allows_gaps=points is None,
                high_watermark=self.high_watermarks.get(key, 0),
                cleaned_offset=cleaned.get(key, 0),
            )
            config = self.config_for(key[0])
            log = load(disk, *key, config, self.files, state, self._now_ms)
            if not clean:
                flush_recovered(log)
            log.recovery_point_written = min(point, log.recovery_point)
            # Until the replica is leader or follower, only records before the checkpointed high
            # watermark count as committed, both for retention and for the next checkpoint.
            committed = max(state.high_watermark, log.start_offset)
            log.high_watermark = min(committed, log.end_offset)
            return log

        # After a clean shutdown there is little to read, and threads would only cost time.
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
        log.on_disk_failure = self._disk_failed

    def _disk_failed(self, log: Log, failure: KafkaError) -> None:
        self.on_disk_failure(log, failure)

    def create(self, topic: str, partition: int, topic_id: UUID) -> Log:
        """Create a log in the directory with the fewest logs. `sync_names` makes it durable."""
        if (topic, partition) in self.logs:
            raise KafkaError(
                ErrorCode.TOPIC_ALREADY_EXISTS, f"the log {topic}-{partition} exists already"
            )
        counts = {disk.name: 0 for disk in self.disks}
        for log in self.logs.values():
            counts[log.disk.name] += 1
        disk = min(self.disks, key=lambda disk: counts[disk.name])
        directory = f"{topic}-{partition}"
        if (topic, partition) in self._removed:
            # After a crash, checkpoints of the old log must not be used for the new one.
            for log_disk in self.disks:
                self._housekeeping.write_checkpoints(log_disk)
            self._removed.clear()
        disk.make_directory(directory)
        self.changes += 1
        log = Log.create(disk, topic, partition, self.config_for(topic), self.files, self._now_ms)
        self._add(log)
        self.identify(log, topic_id)
        return log

    def identify(self, log: Log, topic_id: UUID) -> None:
        """Record the topic id of a log."""
        checkpoint.write_topic_id(log.disk, log.directory, topic_id)
        self.topic_ids[log.topic, log.partition] = topic_id

    def delete(self, topic: str, partition: int) -> None:
        """Delete a log. Its directory is renamed at once, and removed by a later job."""
        log, name = self._remove(topic, partition, DELETE_SUFFIX)
        self._housekeeping.directory_deleted(log, name, self._now_ms)

    def set_aside(self, topic: str, partition: int) -> str:
        """Rename the directory of a stray log, which belongs to no topic; return its new name."""
        return self._remove(topic, partition, STRAY_SUFFIX)[1]

    def _remove(self, topic: str, partition: int, suffix: str) -> tuple[Log, str]:
        self.changes += 1
        self._removed[topic, partition] = None
        log = self.logs.pop((topic, partition))
        topic_id = self.topic_ids.pop((topic, partition), UUID(int=0))
        self.high_watermarks.pop((topic, partition), None)
        log.failure = log.refusal = KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the log {log.directory} has been deleted"
        )
        log.reconfigure(log.config)
        log.segments.close_files(log.segments)
        # The names are Kafka's, cut to the length that file systems allow.
        suffix = f"-{partition}.{topic_id.hex}{suffix}"
        name = topic[: _MAX_NAME_BYTES - len(suffix)] + suffix
        log.disk.rename(log.directory, name)
        return log, name

    def may_reopen(self, log: Log) -> bool:
        """Say whether a failed log is still in use, and no job works on its files."""
        in_use = self.logs.get((log.topic, log.partition)) is log
        return in_use and not self._housekeeping.works_on(log)

    def reopened(self, log: Log, opened: Log) -> None:
        """Put a log that was opened again (`reopen`) in the place of the one that failed."""
        self.changes += 1
        self._add(opened)
        opened.reconfigure(self.config_for(opened.topic))
        log.segments.close_files(log.segments)
        if opened.committed_offset < log.committed_offset:
            opened.offsets_lowered()

    def sync_names(self) -> None:
        """Force the directory names and topic ids of all logs to disk. May be called in any thread.

        Without the topic id, a log would be served for a new topic of the same name.
        """
        logs, ids = dict(self.logs), dict(self.topic_ids)
        for disk in self.disks:
            here = {key: ids[key] for key, log in logs.items() if log.disk is disk and key in ids}
            checkpoint.write_topic_ids(disk, here)
            disk.sync_directory("")

    def log_of(self, segment: Segment) -> Log | None:
        """Return the log that a segment is part of."""
        topic, _, number = segment.directory.rpartition("-")
        log = self.logs.get((topic, int(number)))
        return log if log is not None and segment in log.segments else None

    def reconfigure(self, topic: str) -> None:
        """Apply changed settings of a topic to its logs."""
        config = self.config_for(topic)
        for (name, _), log in self.logs.items():
            if name == topic:
                log.reconfigure(config)

    def jobs(self, now_ms: int) -> Iterator[Job]:
        """Return the housekeeping jobs that are due. Call it about every second."""
        self._now_ms = now_ms
        return self._housekeeping.jobs(now_ms)

    def close(self, now_ms: int, broker_epoch: int = -1) -> None:
        """Shut down cleanly, so that the next start needs no recovery.

        The marker file holds the broker epoch. The next start reports it to the cluster, which so
        knows that the replicas lost nothing since that epoch.
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
        """Close the logs of a directory; return whether all of them succeeded."""

        def close_log(log: Log) -> bool:
            try:
                close(log)
            except DiskFailed as failure:
                _log.error("%s", failure)
                return False
            return log.failure is None

        from concurrent.futures import ThreadPoolExecutor

        # Closing mostly waits for the disk, and file systems sync several files at once.
        with ThreadPoolExecutor(_CLOSING_THREADS, "closing") as pool:
            return all(
                list(pool.map(close_log, [log for log in self.logs.values() if log.disk is disk]))
            )


def _partition_directories(disk: Disk) -> Iterator[TopicPartition]:
    for name, size in disk.list("").items():
        topic, _, number = name.rpartition("-")
        if size == -1 and topic and number.isdecimal():
            yield topic, int(number)


def _file_limit() -> int:
    """Return half of the process's file descriptors; the others are for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(64, min(soft, 1 << 16) // 2)
