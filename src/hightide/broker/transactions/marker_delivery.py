"""Delivers transaction markers to the leaders of their partitions, until all have them.

    add ──▶ PendingMarkers ──▶ this broker leads: written at once
                          └──▶ MarkerSender ──▶ another broker ──▶ response ──▶ marked

**No late copy.**  A transaction is complete only when no copy of its markers can still be written:
a late copy would end the producer's next transaction.  So a request without a response leaves its
transactions in doubt, even if their markers reach all partitions another way, until the broker that
did not respond has confirmed a newer connection or has another broker epoch.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from hightide.broker.handlers.write_txn_markers import write_markers
from hightide.broker.transactions.marker_sender import MarkerSender
from hightide.broker.transactions.transaction_partition import TransactionPartition
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.retry import Backoff
from hightide.core.controller.cluster_state import Partition
from hightide.core.transactions.pending_markers import PendingMarkers, Progress
from hightide.core.transactions.transaction_coordinator import Ending
from hightide.wire.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_RETRY_S = 0.1


class MarkerDelivery:
    """The pending markers of a broker, and the senders to the other brokers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._pending = PendingMarkers()
        self._owners: dict[Ending, TransactionPartition] = {}
        self._senders: dict[int, MarkerSender] = {}
        self._numbers = itertools.count(1)
        # The partitions of transactions in doubt that already have the marker.
        self._marked_in_doubt: dict[Ending, set[Partition]] = {}
        self._unreachable: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_woken = False
        self._is_stopped = False

    def add(self, ending: Ending, owner: TransactionPartition) -> None:
        self._owners[ending] = owner
        self._pending.add(ending)
        self._wake()

    def drop(self, endings: Iterable[Ending]) -> None:
        """Drop markers of a partition that resigns; its next coordinator sends them again."""
        endings = list(endings)
        self._pending.drop(endings)
        for ending in endings:
            self._forget(ending)

    def cluster_changed(self) -> None:
        """Retire the senders to brokers with another broker epoch, and find the new leaders."""
        for sender in list(self._senders.values()):
            if self._broker.metadata_image.live.get(sender.broker_id) != sender.epoch:
                self._retire(sender)
        if self._owners:
            self._wake()

    async def stop(self) -> None:
        self._is_stopped = True
        for sender in self._senders.values():
            sender.close()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- sending ---------------------------------------------------------------------------

    def _wake(self) -> None:
        """Send soon: the markers of one turn of the event loop go together."""
        if not self._is_woken and not self._is_stopped:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._is_woken = False
        if self._is_stopped:
            return
        due = self._pending.due(self._leader_of, self._broker.monotonic_ms())
        for progress in due.progress:
            self._report(progress)
        for broker_id, request in due.requests.items():
            if broker_id == self._broker.broker_id:
                self._write_locally(request)
            else:
                self._start(self._deliver(broker_id, request))
        self._set_timer()

    def _leader_of(self, partition: Partition) -> int | None:
        image = self._broker.metadata_image
        state = image.state(*partition)
        return None if state is None else image.leader(state)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at_ms = self._pending.deadline_ms()
        if at_ms is not None:
            wait_s = max(0, at_ms - self._broker.monotonic_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._wake)

    # -- this broker -----------------------------------------------------------------------

    def _write_locally(self, request: WriteTxnMarkersRequest) -> None:
        """Write the markers of partitions that this broker leads: no copy of these can be late."""
        try:
            result = write_markers(self._broker, request)
        except Exception:
            self._local_write_failed(self._broker.broker_id)
            return
        if isinstance(result, WriteTxnMarkersResponse):
            self._answered(self._broker.broker_id, result)
        else:
            self._start(self._await_local_write(result))

    async def _await_local_write(self, result: Awaitable[WriteTxnMarkersResponse]) -> None:
        try:
            response = await result
        except Exception:
            self._local_write_failed(self._broker.broker_id)
            return
        self._answered(self._broker.broker_id, response)

    def _local_write_failed(self, broker_id: int) -> None:
        log.exception("transaction markers could not be written on broker %d", broker_id)
        self._pending.unanswered(broker_id, self._broker.monotonic_ms())
        self._wake()

    def _answered(self, broker_id: int, response: WriteTxnMarkersResponse) -> None:
        for progress in self._pending.answered(broker_id, response, self._broker.monotonic_ms()):
            self._report(progress)
        self._wake()

    # -- other brokers ---------------------------------------------------------------------

    async def _deliver(self, broker_id: int, request: WriteTxnMarkersRequest) -> None:
        sender = self._sender_for(broker_id)
        try:
            if sender is None:
                raise ConnectionFailed(f"broker {broker_id} is down")
            connection = await sender.open()
        except ConnectionFailed as failure:
            # There are many attempts in a second: log only the first.
            if broker_id not in self._unreachable:
                log.info("transaction markers wait for broker %d: %s", broker_id, failure)
            self._unreachable.add(broker_id)
            self._pending.unanswered(broker_id, self._broker.monotonic_ms())
            self._wake()
            return
        self._unreachable.discard(broker_id)
        self._confirmed(sender)
        try:
            response = await sender.send(connection, request)
        except ConnectionFailed as failure:
            log.info("transaction markers are sent to broker %d again: %s", broker_id, failure)
            sender.in_doubt.update(self._pending.unanswered(broker_id, self._broker.monotonic_ms()))
            self._start(self._reconnect(sender))
            self._wake()
            return
        self._answered(broker_id, response)

    def _sender_for(self, broker_id: int) -> MarkerSender | None:
        """Return the sender to a broker in its current broker epoch, or None if it is down."""
        sender = self._senders.get(broker_id)
        epoch = self._broker.metadata_image.live.get(broker_id)
        if sender is not None and sender.epoch != epoch:
            self._retire(sender)
            sender = None
        if sender is None and epoch is not None:
            sender = self._senders[broker_id] = MarkerSender(
                self._broker, broker_id, epoch, self._numbers
            )
        return sender

    async def _reconnect(self, sender: MarkerSender) -> None:
        """Open a new connection, even with nothing to send: transactions in doubt wait for it."""
        backoff = Backoff.every(_RETRY_S)
        while sender.in_doubt and self._senders.get(sender.broker_id) is sender:
            try:
                await sender.open()
            except ConnectionFailed:
                await backoff.pause()
            else:
                self._confirmed(sender)

    def _retire(self, sender: MarkerSender) -> None:
        """Drop a sender: in its new epoch the broker accepts no markers for the old one."""
        del self._senders[sender.broker_id]
        sender.close()
        self._confirmed(sender)

    def _confirmed(self, sender: MarkerSender) -> None:
        """Settle the transactions in doubt: the broker writes no earlier markers any more."""
        in_doubt, sender.in_doubt = sender.in_doubt, set()
        for ending in in_doubt:
            if ending in self._marked_in_doubt and not self._is_in_doubt(ending):
                self._report(Progress(ending, frozenset(self._marked_in_doubt.pop(ending))))

    def _is_in_doubt(self, ending: Ending) -> bool:
        return any(ending in sender.in_doubt for sender in self._senders.values())

    # -- progress --------------------------------------------------------------------------

    def _report(self, progress: Progress) -> None:
        ending = progress.ending
        owner = self._owners.get(ending)
        if owner is None:
            return
        if progress.is_fenced:
            self._forget(ending)
            owner.fenced(ending)
        elif self._is_in_doubt(ending):
            self._marked_in_doubt.setdefault(ending, set()).update(progress.marked)
        else:
            owner.marked(ending, progress.marked)
            if not owner.is_ending(ending):
                self._forget(ending)

    def _forget(self, ending: Ending) -> None:
        self._owners.pop(ending, None)
        self._marked_in_doubt.pop(ending, None)
        for sender in self._senders.values():
            sender.in_doubt.discard(ending)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("sending transaction markers failed", exc_info=failure)
