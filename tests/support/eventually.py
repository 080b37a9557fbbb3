"""Wait for something that a running system does in its own time.

Tests never sleep for a fixed time: they look again until the condition holds. The limit is far
longer than anything takes, so that a busy machine fails no test.

The functions take `Callable[..., T]` and call it without arguments: mypy cannot infer the type of a
lambda that binds a loop variable as a default.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_S = 60.0


def eventually(look: Callable[..., T], limit_s: float = LIMIT_S, every_s: float = 0.01) -> T:
    """Call `look` until it returns something true, and return that."""
    deadline = time.monotonic() + limit_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"not true within {limit_s} s; last: {found!r}"
        time.sleep(every_s)
    return found


async def eventually_async(
    look: Callable[..., T], limit_s: float = LIMIT_S, every_s: float = 0.002
) -> T:
    """Call `look` between turns of the event loop until it returns something true, and return that.

    The loop's own clock counts, which may be virtual.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while not (found := look()):
        assert loop.time() < deadline, f"not true within {limit_s} s; last: {found!r}"
        await asyncio.sleep(every_s)
    return found


def seconds_until(look: Callable[..., object], limit_s: float = LIMIT_S) -> float:
    """Wait until `look` returns something true; return how long that took."""
    began = time.monotonic()
    eventually(look, limit_s, every_s=0.005)
    return time.monotonic() - began
