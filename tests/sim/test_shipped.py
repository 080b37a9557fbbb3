"""Clusters of the shipped broker under faults, on virtual time: `shipped/` is how.

They are slower than those of the machines alone, so there are fewer; HIGHTIDE_SHIPPED_SEEDS says
how many.  A seed that fails prints how to replay it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from shipped.running import fingerprint_of, run

SEEDS = int(os.environ.get("HIGHTIDE_SHIPPED_SEEDS", "24"))
FIRST = int(os.environ.get("HIGHTIDE_SEED", random.SystemRandom().randrange(1 << 40)))


@pytest.mark.timeout(3600)
def test_whatever_goes_wrong_the_shipped_broker_loses_nothing_committed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Workers are new processes, so that nothing of this one can have a say in a run.
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        results = list(pool.map(run, range(FIRST, FIRST + SEEDS)))
    virtual_s = sum(each.virtual_s for each in results)
    real_s = sum(each.real_s for each in results)
    with capsys.disabled():
        print(
            f"\n{SEEDS} clusters of shipped brokers from seed {FIRST} on,"
            f" {virtual_s:.0f} s in {real_s:.0f} s of computing, nothing violated"
        )


def test_equal_seeds_give_equal_histories_whatever_the_hashes() -> None:
    elsewhere = subprocess.run(
        [sys.executable, "-c", f"from shipped.running import *; print(fingerprint_of({FIRST}))"],
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert fingerprint_of(FIRST) == int(elsewhere.stdout)
