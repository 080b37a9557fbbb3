"""Clusters of the shipped broker under faults, on virtual time: `shipped/` is how.

They are slower than those of the machines alone, so there are fewer; HIGHTIDE_SHIPPED_SEEDS says
how many.  A seed that fails prints how to replay it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import pytest

from tests.simulation.shipped.running import fingerprint_of, run
from tests.support import processes
from tests.support.seeds import first_seed

SEEDS = {"log": 24, "pipeline": 12}
if "HIGHTIDE_SHIPPED_SEEDS" in os.environ:
    SEEDS = dict.fromkeys(SEEDS, int(os.environ["HIGHTIDE_SHIPPED_SEEDS"]))
FIRST = first_seed(is_new="HIGHTIDE_SHIPPED_SEEDS" in os.environ)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("story", SEEDS)
def test_whatever_goes_wrong_the_shipped_broker_loses_nothing_committed(
    story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = range(FIRST, FIRST + SEEDS[story])
    # Workers are new processes, so that nothing of this one can have a say in a run.
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        results = list(pool.map(partial(run, story=story), seeds))
    virtual_s = sum(result.virtual_s for result in results)
    real_s = sum(result.real_s for result in results)
    with capsys.disabled():
        print(
            f"\n{len(seeds)} clusters of shipped brokers from seed {FIRST} on ({story}),"
            f" {virtual_s:.0f} s in {real_s:.0f} s of computing, nothing violated"
        )


@pytest.mark.parametrize("story", SEEDS)
def test_equal_seeds_give_equal_histories_whatever_the_hashes(story: str) -> None:
    asked = (
        f"from tests.simulation.shipped.running import *; print(fingerprint_of({FIRST}, {story!r}))"
    )
    elsewhere = subprocess.run(
        [sys.executable, "-c", asked],
        env={**processes.checkout_environment(), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert fingerprint_of(FIRST, story) == int(elsewhere.stdout)
