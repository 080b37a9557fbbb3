"""Exactly once with Spark, at length: queries write while drivers, tasks and brokers are killed.

    make exactly-once-spark ROUNDS=30 SEED=7 ARGS="--bootstrap localhost:9092"

Each round starts a driver for each of three queries.  The driver dies at a random request, is
stopped at a random time, or runs until it has written a batch or two.  Tasks die after they have
written.  Meanwhile a broker may be killed, stopped or paused.  One query copies numbers, the others
count them by key, in update and in complete mode.  At the end, a reader of committed records must
see every row once.  With --bootstrap the queries run on a given cluster, for instance of Apache
Kafka, and only drivers and tasks die.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from hightide.spark.session import session
from hightide.spark.sink import foreach_batch
from hightide.spark.sink.tasks import Append
from hightide.testing import Cluster
from tests.spark.copying_queries import ENDING, TAKING_OVER, WRITING, Copy

MOMENTS = [*TAKING_OVER, *WRITING, *ENDING]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Write exactly once from Spark under faults.")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--bootstrap", default=None, help="a cluster that is there already")
    return parser.parse_args()


def unlucky(folder: Path) -> type[Append]:
    """Return tasks that die after writing when a file asks for it."""

    class Unlucky(Append):
        def append(self, batches):
            done = super().append(batches)
            for file in folder.glob("die*"):
                file.unlink(missing_ok=True)
                raise RuntimeError("this task dies after it has written")
            return done

    return Unlucky


class BlockingClient:
    """Kills and heals brokers in the background, one at a time."""

    def __init__(self, cluster: Cluster, dice: random.Random) -> None:
        self._cluster = cluster
        self._dice = dice
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.faults = 0

    def __enter__(self) -> BlockingClient:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._dice.uniform(2, 8)):
            broker_id = self._dice.choice(self._cluster.brokers)
            hurt, heal = self._dice.choice(
                [
                    (self._cluster.kill, self._cluster.restart),
                    (self._cluster.terminate, self._cluster.restart),
                    (self._cluster.pause, self._cluster.resume),
                ]
            )
            say(f"{hurt.__name__} broker {broker_id}")
            hurt(broker_id)
            self.faults += 1
            self._stop.wait(self._dice.uniform(1, 5))
            heal(broker_id)


def say(sentence: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {sentence}", flush=True)


def main() -> int:
    arguments = parse()
    seed = arguments.seed if arguments.seed is not None else random.randrange(10**6)
    dice = random.Random(seed)
    say(f"seed {seed}, {arguments.rounds} rounds")
    folder = Path(tempfile.mkdtemp(prefix="hightide-exactly-once-"))
    spark = session("exactly-once", "local[2]", {"spark.driver.memory": "1g"})
    foreach_batch.Append = unlucky(folder)  # type: ignore[attr-defined]
    with contextlib.ExitStack() as stack:
        if arguments.bootstrap is None:
            cluster = stack.enter_context(Cluster(brokers=3, ends_sessions=False))
            bootstrap = cluster.bootstrap
        else:
            bootstrap = arguments.bootstrap
        copies = [
            Copy(
                spark,
                bootstrap,
                f"chaos-{seed}-{mode}",
                mode,
                str(folder / mode),
                replicas=3 if arguments.bootstrap is None else -1,
            ).create()
            for mode in ("append", "update", "complete")
        ]
        try:
            with contextlib.ExitStack() as meanwhile:
                if arguments.bootstrap is None:
                    meanwhile.enter_context(BlockingClient(cluster, random.Random(seed)))
                for number in range(arguments.rounds):
                    for copy in copies:
                        run_driver(copy, dice, folder, number)
            for copy in copies:
                batches = copy.live().last.batch + 1
                copy.check(batches)
                say(f"{copy.mode}: {batches} batches, 0 missing, 0 twice")
        except Exception:
            say(f"FAILED; everything is kept in {folder}. Again: SEED={seed}")
            raise
        finally:
            spark.stop()
    return 0


def run_driver(copy: Copy, dice: random.Random, folder: Path, number: int) -> None:
    """Run one driver."""
    moment = dice.choice([None, *MOMENTS])
    if dice.random() < 0.3:
        (folder / f"die-{number}").touch()
    if dice.random() < 0.25:
        # Stopped at a random time, not at a request.
        query = copy.start(copy.sink(), processingTime="0 seconds")
        time.sleep(dice.uniform(0.2, 3))
        query.stop()
        said = "was stopped"
    else:
        sink = copy.live(moment)
        said = f"died {moment[1]} {moment[0]}" if moment and sink.is_dead else "lived"
    for file in folder.glob("die*"):
        file.unlink(missing_ok=True)
    say(f"round {number}, {copy.mode}: the driver {said}")


if __name__ == "__main__":
    sys.exit(main())
