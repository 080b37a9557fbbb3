"""Why `produce` and `consume` wait: a sentence on stderr for each cause, after two seconds.

    the command: begin ─ … ─ end    begin ──────────── … ───────────── end
    the thread:   (less than 2 s)            2 s: look ─▶ say   4 s: look …

A wait of the normal case costs two assignments.  The thread looks at the cluster with a connection
of its own, and less often the longer a wait lasts.  What it cannot find out, it does not say.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from hightide.cli.options import LIMIT_S
from hightide.cli.render import say

if TYPE_CHECKING:
    from hightide.client.admin import Admin
    from hightide.client.model.standstill import Finding

AFTER_S = 2.0
MOST_S = 30.0
TICK_S = 0.25
CONNECT_S = 2.0
LOOK_S = 10.0
"""How long a look may take: longer than some brokers that do not answer are waited for."""


def quiet(_sentence: str) -> None:
    """For client libraries that say what `Waiting` says with more detail."""


class Waiting:
    """Watches one command, which uses these partitions of a topic; none means all."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: Collection[int] = (),
        *,
        is_producer: bool = False,
        waits_for_all: bool = True,
        group: str | None = None,
    ) -> None:
        self.is_at_end = False
        """Whether a consumer is at the end of its partitions and has got no record."""
        self.skips_old = False
        """Whether a consumer began at the end."""
        self.still: Callable[[], bool] = lambda: True
        """Asked before a look: whether the command waits indeed."""
        self.has_partitions = True
        """Whether a member of a group has partitions assigned."""
        self._bootstrap = self._addresses = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._is_producer = is_producer
        self._waits_for_all = waits_for_all
        self._group = group
        self._limit_ms = round(min(CONNECT_S, LIMIT_S.get()) * 1000)
        self._since: float | None = None
        self._said: set[tuple[object, ...]] = set()
        self._closed = threading.Event()
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._watch, name="waiting", daemon=True)

    def learn(self, admin: Admin) -> None:
        """Remember all brokers: those that the command was given may die first."""
        nodes = admin.router.nodes.values()
        known = (f"[{n.host}]:{n.port}" if ":" in n.host else f"{n.host}:{n.port}" for n in nodes)
        self._addresses = ",".join(known) or self._addresses

    def begin(self) -> None:
        """The command waits from now on, unless it waits already."""
        if self._since is None:
            self._since = time.monotonic()

    def end(self) -> None:
        self._since = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the watch, and a look in progress."""
        self._closed.set()
        loop, task = self._loop, self._task
        if loop is not None and task is not None and not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)
        self._thread.join(LOOK_S)

    # -- the thread ------------------------------------------------------------------------

    def _watch(self) -> None:
        pause_s, looked_since, next_s = AFTER_S, None, 0.0
        while not self._closed.wait(TICK_S):
            since = self._since
            if since is None:
                continue
            if since != looked_since:
                pause_s, looked_since, next_s = AFTER_S, since, since + AFTER_S
            if time.monotonic() < next_s or not self.still():
                continue
            self._tell(asyncio.run(self._look()))
            pause_s = min(2 * pause_s, MOST_S)
            next_s = time.monotonic() + pause_s

    def _tell(self, found: Iterable[Finding]) -> None:
        from hightide.cli import next_step

        for finding in found:
            if finding.key in self._said or self._closed.is_set() or self._since is None:
                continue
            self._said.add(finding.key)
            step = finding.next and next_step.here(finding.next, self._bootstrap)
            say(f"Waiting: {finding.sentence}" + (f"\n  {next_step.line(step)}" if step else ""))

    async def _look(self) -> list[Finding]:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            if self._closed.is_set():
                return []
            return await self._findings()
        except asyncio.CancelledError:
            return []
        finally:
            self._task = None

    async def _findings(self) -> list[Finding]:
        # Most commands never wait, and need none of this.
        from hightide.client.admin import Admin
        from hightide.client.broker_connection import ConnectionFailed
        from hightide.client.model import standstill
        from hightide.wire.errors import KafkaError

        try:
            async with (
                asyncio.timeout(LOOK_S),
                Admin(self._addresses, connect_timeout_ms=self._limit_ms) as admin,
            ):
                return await self._ask(admin)
        except (ConnectionFailed, TimeoutError):
            return [standstill.unreachable(self._addresses)]
        except KafkaError:
            # The command meets the same error, and says it.
            return []

    async def _ask(self, admin: Admin) -> list[Finding]:
        from hightide.client.model import standstill

        cluster = await admin.replicas.describe([self._topic])
        self.learn(admin)
        min_isr = await admin.configs.min_insync_replicas([self._topic])
        client = standstill.Client(
            self._topic,
            self._partitions,
            is_producer=self._is_producer,
            waits_for_all=self._waits_for_all,
            is_at_end=self.is_at_end,
            skips_old=self.skips_old,
        )
        found = standstill.waits(client, cluster, min_isr)
        if self._group is not None and not self.has_partitions:
            found += await self._ask_group(admin, self._group)
        return found

    async def _ask_group(self, admin: Admin, group: str) -> list[Finding]:
        from hightide.client.model import standstill
        from hightide.client.routing import COORDINATOR_MOVED
        from hightide.core.metadata.topic_names import CONSUMER_OFFSETS
        from hightide.wire.errors import KafkaError

        try:
            async with asyncio.timeout(AFTER_S):
                return standstill.group_waits(await admin.groups.describe(group))
        except TimeoutError:
            pass
        except KafkaError as error:
            if error.code not in COORDINATOR_MOVED:
                return []
        try:
            offsets = (await admin.replicas.describe([CONSUMER_OFFSETS])).partitions
        except KafkaError:
            offsets = []
        return [standstill.coordinator_waits(group, offsets)]
