"""Run a seed without threads and garbage collector, with the logs of brokers in the history."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hightide.broker.handlers.fetch import ConsumerPlan
from hightide.broker.replication.replica import Replica
from tests.simulation.shipped.loop import Failed, SimLoop, World
from tests.simulation.shipped.pipeline import Pipeline
from tests.simulation.shipped.simulation import Simulation


class _HistoryHandler(logging.Handler):
    """Adds log lines of brokers to the history.  An unexpected error fails the run."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        loop = asyncio._get_running_loop()
        if not isinstance(loop, SimLoop) or loop.is_dead:
            return
        self._world.note(f"{loop.process.name} {record.levelname}: {record.getMessage()}")
        if record.exc_info and record.levelno >= logging.ERROR:
            failure = Failed(f"{loop.process.name}: {record.getMessage()}: {record.exc_info[1]!r}")
            failure.__cause__ = record.exc_info[1]
            self._world.fail(failure)


class _Inline:
    """An executor without threads."""

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        return

    def __enter__(self) -> _Inline:
        return self

    def __exit__(self, *_error: object) -> None:
        return

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, function: Callable[..., Any], items: Any) -> list[Any]:
        return [function(item) for item in items]

    def shutdown(self, wait: bool = True) -> None:
        return


@contextmanager
def _controlled(simulation: Simulation) -> Iterator[None]:
    """Replace threads, stop the garbage collector, and let the witness see followers' fetches."""
    noted = _HistoryHandler(simulation.world)
    logger = logging.getLogger("hightide")
    before = logger.level, logger.propagate, concurrent.futures.ThreadPoolExecutor
    fetched, read = Replica.fetched, ConsumerPlan._read

    def witnessed(self: Replica, replica: int, offset: int, epoch: int, *rest: Any) -> None:
        simulation.witness.fetched(self, replica, epoch)
        fetched(self, replica, offset, epoch, *rest)

    def shown(self: ConsumerPlan, replica: Replica, *rest: Any) -> Any:
        result = read(self, replica, *rest)
        simulation.witness.serves(replica)
        return result

    had_collector = gc.isenabled()
    gc.disable()
    logger.addHandler(noted)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    concurrent.futures.ThreadPoolExecutor = _Inline  # type: ignore[misc, assignment]
    Replica.fetched = witnessed  # type: ignore[assignment]
    ConsumerPlan._read = shown  # type: ignore[assignment]
    try:
        yield
    finally:
        with warnings.catch_warnings():
            # Coroutines that a dead process had not started are rightly never awaited.
            warnings.simplefilter("ignore", RuntimeWarning)
            simulation.world.close()
            gc.collect()
        Replica.fetched = fetched  # type: ignore[method-assign]
        ConsumerPlan._read = read  # type: ignore[method-assign]
        logger.removeHandler(noted)
        logger.level, logger.propagate, concurrent.futures.ThreadPoolExecutor = before  # type: ignore[misc]
        if had_collector:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    events: int
    fingerprint: int
    virtual_s: float
    real_s: float


STORIES: dict[str, type[Simulation]] = {"log": Simulation, "pipeline": Pipeline}


def run(seed: int, lines: int = 80, story: str = "log") -> Result:
    """Run a seed; raise a violation together with the end of its history."""
    simulation = STORIES[story](seed, lines)
    world, began = simulation.world, time.process_time()
    with _controlled(simulation):
        try:
            simulation.run()
        except Exception as violation:
            told = "\n".join(world.story)
            replay = f".venv/bin/python -m tests.simulation.shipped.running {seed} {story}"
            raise AssertionError(
                f"seed {seed}: {violation!r}\n{told}\nreplay it with: {replay}"
            ) from violation
    return Result(seed, world.events, world.fingerprint, world.now, time.process_time() - began)


def fingerprint_of(seed: int, story: str = "log") -> int:
    return run(seed, story=story).fingerprint


if __name__ == "__main__":
    print(run(int(sys.argv[1]), 1_000_000, *sys.argv[2:]))
