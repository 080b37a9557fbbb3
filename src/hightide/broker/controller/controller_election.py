"""The election of the controller: the broker whose session owns `/controller`.

A candidate sends one multi: it creates `/controller`, and increments `/controller_epoch` if that
znode still has the version that the candidate has read.  From then on the version of
`/controller_epoch` is a fencing token.  Every write of a controller checks it in the same multi
(`fenced`), so a controller that was replaced while it was suspended changes nothing, and notices.

The epoch is incremented only together with creating `/controller`, which fails while that znode
exists.  So a broker that finds `/controller` owned by its session is the controller in the epoch it
reads, even if the response to its multi was lost.

A broker that stood down soon after it became the controller pauses before it stands again, longer
each time: a cluster whose controller changes all the time serves no request to the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Sequence

from hightide.broker.controller.controller_errors import NotController
from hightide.broker.membership.watch_loop import WatchLoop
from hightide.client.retry import Backoff
from hightide.core.controller.controller_events import ControllerElected, ControllerResigned
from hightide.core.partition.state import NO_BROKER
from hightide.event_log import record
from hightide.zookeeper import znodes
from hightide.zookeeper.interface import ZooKeeper
from hightide.zookeeper.node import Stat
from hightide.zookeeper.operation import Check, Create, Delete, Operation, SetData
from hightide.zookeeper.zookeeper_errors import (
    MalformedZnode,
    MultiFailed,
    NodeExists,
    NoNode,
)

log = logging.getLogger(__name__)

_RESIGN_BACKOFF_S = 5.0  # how long a broker that resigned lets others be elected
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_STEADY_S = 60.0  # without an end of a controller epoch for this long, the pauses are short again


class ControllerElection:
    """One broker's view of the election, and its candidacy."""

    def __init__(self, zookeeper: ZooKeeper, broker_id: int, now_ms: Callable[[], int]) -> None:
        self.controller_id = NO_BROKER
        self.epoch = 0
        """The latest controller epoch seen, of this broker or of another."""
        self.is_controller = False
        self.on_change: Callable[[], None] = lambda: None
        self.watch_loop = WatchLoop(znodes.CONTROLLER, self.check)
        self._zookeeper = zookeeper
        self._broker_id = broker_id
        self._now_ms = now_ms
        self._epoch_version = -1
        self._backoff_until = 0.0
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._stood_down_s = self._elected_s = -math.inf
        self._pause_s = 0.0
        self._doubts = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._doubted_until_s = -math.inf
        self._changed = asyncio.Event()

    # -- finding and being elected ---------------------------------------------------------

    async def check(self) -> None:
        """Find the controller; run for election if there is none."""
        zookeeper = self._zookeeper
        while True:
            # The watch is set first, so no later change goes unnoticed.
            if await zookeeper.exists(znodes.CONTROLLER, self.watch_loop.wake) is None:
                self.stand_down(f"{znodes.CONTROLLER} was deleted")
                if self._is_backing_off():
                    return
                await self._run_for_controller()
                continue
            try:
                data, stat = await zookeeper.get(znodes.CONTROLLER)
            except NoNode:
                continue
            if stat.ephemeral_owner == zookeeper.session_id:
                if not self.is_controller and not self._is_backing_off():
                    await self._become_controller()
                return
            self.stand_down("another broker is the controller")
            with contextlib.suppress(NoNode):  # that controller was not elected by this protocol
                self.epoch, _ = await self._read_epoch()
            self._controller_seen(_id_of(data))
            return

    async def _run_for_controller(self) -> None:
        """Run for election; `check` finds out whether this broker has won."""
        zookeeper = self._zookeeper
        try:
            before, version = await self._read_epoch()
        except NoNode:
            with contextlib.suppress(NodeExists):  # another candidate was faster
                await zookeeper.create(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(0))
            return
        me = znodes.Controller(self._broker_id, self._now_ms())
        try:
            await zookeeper.multi(
                [
                    Create(znodes.CONTROLLER, me.encode(), ephemeral=True),
                    SetData(
                        znodes.CONTROLLER_EPOCH,
                        znodes.encode_controller_epoch(before + 1),
                        version,
                    ),
                ]
            )
        except MultiFailed as lost:
            log.debug("another candidate was faster: %s", lost)

    async def _become_controller(self) -> None:
        self.epoch, self._epoch_version = await self._read_epoch()
        self.is_controller = True
        self._elected_s = asyncio.get_running_loop().time()
        self._controller_seen(self._broker_id)

    async def _read_epoch(self) -> tuple[int, int]:
        """Return the controller epoch and the version of its znode."""
        data, stat = await self._zookeeper.get(znodes.CONTROLLER_EPOCH)
        return znodes.decode_controller_epoch(data), stat.version

    def _controller_seen(self, controller_id: int) -> None:
        if controller_id != self.controller_id:
            previous, self.controller_id = self.controller_id, controller_id
            record(log, ControllerElected(controller_id, self.epoch, self.is_controller, previous))
        self._changed.set()
        self.on_change()

    def stand_down(self, why: str) -> None:
        """Stop acting as the controller, without a request to ZooKeeper: it may be unreachable."""
        if self.is_controller:
            self.is_controller = False
            self.controller_id = NO_BROKER
            record(log, ControllerResigned(self.epoch, why))
            self._begin_pause()
            self.on_change()

    def _begin_pause(self) -> None:
        """Do not stand for controller for a while, if this is not the first time."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if now_s - self._stood_down_s >= _STEADY_S:
            self._backoff.reset()
            self._pause_s = 0.0
        else:
            self._pause_s = self._backoff.next_s() or _LONGEST_PAUSE_S
            loop.call_later(self._pause_s, self.watch_loop.wake)
        self._stood_down_s = now_s

    def doubted(self) -> None:
        """A broker has refused a message because of a newer controller epoch: ask ZooKeeper.

        What a broker says ends no controller epoch; only ZooKeeper's answer does.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s < self._doubted_until_s:
            return
        if now_s - self._doubted_until_s >= _STEADY_S:
            self._doubts.reset()
        self._doubted_until_s = now_s + (self._doubts.next_s() or _LONGEST_PAUSE_S)
        log.warning("a broker knows of a newer controller; asking ZooKeeper")
        self.watch_loop.wake()

    # -- being the controller --------------------------------------------------------------

    async def fenced(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """Run a multi that fails with NotController unless this broker is still the controller."""
        if not self.is_controller:
            raise NotController
        check = Check(znodes.CONTROLLER_EPOCH, self._epoch_version)
        try:
            results = await self._zookeeper.multi([check, *operations])
        except MultiFailed as failed:
            if failed.index == 0:
                self.stand_down("another broker was elected")
                self.watch_loop.wake()
                raise NotController from failed
            raise MultiFailed(failed.index - 1, failed.cause, failed.count - 1) from failed
        return results[1:]

    async def resign(self, timeout_s: float = _RESIGN_BACKOFF_S) -> int:
        """Resign, and return the id of the new controller, or NO_BROKER if there is none in time.

        After the timeout this broker runs again, so that the cluster gets a controller.  A broker
        that has resigned a short time ago waits before it does so again.
        """
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(self._elected_s + self._pause_s - loop.time(), 0.0))
        self._changed.clear()
        self._backoff_until = loop.time() + timeout_s
        try:
            await self.fenced([Delete(znodes.CONTROLLER)])
            self.stand_down("it resigned")
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            self._backoff_until = 0.0
            self.watch_loop.wake()
        return NO_BROKER if self.is_controller else self.controller_id

    def _is_backing_off(self) -> bool:
        until_s = max(self._backoff_until, self._stood_down_s + self._pause_s)
        return asyncio.get_running_loop().time() < until_s


def _id_of(data: bytes) -> int:
    try:
        return znodes.Controller.decode(data).broker_id
    except MalformedZnode as damage:
        log.error("%s", damage)
        return NO_BROKER
