"""Acting on the brokers of the `hightide up` that the console belongs to.

    POST /api/v1/brokers/{id}/{kill|stop|pause|resume|restart}

The reply has the sentence of `up`, and the command that does the same.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hightide.console.commands import command
from hightide.console.context import Console
from hightide.console.replies import failed, ok

ACTIONS = ("kill", "stop", "pause", "resume", "restart")


def routes(console: Console) -> list[Route]:
    api = BrokerRoutes(console)
    return [Route("/api/v1/brokers/{id:int}/{action:str}", api.act, methods=["POST"])]


class BrokerRoutes:
    def __init__(self, console: Console) -> None:
        self._console = console

    async def act(self, request: Request) -> Response:
        broker_id, action = request.path_params["id"], request.path_params["action"]
        if action not in ACTIONS:
            return failed(404, f"There is no action {action!r}; there are {', '.join(ACTIONS)}.")
        if self._console.owner is None:
            return failed(
                409, "This console does not run the brokers. The one of `hightide up` can do this."
            )
        text = await self._console.owner.act(action, broker_id)
        first = self._console.options.bootstrap.split(",")[0]
        return ok({"text": text, "command": command(first, "broker", action, broker_id)})
