"""The floor of a micro-batch's time: two Sparks, each with its own settings, taking turns.

Each side is a process that runs one query, topic → noop, with the shortest trigger. Only the
measured side gets records, a few every few milliseconds, so that every batch has some and none has
many.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pyarrow as pa

from bench.harness.generator import Sample
from bench.harness.lab import Measure
from bench.pipeline.sides import HIGHTIDE, Stand, connector_jars, default_session, our_session
from hightide.spark.blocking_client import shared_client
from hightide.spark.columns.encode import encode

PARTITIONS = 1
WARM_BATCHES = 40
BATCHES = 60
EVERY_S = 0.01
PATIENCE_S = 180.0
PROGRAM = Path(__file__).resolve().parents[1] / "spark.py"


@contextmanager
def open_latency(bootstrap: str, sides: Sequence[str]) -> Iterator[dict[str, Measure]]:
    with ExitStack() as stack:
        served = {side: stack.enter_context(_serving(side, bootstrap)) for side in sides}
        yield {side: partial(_measure, process) for side, process in served.items()}


@contextmanager
def _serving(side: str, bootstrap: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, str(PROGRAM), "--serve", side, bootstrap]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdin is not None
        try:
            _answer(process)
            yield process
        finally:
            process.stdin.close()
            if process.wait(PATIENCE_S):
                errors.seek(0)
                print(errors.read()[-2000:], file=sys.stderr)


def _measure(process: "subprocess.Popen[str]") -> Sample:
    assert process.stdin is not None
    process.stdin.write("measure\n")
    process.stdin.flush()
    return _answer(process)


def _answer(process: "subprocess.Popen[str]") -> Sample:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise OSError("a Spark of the latency benchmark has ended")
    sample: Sample = json.loads(line)
    return sample


# ---- in the process of one side ----------------------------------------------------------------


def serve(side: str, bootstrap: str) -> None:
    """Run the query; for each line of stdin, print the times of its batches."""
    jars, _ = connector_jars()
    spark = our_session(jars) if side == HIGHTIDE else default_session(jars)
    topic = f"latency-{side}"
    shared_client({"bootstrap.servers": bootstrap}).create_topic(topic, PARTITIONS)
    with tempfile.TemporaryDirectory() as folder:
        stand = Stand(spark, bootstrap, Path(folder))
        writer = stand.stream(side, topic).writeStream.format("noop")
        query = writer.option("checkpointLocation", str(stand.folder / "checkpoint")).start()
        with _trickle(bootstrap, topic):
            _batches(query, WARM_BATCHES)
        print(json.dumps({}), flush=True)
        for _ in sys.stdin:
            with _trickle(bootstrap, topic):
                taken = _batches(query, BATCHES)
            tenths = quantiles(taken, n=10)
            sample = {"median_ms": median(taken), "best_ms": tenths[0], "worst_ms": tenths[-1]}
            print(json.dumps(sample), flush=True)
        query.stop()
        spark.stop()


def _batches(query: Any, count: int) -> list[float]:
    """Return the times of the next batches with records."""
    give_up_at = time.monotonic() + PATIENCE_S
    found: dict[int, float] = {}
    last = query.lastProgress
    first = last["batchId"] + 2 if last else 1
    while len(found) < count:
        if query.exception() is not None or time.monotonic() > give_up_at:
            raise OSError(f"the query has made {len(found)} batches: {query.exception()}")
        for progress in query.recentProgress:
            if progress["batchId"] >= first and progress["numInputRows"]:
                found[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
        time.sleep(0.1)
    return list(found.values())


@contextmanager
def _trickle(bootstrap: str, topic: str) -> Iterator[None]:
    is_over = threading.Event()
    now_ms = int(time.time() * 1000)
    ((batch, count),) = encode(pa.record_batch({"value": [b"x" * 100] * 5}), now_ms=now_ms)

    def produce() -> None:
        with shared_client({"bootstrap.servers": bootstrap}).writer(topic, 0) as writer:
            while not is_over.wait(EVERY_S):
                writer.append(batch, count)
            writer.flush()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
