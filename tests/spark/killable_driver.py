"""A driver in its own process, for tests that kill it.

    python -m tests.spark.killable_driver BOOTSTRAP NAME CHECKPOINT FLAGS

It runs the query of `copying_queries` with tasks that Spark tries three times. The first task that
writes fails once. From the third batch on, a task that has written something creates a file in
FLAGS and then waits.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from hightide.spark.session import session
from hightide.spark.sink import foreach_batch
from hightide.spark.sink.tasks import Append
from tests.spark.copying_queries import Copy


def hindered(flags: Path) -> type[Append]:
    class Hindered(Append):
        def append(self, batches):
            done = super().append(batches)
            died, slow = flags / "died", flags / "slow"
            if not died.exists():
                died.touch()
                raise RuntimeError("this task dies after it has written")
            if slow.exists():
                (flags / "written").touch()
                time.sleep(60)
            return done

    return Hindered


def main(bootstrap: str, name: str, checkpoint: str, flags: Path) -> None:
    spark = session("mortal", "local[2,3]", {"spark.driver.memory": "512m"})
    vars(foreach_batch)["Append"] = hindered(flags)
    copy = Copy(spark, bootstrap, name, "update", checkpoint)
    sink = copy.sink()

    def write(frame, batch_id):
        if batch_id == 2:
            (flags / "slow").touch()
        sink(frame, batch_id)

    copy.start(write, processingTime="0 seconds").awaitTermination()


if __name__ == "__main__":
    bootstrap, name, checkpoint, flags = sys.argv[1:]
    main(bootstrap, name, checkpoint, Path(flags))
