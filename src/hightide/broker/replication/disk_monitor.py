"""Watches the disks of the log directories, and what their failures mean for the replicas.

    an append finds no space ─▶ disk FULL ─▶ its logs refuse appends and serve reads
                                             followers leave the ISR, leaders hand over in time
    a probe has space again ──▶ disk WORKS ─▶ appends are accepted, the replicas recover
    a file operation fails ───▶ log failed ─▶ replica OFFLINE: another replica leads at once
    a probe fails ────────────▶ disk FAILED ─▶ all of its logs fail

`log/disk_state.py` decides; this module reads, probes and carries out. The controller learns of
failed replicas through `replica_failures.py`.

A log that has failed is opened again through recovery (`log/reopen.py`) as soon as its replica does
not lead, and after each attempt that fails, later. If recovery has lost records, the replica is
DAMAGED until the controller does not count on these records any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_fetcher import ReplicaFetchers
from hightide.broker.replication.replica_manager import ReplicaManager
from hightide.core.partition.state import FailureKind
from hightide.event_log import record
from hightide.log.disk import Disk, DiskFailed
from hightide.log.disk_state import DiskChanged, DiskState, DiskStatus
from hightide.log.log import Log
from hightide.log.log_manager import LogManager
from hightide.log.reopen import reopen
from hightide.log.reserve import Reserve
from hightide.settings import Broker as Settings
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError

log = logging.getLogger(__name__)

_EVERY_S = 1.0
_EVERY_WHEN_FAILED_S = 0.25
_LOW_BYTES = 1 << 20
_PROBE = ".probe"
_PROBE_BYTES = 64 * 1024
_FIRST_RETRY_MS = 500
_LONGEST_RETRY_MS = 30_000


class WatchedDisk:
    """A log directory, and the state of its disk."""

    def __init__(self, disk: Disk, reserve: Reserve) -> None:
        self.disk = disk
        self.reserve = reserve
        self.state = DiskState()
        self.applied = DiskStatus.WORKS

    def probe(self) -> bool:
        """Write, sync and remove a file; return whether there is space for appends."""
        self.disk.replace(_PROBE, bytes(_PROBE_BYTES))
        self.disk.remove(_PROBE)
        return self.reserve.has_room()

    @property
    def is_low(self) -> bool:
        _, free = self.disk.space()
        return 0 <= free < min(_LOW_BYTES, self.reserve.size)


class DiskMonitor:
    """Watches all disks of a broker."""

    def __init__(
        self,
        broker_id: int,
        log_manager: LogManager,
        replica_manager: ReplicaManager,
        fetchers: ReplicaFetchers,
        settings: Callable[[], Settings],
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._broker_id = broker_id
        self._log_manager = log_manager
        self._replica_manager = replica_manager
        self._failures = replica_manager.failures
        self._fetchers = fetchers
        self._settings = settings
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self._disks = {
            disk.name: WatchedDisk(disk, log_manager.reserves[disk.name])
            for disk in log_manager.disks
        }
        # When to open a failed log again, and the pause after the next failure.
        self._retries: dict[Replica, tuple[int, int]] = {}
        self._lost_records: dict[Replica, None] = {}
        self._has_work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        log_manager.on_disk_failure = self.disk_failed

    def statuses(self) -> list[tuple[Disk, DiskStatus]]:
        """Return the disks, and what can be done with each."""
        return [(watched.disk, watched.applied) for watched in self._disks.values()]

    @property
    def failed_count(self) -> int:
        return sum(status is DiskStatus.FAILED for _, status in self.statuses())

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop watching. Logs that fail from now on are only logged."""
        self._log_manager.on_disk_failure = lambda _log, _failure: None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # -- failures --------------------------------------------------------------------------

    def disk_failed(self, log_: Log, failure: KafkaError) -> None:
        """A log could not be appended to because its disk is full, or has failed."""
        watched = self._disks[log_.disk.name]
        if log_.failure is None:
            watched.state.refused(failure.detail, self._monotonic_ms())
            self._apply(watched)
        else:
            watched.state.suspected(self._monotonic_ms())
            replica = self._replica_manager.get(log_.topic.encode(), log_.partition)
            if replica is not None and replica.log is log_:
                self._failures.failed(replica, FailureKind.OFFLINE, failure.detail)
        self._has_work.set()

    def read_failed(self, path: str, failure: DiskFailed) -> None:
        """A file of a log could not be read while it was sent."""
        for log_ in self._log_manager.logs.values():
            if path.startswith(f"{log_.disk.name}/{log_.directory}/"):
                log_.disk_failed(failure)
                return

    # -- the loop --------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                for watched in self._disks.values():
                    await self._check(watched)
                await self._reopen_failed()
                self._settle_losses()
            except Exception:
                log.exception("cannot check the disks; they are checked again")
            self._has_work.clear()
            works = all(w.state.status is DiskStatus.WORKS for w in self._disks.values())
            pause_s = _EVERY_S if works and not self._retries else _EVERY_WHEN_FAILED_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._has_work.wait()
            except TimeoutError:
                pass

    async def _check(self, watched: WatchedDisk) -> None:
        state = watched.state
        if state.status is DiskStatus.WORKS:
            try:
                if not watched.reserve.is_there:
                    await asyncio.to_thread(watched.reserve.restore)
                if watched.is_low:
                    state.refused(f"{watched.disk.name} is full", self._monotonic_ms())
            except DiskFailed as failure:
                if failure.harmless:
                    state.refused(failure.detail, self._monotonic_ms())
                else:
                    state.suspected(self._monotonic_ms())
        if state.is_probe_due(self._monotonic_ms()):
            try:
                has_space = await asyncio.to_thread(watched.probe)
            except DiskFailed as failure:
                state.probe_failed(failure.detail, failure.harmless, self._monotonic_ms())
            else:
                state.probed(has_space, self._monotonic_ms())
        self._apply(watched)

    def _apply(self, watched: WatchedDisk) -> None:
        """Carry out what the state of a disk means for its logs and replicas."""
        status = watched.state.status
        if status is not watched.applied:
            record(log, DiskChanged(watched.disk.name, status, watched.state.why))
        before, watched.applied = watched.applied, status
        match status:
            case DiskStatus.FULL:
                self._apply_full(watched)
            case DiskStatus.FAILED:
                for log_ in self._logs_on(watched):
                    if log_.failure is None:
                        log_.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, watched.state.why))
            case DiskStatus.WORKS if before is DiskStatus.FULL:
                for log_ in self._logs_on(watched):
                    log_.set_full(None)
                for replica in self._replicas_on(watched):
                    if replica.failure is not None and replica.failure.kind is FailureKind.FULL:
                        self._failures.recovered(replica)

    def _apply_full(self, watched: WatchedDisk) -> None:
        why = f"the disk of {watched.disk.name} is full: free space there"
        refusal = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, why)
        for log_ in self._logs_on(watched):
            if log_.refusal is None:
                log_.set_full(refusal)
        try:
            watched.reserve.release()
        except DiskFailed as failure:
            log.error("%s", failure)
        timeout_ms = self._settings().log_dir_full_timeout_ms
        hand_over = watched.state.leaders_hand_over(timeout_ms, self._monotonic_ms())
        for replica in self._replicas_on(watched):
            if replica.failure is None and (replica.leader is None or hand_over):
                self._failures.failed(replica, FailureKind.FULL, why)

    def _logs_on(self, watched: WatchedDisk) -> Iterator[Log]:
        return (log_ for log_ in self._log_manager.logs.values() if log_.disk is watched.disk)

    def _replicas_on(self, watched: WatchedDisk) -> Iterator[Replica]:
        replicas = list(self._replica_manager)
        return (replica for replica in replicas if replica.log.disk is watched.disk)

    # -- opening failed logs again ---------------------------------------------------------

    async def _reopen_failed(self) -> None:
        failed = [replica for replica in self._replica_manager if replica.log.failure is not None]
        self._retries = {r: self._retries[r] for r in failed if r in self._retries}
        for replica in failed:
            log_, failure = replica.log, replica.log.failure
            if replica.failure is None and failure is not None:  # it failed when it was loaded
                self._failures.failed(replica, FailureKind.OFFLINE, failure.detail)
            due_ms, pause_ms = self._retries.setdefault(replica, (0, _FIRST_RETRY_MS))
            if self._monotonic_ms() >= due_ms and self._may_reopen(replica, log_):
                await self._reopen(replica, log_)
                next_ms = self._monotonic_ms() + pause_ms
                self._retries[replica] = (next_ms, min(2 * pause_ms, _LONGEST_RETRY_MS))

    async def _reopen(self, replica: Replica, log_: Log) -> None:
        files, now_ms = self._log_manager.files, self._now_ms()
        try:
            opened = await asyncio.to_thread(reopen, log_, files, now_ms)
            if self._may_reopen(replica, log_):
                self._reopened(replica, log_, opened)
        except (DiskFailed, Corrupt) as error:
            log.warning("cannot open %s again yet: %s", log_.directory, error)

    def _may_reopen(self, replica: Replica, log_: Log) -> bool:
        return (
            replica.leader is None
            and replica.log is log_
            and self._disks[log_.disk.name].state.status is not DiskStatus.FAILED
            and self._log_manager.may_reopen(log_)
        )

    def _reopened(self, replica: Replica, log_: Log, opened: Log) -> None:
        self._log_manager.reopened(log_, opened)
        replica.reopened(opened)
        self._fetchers.refollow(replica)
        if opened.failure is not None:
            return
        lost = log_.end_offset - opened.end_offset
        log.info("%s is open again, up to offset %d", opened.directory, opened.end_offset)
        if lost > 0:
            why = f"{lost} records at the end of the log were lost with the disk's failure"
            self._failures.failed(replica, FailureKind.DAMAGED, why)
            self._failures.copying(replica)
            self._lost_records[replica] = None
        else:
            self._failures.recovered(replica)
        self._apply(self._disks[opened.disk.name])
        self._replica_manager.on_log(replica)

    def _settle_losses(self) -> None:
        """The controller does not take a replica for complete any more that has lost records."""
        for replica in list(self._lost_records):
            state = replica.state
            if replica.log.damage:
                continue  # it is repaired first
            if replica.leader is not None or (
                state is not None and self._broker_id not in (*state.isr, *state.elr)
            ):
                del self._lost_records[replica]
                self._failures.recovered(replica)
