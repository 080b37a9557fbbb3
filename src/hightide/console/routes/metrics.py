"""The metrics of all brokers of a local `hightide up`.

GET /metrics    404 where the console does not own the brokers: each has its own
"""

from __future__ import annotations

import asyncio
import logging
import urllib.request
from http.client import HTTPException

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from hightide.console.context import Console
from hightide.console.federation import CONTENT_TYPE, federate

ANSWER_S = 5.0
MOST_BYTES = 64 * 1024 * 1024

log = logging.getLogger(__name__)


def routes(console: Console) -> list[Route]:
    wanted = console.options.metrics

    async def show(_: Request) -> Response:
        if not wanted:
            return PlainTextResponse(
                "Each broker serves its own metrics; only the console of a `hightide up` serves"
                " those of all.\n",
                404,
            )
        pages = await asyncio.gather(*(asyncio.to_thread(scrape, url) for url in wanted))
        brokers = map(str, range(1, len(wanted) + 1))
        text = federate(dict(zip(brokers, pages, strict=True)))
        return Response(text, media_type=CONTENT_TYPE)

    return [Route("/metrics", show, methods=["GET"])]


def scrape(url: str) -> str | None:
    """The page of one broker, None if it does not answer."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=ANSWER_S) as page:
            return bytes(page.read(MOST_BYTES)).decode()
    except (OSError, HTTPException, ValueError) as error:
        log.info("%s does not answer: %s", url, error)
        return None
