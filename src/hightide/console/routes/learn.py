"""Learn: the guided scenes.

    GET    /api/v1/learn           the scenes, and the run: its steps, what each has seen
    POST   /api/v1/learn           {"scene": "watermark", "guided": true}: begin
    POST   /api/v1/learn/next      a guided run goes on
    DELETE /api/v1/learn           end the run; the answer comes when the cluster is as it was

A guided run waits for its reader after each step, and ends by itself when no browser asks for it
any more.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hightide.console import commands
from hightide.console.context import Console
from hightide.console.json_body import json_body
from hightide.console.learn.runner import SCENES, Busy, Learn
from hightide.console.replies import failed, ok

CLOSE_S = 60.0
"""How long the end of the console waits until the brokers run again."""


def routes(console: Console) -> list[Route]:
    owner = console.owner
    api = LearnRoutes(console, Learn(console.options.bootstrap, owner.act if owner else None))
    return [
        Route("/api/v1/learn", api.show, methods=["GET"]),
        Route("/api/v1/learn", api.start, methods=["POST"]),
        Route("/api/v1/learn", api.end, methods=["DELETE"]),
        Route("/api/v1/learn/next", api.next, methods=["POST"]),
    ]


class LearnRoutes:
    """The handlers."""

    def __init__(self, console: Console, learn: Learn) -> None:
        self._console, self._learn = console, learn
        # If `up` ends, the brokers end too.
        within_s = 1.0 if console.options.is_child else CLOSE_S
        console.at_close.append(lambda: learn.close(within_s))

    async def show(self, _: Request) -> Response:
        self._learn.seen()
        return ok(self._learn.to_json())

    async def start(self, request: Request) -> Response:
        body = await json_body(request)
        scene = SCENES.get(str(body.get("scene")))
        if scene is None:
            return failed(404, f"There is no scene {body.get('scene')!r}.")
        try:
            run = await self._learn.start(scene, is_guided=body.get("guided") is True)
        except Busy as error:
            return failed(409, str(error))
        create = commands.command(
            self._console.options.bootstrap, "topic", "create", run.topic, "--partitions", 1
        )
        return ok({"command": create, "run": run.to_json()})

    async def next(self, _: Request) -> Response:
        try:
            await self._learn.continue_()
        except Busy as error:
            return failed(409, str(error))
        return ok(self._learn.to_json())

    async def end(self, _: Request) -> Response:
        run = self._learn.run
        await self._learn.cancel()
        topic = run.topic if run else "learn-…"
        delete = commands.command(self._console.options.bootstrap, "topic", "delete", topic)
        return ok({"command": delete, **self._learn.to_json()})
