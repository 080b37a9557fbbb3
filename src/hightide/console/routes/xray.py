"""The X-ray of one partition: its history, a probe record, and an export as one file.

GET  /api/v1/xray/{topic}/{partition}?from_ms=&to_ms=&most=
POST /api/v1/xray/{topic}/{partition}/probe     {"confirm": true}: it writes a record
GET  /api/v1/export.html?topic=&partition=&minutes=
"""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hightide.client.model.cluster import Partition
from hightide.client.xray.frames import PartitionFrame
from hightide.client.xray.page import page
from hightide.console.commands import command
from hightide.console.context import Console
from hightide.console.history import KEPT_MS
from hightide.console.json_body import json_body, number
from hightide.console.probe import HEADER, Probe
from hightide.console.replies import failed, ok

FRAMES, MOST_FRAMES, EXPORTED_FRAMES = 300, 5_000, 1_500
LONGEST_MS = KEPT_MS + 60_000


def routes(console: Console) -> list[Route]:
    api = XrayRoutes(console)
    path = "/api/v1/xray/{topic}/{partition:int}"
    return [
        Route(path, api.history),
        Route(f"{path}/probe", api.probe, methods=["POST"]),
        Route("/api/v1/export.html", api.export),
    ]


class XrayRoutes:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._observer = console.observer

    async def history(self, request: Request) -> Response:
        key = _partition(request.path_params["topic"], request.path_params["partition"])
        to_ms = number(request, "to_ms", _now_ms(), 0, 1 << 50)
        from_ms = number(request, "from_ms", to_ms - KEPT_MS, to_ms - LONGEST_MS, to_ms)
        most = number(request, "most", FRAMES, 2, MOST_FRAMES)
        if self._frame(key) is None:
            return _unknown(key)
        return ok(self._observer.timeline(key, from_ms, to_ms, most).to_json(from_ms, to_ms))

    async def probe(self, request: Request) -> Response:
        key = _partition(request.path_params["topic"], request.path_params["partition"])
        name = f"{key[0]}/{key[1]}"
        if not (await json_body(request)).get("confirm"):
            return failed(400, f'A probe writes a record to {name}: confirm it with "confirm".')
        frame = self._frame(key)
        if frame is None:
            return _unknown(key)
        is_foreign = bool(self._observer.overview["is_foreign"])
        async with self._observer.connect() as admin:
            found = await Probe(admin, key[0], frame, is_foreign=is_foreign).run()
        words = ("produce", name, "", "--header", f"{HEADER}=1")
        return ok({**found, "command": command(self._console.options.bootstrap, *words)})

    async def export(self, request: Request) -> Response:
        given = request.query_params
        key = _partition(given.get("topic", ""), number(request, "partition", 0, 0, 1 << 30))
        minutes = number(request, "minutes", 15, 1, KEPT_MS // 60_000)
        if self._frame(key) is None:
            return _unknown(key)
        to_ms = _now_ms()
        from_ms = to_ms - minutes * 60_000
        timeline = self._observer.timeline(key, from_ms, to_ms, EXPORTED_FRAMES)
        overview = self._observer.overview
        cluster = {
            "title": overview["title"],
            "cluster_id": overview["cluster_id"],
            "sentence": overview["sentence"],
            "brokers": overview["brokers"],
            "is_foreign": overview["is_foreign"],
        }
        text = page(timeline, from_ms, to_ms, cluster)
        name = f"xray-{''.join(one if one.isalnum() or one in '._-' else '_' for one in key[0])}"
        return Response(
            text,
            media_type="text/html",
            headers={
                "Content-Disposition": f'attachment; filename="{name}-{key[1]}.html"',
            },
        )

    def _frame(self, key: Partition) -> PartitionFrame | None:
        return self._observer.partition_frame(key)


def _partition(topic: str, index: int) -> Partition:
    return topic, index


def _unknown(key: Partition) -> Response:
    return failed(404, f"There is no partition {key[0]}/{key[1]}.")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
