"""Sends the markers that end transactions to the leaders of their partitions, until all have them.

    add ──▶ Outbox ──▶ this broker leads: written at once
                  └──▶ Lane ──▶ another broker ──▶ answered ──▶ Hosted.marked

**No late copy.**  A transaction is completed only when no copy of its markers can still be written:
one that comes later would end the next transaction of the producer.  So what was sent without an
answer keeps its transaction in doubt, wherever its markers went in the end, until the broker that
did not answer has confirmed another lane or is known to be in another life.
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
from hightide.client.connection import ConnectionFailed
from hightide.core.controller.cluster_state import Partition
from hightide.core.transactions.pending_markers import PendingMarkers, Progress
from hightide.core.transactions.transaction_coordinator import Ending
from hightide.wire.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_ASK_AGAIN_S = 0.1


class Markers:
    """The outbox of a broker, and the lanes to the others."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._outbox = PendingMarkers()
        self._owners: dict[Ending, TransactionPartition] = {}
        self._lanes: dict[int, MarkerSender] = {}
        self._numbers = itertools.count(1)
        # Of endings in doubt, the partitions that have the marker all the same.
        self._held: dict[Ending, set[Partition]] = {}
        self._unheard: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_woken = False
        self._is_stopped = False

    def add(self, ending: Ending, owner: TransactionPartition) -> None:
        self._owners[ending] = owner
        self._outbox.add(ending)
        self._wake()

    def drop(self, endings: Iterable[Ending]) -> None:
        """Their coordinator is none any more; whoever is next sends them again."""
        endings = list(endings)
        self._outbox.drop(endings)
        for ending in endings:
            self._forget(ending)

    def cluster_changed(self) -> None:
        """Others may be alive, or lead."""
        for lane in list(self._lanes.values()):
            if self._broker.picture.live.get(lane.broker_id) != lane.epoch:
                self._retire(lane)
        if self._owners:
            self._wake()

    async def stop(self) -> None:
        self._is_stopped = True
        for lane in self._lanes.values():
            lane.close()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- what is due -----------------------------------------------------------------------

    def _wake(self) -> None:
        """Send soon: what is decided in one turn of the loop goes together."""
        if not self._is_woken and not self._is_stopped:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._is_woken = False
        if self._is_stopped:
            return
        due = self._outbox.due(self._leader_of, self._broker.monotonic_ms())
        for progress in due.progress:
            self._tell(progress)
        for broker_id, request in due.requests.items():
            if broker_id == self._broker.broker_id:
                self._write_here(request)
            else:
                self._start(self._deliver(broker_id, request))
        self._schedule()

    def _leader_of(self, partition: Partition) -> int | None:
        picture = self._broker.picture
        state = picture.state(*partition)
        return None if state is None else picture.leader(state)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at_ms = self._outbox.deadline_ms()
        if at_ms is not None:
            wait_s = max(0, at_ms - self._broker.monotonic_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._wake)

    # -- here ------------------------------------------------------------------------------

    def _write_here(self, request: WriteTxnMarkersRequest) -> None:
        """What this broker leads itself needs no socket, and no copy can be late."""
        try:
            result = write_markers(self._broker, request)
        except Exception:
            self._stumbled(self._broker.broker_id)
            return
        if isinstance(result, WriteTxnMarkersResponse):
            self._answered(self._broker.broker_id, result)
        else:
            self._start(self._written_here(result))

    async def _written_here(self, result: Awaitable[WriteTxnMarkersResponse]) -> None:
        try:
            response = await result
        except Exception:
            self._stumbled(self._broker.broker_id)
            return
        self._answered(self._broker.broker_id, response)

    def _stumbled(self, broker_id: int) -> None:
        log.exception("markers for broker %d could not be written", broker_id)
        self._outbox.unanswered(broker_id, self._broker.monotonic_ms())
        self._wake()

    def _answered(self, broker_id: int, response: WriteTxnMarkersResponse) -> None:
        for progress in self._outbox.answered(broker_id, response, self._broker.monotonic_ms()):
            self._tell(progress)
        self._wake()

    # -- elsewhere -------------------------------------------------------------------------

    async def _deliver(self, broker_id: int, request: WriteTxnMarkersRequest) -> None:
        lane = self._lane(broker_id)
        try:
            if lane is None:
                raise ConnectionFailed(f"broker {broker_id} is not alive")
            connection = await lane.open()
        except ConnectionFailed as failure:
            # It is tried many times in a second, and an operator wants to read it once.
            if broker_id not in self._unheard:
                log.info("markers for broker %d are sent later: %s", broker_id, failure)
            self._unheard.add(broker_id)
            self._outbox.unanswered(broker_id, self._broker.monotonic_ms())
            self._wake()
            return
        self._unheard.discard(broker_id)
        self._assured(lane)
        try:
            response = await lane.send(connection, request)
        except ConnectionFailed as failure:
            log.info("markers for broker %d are sent again: %s", broker_id, failure)
            lane.doubts.update(self._outbox.unanswered(broker_id, self._broker.monotonic_ms()))
            self._start(self._reassure(lane))
            self._wake()
            return
        self._answered(broker_id, response)

    def _lane(self, broker_id: int) -> MarkerSender | None:
        """The lane to a broker as it lives now."""
        lane, epoch = self._lanes.get(broker_id), self._broker.picture.live.get(broker_id)
        if lane is not None and lane.epoch != epoch:
            self._retire(lane)
            lane = None
        if lane is None and epoch is not None:
            lane = self._lanes[broker_id] = MarkerSender(
                self._broker, broker_id, epoch, self._numbers
            )
        return lane

    async def _reassure(self, lane: MarkerSender) -> None:
        """Open a new lane although there may be nothing to send: what is in doubt waits for it."""
        while lane.doubts and self._lanes.get(lane.broker_id) is lane:
            try:
                await lane.open()
            except ConnectionFailed:
                await asyncio.sleep(_ASK_AGAIN_S)
            else:
                self._assured(lane)

    def _retire(self, lane: MarkerSender) -> None:
        """The broker has another life: it takes nothing that was meant for this one."""
        del self._lanes[lane.broker_id]
        lane.close()
        self._assured(lane)

    def _assured(self, lane: MarkerSender) -> None:
        """Nothing that was sent without an answer can be written there any more."""
        doubts, lane.doubts = lane.doubts, set()
        for ending in doubts:
            if ending in self._held and not self._is_in_doubt(ending):
                self._tell(Progress(ending, frozenset(self._held.pop(ending))))

    def _is_in_doubt(self, ending: Ending) -> bool:
        return any(ending in lane.doubts for lane in self._lanes.values())

    # -- what came of it -------------------------------------------------------------------

    def _tell(self, progress: Progress) -> None:
        ending = progress.ending
        owner = self._owners.get(ending)
        if owner is None:
            return
        if progress.is_fenced:
            self._forget(ending)
            owner.fenced(ending)
        elif self._is_in_doubt(ending):
            self._held.setdefault(ending, set()).update(progress.marked)
        else:
            owner.marked(ending, progress.marked)
            if not owner.is_ending(ending):
                self._forget(ending)

    def _forget(self, ending: Ending) -> None:
        self._owners.pop(ending, None)
        self._held.pop(ending, None)
        for lane in self._lanes.values():
            lane.doubts.discard(ending)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("sending markers failed", exc_info=failure)
