"""Clusters under faults, on virtual time.

`make simulation` runs the seeds of the commit, and switches old bugs back in to prove that the
simulator finds them.  `make sim SEEDS=2000` runs that many new seeds.  `make sim SEED=8123` replays
one seed and prints its whole history.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context

import pytest

from tests.simulation.faults import BLOWS
from tests.simulation.mutants import MUTANTS, detected
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.simulation import Outcome, run
from tests.support import processes
from tests.support.seeds import first_seed

SEEDS = int(os.environ.get("HIGHTIDE_SEEDS", "400"))
FIRST = first_seed(is_new="HIGHTIDE_SEEDS" in os.environ)
MOST_SEEDS = 2000
ONCE_FAILED = {
    971468315418: "a follower believed a high-watermark checkpoint from before a truncation",
}
"""Seeds that found a bug of ours, and the bug."""


@contextmanager
def workers() -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of new processes, so that the state of this one cannot influence a run."""
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@pytest.mark.timeout(24 * 3600)
def test_whatever_goes_wrong_nothing_committed_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{SEEDS} seeds from {FIRST} on", flush=True)
    events, seconds, happened = 0, 0, dict.fromkeys([*BLOWS, *SCENARIOS], 0)
    with workers() as pool:
        runs = [pool.submit(run, seed) for seed in range(FIRST, FIRST + SEEDS)]
        for done in as_completed(runs):
            ran: Outcome = done.result()
            events += ran.events
            seconds += ran.virtual_ms // 1000
            for name in ran.happened:
                happened[name] += 1
    with capsys.disabled():
        print(f"{events:,} events in {seconds:,} virtual seconds, nothing violated")
        print("seeds by what happened:", ", ".join(f"{k} {v}" for k, v in happened.items()))
    if SEEDS >= 300:
        assert min(happened.values()) > 0, "something that can go wrong never did"


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_a_seed_that_once_failed_passes(seed: int) -> None:
    run(seed)


def test_equal_seeds_give_equal_histories() -> None:
    """Also in another process, in which sets and dicts of strings are in another order."""
    program = (
        "import sys; from tests.simulation.simulation import run;"
        " print(run(int(sys.argv[1])).digest)"
    )
    digests = [
        subprocess.run(
            [sys.executable, "-c", program, str(FIRST)],
            env={**processes.checkout_environment(), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2222")
    ]
    assert digests == [run(FIRST).digest] * 2


def test_a_seed_that_fails_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS["B3"](monkeypatch)
    for seed in range(1, 100):
        try:
            run(seed)
        except AssertionError as violation:
            text = str(violation)
            assert text.endswith(f"make sim SEED={seed}")
            with pytest.raises(AssertionError) as again:
                run(seed)
            assert str(again.value) == text
            return
    pytest.fail("a mistake that is found at once was not found")


@pytest.mark.timeout(24 * 3600)
def test_the_simulator_finds_old_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    missed = []
    with workers() as pool:
        searches = {pool.submit(detected, name, MOST_SEEDS): name for name in MUTANTS}
        for done in as_completed(searches):
            name, (seeds, violation) = searches[done], done.result()
            what = f"{name:4} {MUTANTS[name].__name__.replace('_', ' ')}"
            with capsys.disabled():
                print(f"\n{what}: found after {seeds} seeds: {violation}", end="", flush=True)
            if seeds is None:
                missed.append(what)
    assert not missed
