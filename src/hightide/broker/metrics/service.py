"""Serves `/metrics`, `/livez` and `/readyz` of a broker.

Scrapes at the same time share one collection, and a collection begins no sooner after the last one
than that one took.  So however many clients ask, metrics get at most half of the event loop's spare
time, a turn at a time, and one thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING

from hightide.broker.environment import ZooKeeperSession
from hightide.broker.membership.fenced_session import FencedSession
from hightide.broker.metrics import health
from hightide.broker.metrics.collection import Collector, add_from_system
from hightide.broker.metrics.group_lag import GroupLags
from hightide.broker.metrics.health import Parts
from hightide.broker.metrics.http_server import HttpServer, Request, Response
from hightide.broker.metrics.loop_watch import LoopWatch
from hightide.broker.metrics.samples import Samples
from hightide.broker.network.server import Server
from hightide.broker.network.turn import Turn, Usage
from hightide.broker.replication.disk_monitor import DiskMonitor
from hightide.broker.replication.isr_changes import IsrChanges
from hightide.broker.replication.state_changes import StateChanges
from hightide.settings import Listener

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_LONGEST_REST_S = 1.0
_OPEN_METRICS = "application/openmetrics-text"
_PLAIN = "text/plain"
_JSON = "application/json"
_PATHS = "/metrics, /livez and /readyz"

Text = tuple[bytes, list[tuple[str, str]]]
"""A response's body, and its headers."""


class MetricsService:
    """The HTTP listeners for metrics, and the collection that scrapes share."""

    def __init__(self, broker: Broker, server: Server) -> None:
        self._broker = broker
        self._turns = server.turns
        self._http = HttpServer(self._respond)
        environment = broker.environment
        self._loop_watch = LoopWatch(environment.clock_s, environment.cpu_s)
        self._collector = Collector(broker, server, self._loop_watch, GroupLags(broker))
        self._usage = Usage()
        # Other work has its own threads, which a text of a second must not take.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._collecting: asyncio.Task[Samples] | None = None
        # The texts of the collection that runs or has just ended, by what clients accept.
        self._texts: dict[tuple[str, bool], asyncio.Task[Text]] = {}
        self._rests_until_s = 0.0
        self._parts: Parts | None = None
        self.is_stopping = False
        self.addresses: list[tuple[str, int]] = []

    async def start(self, listeners: tuple[Listener, ...]) -> None:
        """Bind the listeners, log their addresses and serve."""
        for listener in listeners:
            sock = self._broker.environment.listen(listener.host, listener.port, 64)
            host, port = sock.getsockname()[:2]
            self.addresses.append((host, port))
            await self._http.listen(sock)
            shown = f"[{host}]" if ":" in host else host
            log.info("metrics and health: http://%s:%d/metrics, /livez, /readyz", shown, port)
        if listeners:
            self._loop_watch.start()

    def logs_opened(
        self,
        zookeeper: ZooKeeperSession,
        session: FencedSession,
        state_changes: StateChanges,
        disk_monitor: DiskMonitor,
        isr_changes: IsrChanges,
        is_serving: Callable[[], bool],
    ) -> None:
        """The logs are recovered, and the broker has all its parts."""
        self._parts = Parts(
            zookeeper,
            session,
            state_changes,
            disk_monitor,
            isr_changes,
            lambda: self._broker.broker_epoch,
            is_serving,
        )

    async def stop(self) -> None:
        self._loop_watch.stop()
        await self._http.stop()
        tasks = [task for task in (self._collecting, *self._texts.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    # -- requests --------------------------------------------------------------------------

    async def _respond(self, request: Request) -> Response:
        match request.path:
            case "/metrics":
                return await self._metrics(request)
            case "/livez":
                return self._alive()
            case "/readyz":
                return await self._ready(request)
        return Response.plain(HTTPStatus.NOT_FOUND, f"here are {_PATHS}\n")

    def _alive(self) -> Response:
        """A loop that is stuck does not get here, and the client waits in vain."""
        failed = self._broker.failed
        if failed.done() and not failed.cancelled():
            text = f"the broker must stop: {failed.exception()}\n"
            return Response.plain(HTTPStatus.SERVICE_UNAVAILABLE, text)
        return Response.plain(HTTPStatus.OK, "alive\n")

    async def _ready(self, request: Request) -> Response:
        broker, catching_up = self._broker, list[str]()
        if self._parts is not None:
            turn = Turn(self._turns, self._usage)
            await turn.enter()
            catching_up = await health.catching_up(
                list(broker.replica_manager), broker.metadata_image, broker.broker_id, turn
            )
        excluded = request.query.get("exclude", "").split(",")
        found = [
            check
            for check in health.checks(self._parts, catching_up, is_stopping=self.is_stopping)
            if check.name not in excluded
        ]
        status = HTTPStatus.OK if health.is_ready(found) else HTTPStatus.SERVICE_UNAVAILABLE
        if _JSON in request.headers.get("accept", ""):
            return Response(status, health.json_report(found).encode(), [("Content-Type", _JSON)])
        return Response.plain(status, health.report(found, verbose="verbose" in request.query))

    async def _metrics(self, request: Request) -> Response:
        accept = accepted_format(request.headers.get("accept", ""))
        is_packed = "gzip" in request.headers.get("accept-encoding", "")
        data, headers = await self._text(accept, is_packed)
        return Response(HTTPStatus.OK, data, headers)

    # -- collections -----------------------------------------------------------------------

    async def _text(self, accept: str, is_packed: bool) -> Text:
        """Join the collection that runs, or begin one."""
        collecting = self._collecting
        if collecting is None:
            former, self._texts = self._texts, {}
            collecting = self._collecting = asyncio.create_task(self._collect(former.values()))
            collecting.add_done_callback(self._collected)
        texts, key = self._texts, (accept, is_packed)
        making = texts.get(key)
        if making is None:
            making = texts[key] = asyncio.create_task(self._make(collecting, accept, is_packed))
        # The others that wait for it stay when one of them goes away.
        return await asyncio.shield(making)

    async def _collect(self, former: Collection[asyncio.Task[Text]]) -> Samples:
        clock = self._broker.monotonic_s
        if former:
            await asyncio.wait(former)
        rest_s = self._rests_until_s - clock()
        if rest_s > 0:
            await asyncio.sleep(rest_s)
        began_s = clock()
        turn = Turn(self._turns, self._usage)
        await turn.enter()
        samples = await self._collector.collect(self._parts, turn, is_stopping=self.is_stopping)
        disks = [] if self._parts is None else self._broker.log_manager.disks
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, add_from_system, samples, disks)
        now_s = clock()
        self._rests_until_s = now_s + min(now_s - began_s, _LONGEST_REST_S)
        return samples

    def _collected(self, _task: asyncio.Task[Samples]) -> None:
        self._collecting = None

    async def _make(self, collecting: asyncio.Task[Samples], accept: str, is_packed: bool) -> Text:
        samples = await asyncio.shield(collecting)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, samples.text, accept, is_packed)


def accepted_format(accept: str) -> str:
    """Return the first format in an Accept header that can be served, as such a header.

    There are three, so that clients cannot ask for the same text in many ways.
    """
    for part in accept.split(","):
        media_type, _, parameters = part.strip().partition(";")
        if media_type.strip() == _OPEN_METRICS:
            return f"{_OPEN_METRICS};version=1.0.0"
        if media_type.strip() == _PLAIN and "version=1.0.0" in parameters.replace(" ", ""):
            return f"{_PLAIN};version=1.0.0"
    return ""
