"""The transaction coordinator of one partition of `__transaction_state`, in one leader epoch.

    request ──▶ TransactionCoordinator ──▶ answer                     nothing to write
                                  └──▶ write ──▶ CoordinatorLog ──▶ committed ──▶ answer, markers
                                                        └──▶ not yet ──▶ pending, with a timeout

In a partition with one replica a record is committed at once, and so is the answer: `carry_out`
returns either the answer or an awaitable of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from hightide.broker.coordinator_log import CoordinatorLog, CoordinatorLogClosed
from hightide.client.retry import Backoff
from hightide.core.controller.cluster_state import Partition
from hightide.core.transactions.transaction import Transaction
from hightide.core.transactions.transaction_coordinator import (
    Answer,
    Changes,
    Limits,
    TransactionCoordinator,
    Write,
    abort_of,
)
from hightide.event_log import record
from hightide.wire.batch import BatchHeader, build, records
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError
from hightide.wire.records.transaction_state import (
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

if TYPE_CHECKING:
    from hightide.broker.transactions.marker_delivery import MarkerDelivery
    from hightide.core.transactions.transaction_coordinator import Ending

log = logging.getLogger(__name__)

_LOAD_AGAIN_S = 1.0
# Errors for a moment after a failover; the client retries.
_TRANSIENT = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER)
_NOT_COORDINATOR = Answer(ErrorCode.NOT_COORDINATOR)


class _PendingRequest:
    """A request that waits for a write; the answer may come before anything awaits it."""

    __slots__ = ("answer", "future")

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.future: asyncio.Future[Answer] | None = None

    def reply(self, answer: Answer) -> None:
        self.answer = answer
        if self.future is not None and not self.future.done():
            self.future.set_result(answer)


class TransactionPartition:
    """A coordinator with its log, its timer and its pending requests."""

    def __init__(
        self,
        coordinator_log: CoordinatorLog,
        marker_delivery: MarkerDelivery,
        limits: Limits,
        now_ms: Callable[[], int],
        timeout_ms: Callable[[], int],
        count_ids: Callable[[], int] | None = None,
    ) -> None:
        self.coordinator_log = coordinator_log
        self.coordinator = TransactionCoordinator(coordinator_log.epoch, limits, count_ids)
        self._count_ids = count_ids
        self._marker_delivery = marker_delivery
        self._limits = limits
        self._now_ms = now_ms
        self._timeout_ms = timeout_ms
        self._pending: dict[Write, _PendingRequest] = {}
        self._watchers: dict[str, list[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._loading = asyncio.get_running_loop().create_task(self._load())

    def __repr__(self) -> str:
        return f"<TransactionPartition {self._name} in leader epoch {self.coordinator_log.epoch}>"

    @property
    def _name(self) -> str:
        return f"{self.coordinator_log.replica.topic}-{self.coordinator_log.replica.partition}"

    # -- loading ---------------------------------------------------------------------------

    async def _load(self) -> None:
        backoff = Backoff.every(_LOAD_AGAIN_S)
        while not self.coordinator_log.is_closed:
            try:
                await self.coordinator_log.replay(self._replay)
            except CoordinatorLogClosed:
                return
            except Exception:
                # Until a retry succeeds, clients get COORDINATOR_LOAD_IN_PROGRESS.
                log.exception("%s: loading failed, retrying", self._name)
                epoch = self.coordinator_log.epoch
                self.coordinator = TransactionCoordinator(epoch, self._limits, self._count_ids)
                await backoff.pause()
                continue
            self._finish_loading()
            return

    def _replay(self, header: BatchHeader, view: memoryview) -> None:
        if header.is_control:
            return
        for found in records(view):
            try:
                transactional_id = None if found.key is None else decode_key(found.key)
                if transactional_id is not None:
                    value = None if found.value is None else decode_value(found.value)
                    known = None if value is None else Transaction.of(value)
                    self.coordinator.apply(transactional_id, known)
            except Corrupt as damage:
                log.error("%s: skipped offset %d: %s", self._name, found.offset, damage)

    def _finish_loading(self) -> None:
        """Complete the transactions that the last coordinator was ending."""
        followed = self.coordinator.loaded(self._now_ms())
        if known := len(self.coordinator.transactions):
            epoch = self.coordinator_log.epoch
            log.info("%s: loaded %d transactional ids in leader epoch %d", self._name, known, epoch)
        for changes in followed:
            self._follow(changes)
        self.coordinator_log.settle()
        self._set_timer()

    def configured(self, limits: Limits) -> None:
        self._limits = limits
        self.coordinator.configured(limits)

    # -- requests --------------------------------------------------------------------------

    def carry_out(self, changes: Changes) -> Answer | Awaitable[Answer]:
        """Carry out the coordinator's decision about a request; return its answer, now or later."""
        write = changes.write
        if write is None:
            assert changes.answer is not None
            return changes.answer
        request = self._pending[write] = _PendingRequest()
        self._write(write)
        self.coordinator_log.settle()
        return self._wait(write, request) if request.answer is None else request.answer

    async def _wait(self, write: Write, request: _PendingRequest) -> Answer:
        if request.answer is not None:
            return request.answer
        request.future = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._timeout_ms() / 1000):
                return await request.future
        except TimeoutError:
            self._pending.pop(write, None)
            delayed = self.coordinator.write_delayed(write).answer
            return delayed or _NOT_COORDINATOR

    async def changed(self, transactional_id: str, timeout_s: float) -> None:
        """Return when the state of a transactional id has changed, or at the timeout."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watchers = self._watchers.setdefault(transactional_id, [])
        watchers.append(future)
        await asyncio.wait([future], timeout=timeout_s)
        if not future.done():
            watchers.remove(future)

    def _wake_watchers(self, transactional_id: str) -> None:
        for future in self._watchers.pop(transactional_id, ()):
            future.set_result(None)

    # -- writes ----------------------------------------------------------------------------

    def _follow(self, changes: Changes) -> None:
        if changes.ending is not None:
            self._marker_delivery.add(changes.ending, self)
        if changes.write is not None:
            self._write(changes.write)

    def _write(self, write: Write) -> None:
        now_ms = self._now_ms()
        value = None if write.after is None else encode_value(write.after.to_value())
        batch = build([(0, now_ms, encode_key(write.transactional_id), value, ())])
        try:
            self.coordinator_log.append(batch, now_ms, lambda _base_offset: self._written(write))
        except KafkaError as error:
            if error.code not in _TRANSIENT:
                self.coordinator_log.replica.report(error, now_ms)
            self._answer(write, self.coordinator.write_failed(write, error.code, now_ms))
            self._set_timer()

    def _written(self, write: Write) -> None:
        changes = self.coordinator.written(write, self._now_ms())
        if (event := abort_of(write)) is not None:
            record(log, event)
        self._answer(write, changes)
        self._follow(changes)
        if self._watchers:
            self._wake_watchers(write.transactional_id)

    def _answer(self, write: Write, changes: Changes) -> None:
        request = self._pending.pop(write, None)
        if request is not None:
            request.reply(changes.answer or _NOT_COORDINATOR)

    def marked(self, ending: Ending, partitions: Iterable[Partition]) -> None:
        """Report that partitions have the marker of an ending transaction, or are deleted."""
        self._follow(self.coordinator.marked(ending, partitions, self._now_ms()))
        self.coordinator_log.settle()

    def is_ending(self, ending: Ending) -> bool:
        """Whether some markers of the transaction are still missing."""
        return self.coordinator.is_ending(ending)

    def fenced(self, ending: Ending) -> None:
        """Give up a transaction: one of its partitions knows a newer coordinator."""
        self.coordinator.fenced(ending)

    # -- time ------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        at_ms = self.coordinator.deadline_ms()
        if at_ms is None or self.coordinator_log.is_closed:
            return
        if self._timer is not None:
            if self._timer_ms <= at_ms:
                return
            self._timer.cancel()
        wait_s = max(0, at_ms - self._now_ms()) / 1000
        self._timer_ms = at_ms
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        for write in self.coordinator.tick(self._now_ms()):
            self._write(write)
        self.coordinator_log.settle()
        self._set_timer()

    # -- resigning -------------------------------------------------------------------------

    def resign(self) -> None:
        """Refuse all pending requests: this broker does not lead the partition in this epoch."""
        self.coordinator_log.close()
        self._loading.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._marker_delivery.drop(self.coordinator.endings)
        pending, self._pending = self._pending, {}
        for request in pending.values():
            request.reply(_NOT_COORDINATOR)
        for transactional_id in list(self._watchers):
            self._wake_watchers(transactional_id)
