"""The newest summary of the cluster.

GET /api/v1/overview
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hightide.console.context import Console
from hightide.console.replies import ok


def routes(console: Console) -> list[Route]:
    async def overview(_: Request) -> Response:
        return ok(console.observer.overview)

    return [Route("/api/v1/overview", overview)]
