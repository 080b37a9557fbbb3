"""Measure the turns of an event loop by the CPU clock of its thread.

A busy machine, or another thread that has the GIL, does not lengthen a turn by this clock.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Turns:
    """The longest callback of the thread, in seconds of CPU time."""

    def __init__(self) -> None:
        self.count = 0
        self.worst_s = 0.0
        self.worst = ""

    def ran(self, handle: asyncio.Handle, taken_s: float) -> None:
        self.count += 1
        if taken_s > self.worst_s:
            self.worst_s = taken_s
            self.worst = repr(handle)


@contextmanager
def measured_iterations(loop: asyncio.AbstractEventLoop) -> Iterator[Turns]:
    """Measure all that the loop does between two looks at its sockets."""
    turns = Turns()
    selector: Any = loop._selector  # type: ignore[attr-defined]
    select, began = selector.select, None

    def measured(timeout: float | None = None) -> Any:
        nonlocal began
        if began is not None:
            turns.count += 1
            turns.worst_s = max(turns.worst_s, time.thread_time() - began)
        ready = select(timeout)
        began = time.thread_time()
        return ready

    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)  # as in `broker/main.py`
    selector.select = measured
    try:
        yield turns
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        selector.select = select


@contextmanager
def measured_turns(thread_name: str = "zookeeper") -> Iterator[Turns]:
    """Measure every callback of the event loop in the thread of this name."""
    turns = Turns()
    run = asyncio.Handle._run  # type: ignore[attr-defined]

    def measured(handle: Any) -> None:
        if threading.current_thread().name != thread_name:
            run(handle)
            return
        began = time.thread_time()
        try:
            run(handle)
        finally:
            turns.ran(handle, time.thread_time() - began)

    # The collector must not look at what earlier tests have left.  It is frozen without a
    # collection, which takes a second in a process with many objects.
    gc.freeze()
    asyncio.Handle._run = measured  # type: ignore[attr-defined,assignment]
    try:
        yield turns
    finally:
        gc.unfreeze()
        asyncio.Handle._run = run  # type: ignore[attr-defined]
