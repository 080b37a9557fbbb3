"""Clusters under faults, on virtual time.  `make sim SEEDS=1000` runs more of them, and looks for
the old mistakes that take many seeds to find.

A seed that fails is replayed with `HIGHTIDE_SEED=… make sim SEEDS=1`.
"""

from __future__ import annotations

import os
import random
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from mutants import QUICK, SLOW, Mutant
from simulation import Simulation, events_of, fingerprint_of

SEEDS = int(os.environ.get("HIGHTIDE_SEEDS", "60"))
MUTANTS = QUICK + SLOW if "HIGHTIDE_ALL_MUTANTS" in os.environ else QUICK
FIRST = int(os.environ.get("HIGHTIDE_SEED", random.SystemRandom().randrange(1 << 40)))
MOST_SEEDS = 2000


@pytest.mark.timeout(3600)
def test_whatever_goes_wrong_nothing_committed_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    # Workers are new processes, so that nothing of this one can have a say in a run.
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        events = sum(pool.map(events_of, range(FIRST, FIRST + SEEDS)))
    with capsys.disabled():
        print(f"\n{SEEDS} seeds from {FIRST} on, {events} events, nothing violated")


def test_equal_seeds_give_equal_histories() -> None:
    seed = FIRST
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        elsewhere = pool.submit(fingerprint_of, seed).result()
    assert fingerprint_of(seed) == elsewhere


def detected(mutant: Mutant, patch: pytest.MonkeyPatch, most: int) -> int | None:
    """How many seeds it took to find a mistake; None if that many did not do."""
    with patch.context() as patched:
        mutant(patched)
        for count in range(1, most + 1):
            try:
                Simulation(count).run()
            except AssertionError:
                return count
    return None


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulator_finds_an_old_mistake(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count = detected(mutant, monkeypatch, MOST_SEEDS)
    with capsys.disabled():
        print(f"\n{mutant.__name__}: found after {count} seeds")
    assert count is not None
