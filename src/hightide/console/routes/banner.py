"""The banner that another process publishes, if the console was started with `--banner-file`.

GET /api/v1/banner   {"banner": {"text", "level", "time_ms", "is_old"} or null}
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hightide.console.banner import read_banner
from hightide.console.context import Console
from hightide.console.replies import ok


def routes(console: Console) -> list[Route]:
    file = console.options.banner_file

    async def banner(_: Request) -> Response:
        return ok({"banner": None if file is None else read_banner(file)})

    return [Route("/api/v1/banner", banner, methods=["GET"])]
