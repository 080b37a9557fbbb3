"""Which broker is the controller: the one whose session owns `/controller`.

Being elected is one multi: `/controller` is created, and `/controller_epoch` is raised if it still
has the version it was read with.  From then on the version of `/controller_epoch` is a fencing
token: every write of a controller checks it in the same multi (`fenced`), so that one who was
replaced while he slept changes nothing more, and learns of it.

The epoch is raised only together with creating `/controller`, which fails while that exists.  So
whoever finds `/controller` owned by his own session is the controller in the epoch that he reads,
also when the answer to his election was lost on the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from hightide.broker.controller.errors import NotController
from hightide.broker.membership.watch_loop import WatchLoop
from hightide.core.partition.state import NOBODY
from hightide.zookeeper import znodes
from hightide.zookeeper.errors import (
    MalformedZnode,
    MultiFailed,
    NodeExists,
    NoNode,
)
from hightide.zookeeper.interface import ZooKeeper
from hightide.zookeeper.node import Stat
from hightide.zookeeper.operation import Check, Create, Delete, Operation, SetData

log = logging.getLogger(__name__)

_RESIGN_BACKOFF_S = 5.0  # how long somebody who resigned leaves the field to others


class ControllerElection:
    """One broker's view of the election, and its part in it."""

    def __init__(self, zookeeper: ZooKeeper, broker_id: int, now_ms: Callable[[], int]) -> None:
        self.controller_id = NOBODY
        self.epoch = 0
        """The controller epoch that was last seen, this broker's own or another's."""
        self.is_controller = False
        self.on_change: Callable[[], None] = lambda: None
        self.watch_loop = WatchLoop(znodes.CONTROLLER, self.check)
        self._zookeeper = zookeeper
        self._broker_id = broker_id
        self._now_ms = now_ms
        self._epoch_version = -1
        self._backoff_until = 0.0
        self._changed = asyncio.Event()

    # -- what was found --------------------------------------------------------------------

    async def check(self) -> None:
        """See who is the controller, and stand for election if nobody is."""
        zookeeper = self._zookeeper
        while True:
            # The watch comes first: whatever happens from here on is heard of.
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
                if not self.is_controller:
                    await self._become_controller()
                return
            self.stand_down("another broker is the controller")
            with contextlib.suppress(NoNode):  # whoever it is, it was not elected as we are
                self.epoch, _ = await self._read_epoch()
            self._controller_seen(_id_of(data))
            return

    async def _run_for_controller(self) -> None:
        """Stand for election.  Whether it was won, `look` finds out."""
        zookeeper = self._zookeeper
        try:
            before, version = await self._read_epoch()
        except NoNode:
            with contextlib.suppress(NodeExists):  # another candidate was quicker
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
            log.debug("another candidate was quicker: %s", lost)

    async def _become_controller(self) -> None:
        self.epoch, self._epoch_version = await self._read_epoch()
        self.is_controller = True
        log.info("this broker is the controller, in epoch %d", self.epoch)
        self._controller_seen(self._broker_id)

    async def _read_epoch(self) -> tuple[int, int]:
        """The controller epoch, and the version of its znode."""
        data, stat = await self._zookeeper.get(znodes.CONTROLLER_EPOCH)
        return znodes.decode_controller_epoch(data), stat.version

    def _controller_seen(self, controller_id: int) -> None:
        if controller_id != self.controller_id:
            self.controller_id = controller_id
            if not self.is_controller:
                log.info("broker %d is the controller", controller_id)
        self._changed.set()
        self.on_change()

    def stand_down(self, why: str) -> None:
        """Act as the controller no more.  The tree is not asked: it may be out of reach."""
        if self.is_controller:
            self.is_controller = False
            self.controller_id = NOBODY
            log.warning("this broker is no longer the controller: %s", why)
            self.on_change()

    # -- what the controller does ----------------------------------------------------------

    async def fenced(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """A multi that happens only if this broker is still the controller, else NotController."""
        if not self.is_controller:
            raise NotController
        check = Check(znodes.CONTROLLER_EPOCH, self._epoch_version)
        try:
            results = await self._zookeeper.multi([check, *operations])
        except MultiFailed as failed:
            if failed.index == 0:
                self.stand_down("another one was elected meanwhile")
                self.watch_loop.wake()
                raise NotController from failed
            raise MultiFailed(failed.index - 1, failed.cause, failed.count - 1) from failed
        return results[1:]

    async def resign(self, timeout_s: float = _RESIGN_BACKOFF_S) -> int:
        """Hand the task to another broker; its id, or NOBODY if none was seen to take it.

        Then this broker stands again, so that the cluster is not left without a controller.
        """
        loop = asyncio.get_running_loop()
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
        return NOBODY if self.is_controller else self.controller_id

    def _is_backing_off(self) -> bool:
        return asyncio.get_running_loop().time() < self._backoff_until


def _id_of(data: bytes) -> int:
    try:
        return znodes.Controller.decode(data).broker_id
    except MalformedZnode as damage:
        log.error("%s", damage)
        return NOBODY
