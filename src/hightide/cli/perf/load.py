"""The parts of every measurement of `hightide perf`: records, a time window, percentiles."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hightide.cli import librdkafka
from hightide.cli.options import Failed
from hightide.client.librdkafka import library

MB = 1_000_000
BATCH = 1_000
PAYLOAD_BYTES = 2 * MB
WORDS = 512

# A record that is still queued when its topic is deleted must not create the topic again.
CREATES_NOTHING = {"allow.auto.create.topics": False}


class Window:
    """Time, and the CPU time of this process, since the window was opened."""

    def __init__(self) -> None:
        self._opened = time.perf_counter()
        self._cpu = time.process_time()

    def seconds(self) -> float:
        return max(time.perf_counter() - self._opened, 1e-9)

    def cores(self) -> float:
        """How many CPUs this process has used."""
        return (time.process_time() - self._cpu) / self.seconds()


def percentile(ordered: Sequence[float], share: float) -> float:
    """The percentile of sorted values (nearest rank)."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def payloads(size: int) -> list[bytes]:
    """Values like text that repeat rarely, so that compression is neither useless nor trivial.

    They are the same in every run.
    """
    chance = random.Random(1)
    letters = b"abcdefghijklmnopqrstuvwxyz0123456789"
    words = [bytes(chance.choices(letters, k=chance.randrange(3, 12))) for _ in range(WORDS)]
    # All values are cut from one text, because generating each takes longer than sending it.
    text = b" ".join(chance.choices(words, k=PAYLOAD_BYTES // 7))
    text *= 1 + size // len(text)
    count = max(16, min(2_000, PAYLOAD_BYTES // size))
    step = max(1, (len(text) - size) // count)
    return [text[at * step : at * step + size] for at in range(count)]


def hand_over(producer: Any, topic: str, value: bytes, **arguments: Any) -> None:
    """Queue one record in the library; wait while its queue is full."""
    while True:
        try:
            producer.produce(topic, value, **arguments)
            return
        except BufferError:
            producer.poll(0.1)
        except library().KafkaException as error:
            reason = librdkafka.sentence(error.args[0])
            raise Failed(f"The client library refuses the record: {reason}") from None


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr if that is a terminal; otherwise nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda step: bar.advance(task, step)
