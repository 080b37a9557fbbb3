"""What happens, as server-sent events: overviews, events, and the frames of one topic.

    GET /api/v1/live
    GET /api/v1/live?topic=orders

The server waits until a browser has taken a message before it sends the next, and then sends what
is newest.  A comment every ten seconds keeps the connection open where nothing happens.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from hightide.console.context import Console

HEARTBEAT_S = 10.0
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def routes(console: Console) -> list[Route]:
    async def live(request: Request) -> Response:
        topic = request.query_params.get("topic") or None
        return StreamingResponse(
            stream(console, topic), media_type="text/event-stream", headers=_HEADERS
        )

    return [Route("/api/v1/live", live)]


async def stream(
    console: Console, topic: str | None, heartbeat_s: float = HEARTBEAT_S
) -> AsyncIterator[str]:
    """The stream of one browser, until the server stops; Starlette ends it on a disconnect."""
    closing = asyncio.ensure_future(console.closing.wait())
    next_: asyncio.Future[Any] | None = None
    async with contextlib.aclosing(console.observer.messages(topic)) as messages:
        try:
            while not closing.done():
                if next_ is None:
                    next_ = asyncio.ensure_future(anext(messages))
                done, _ = await asyncio.wait(
                    {next_, closing}, timeout=heartbeat_s, return_when=asyncio.FIRST_COMPLETED
                )
                if next_ in done:
                    try:
                        message = next_.result()
                    except StopAsyncIteration:
                        return
                    yield f"data: {message.text}\n\n"
                    next_ = None
                elif not done:
                    yield ": still here\n\n"
        finally:
            closing.cancel()
            if next_ is not None:
                next_.cancel()
                with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                    await next_
