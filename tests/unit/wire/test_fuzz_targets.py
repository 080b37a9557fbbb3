"""Every fuzz target accepts its seeds and some hundred mutations of them, always the same."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz import run
from tests.fuzz.mutation import next_input
from tests.fuzz.targets import Target, every_target
from tests.support.pages import ROOT

TARGETS = every_target()
INPUTS = 200


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The readers of files log each damaged file."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_target_accepts_its_seeds_and_mutations(target: Target) -> None:
    chance = random.Random(target.name)
    seeds = list(target.seeds())
    assert seeds
    for data in (b"", *seeds):
        target.run(data)
    for _ in range(INPUTS):
        data = next_input(seeds, chance)
        try:
            target.run(data)
        except Exception as error:
            raise AssertionError(f"{target.name} fails on {data!r}") from error


def fails_on_ff(data: bytes) -> None:
    if b"\xff" in data:
        raise ValueError("ff")


SCRIPT = """
import sys
from pathlib import Path
from tests.fuzz import run
from tests.fuzz.targets import Target
from tests.unit.wire.test_fuzz_targets import fails_on_ff

run.has_atheris = lambda: sys.argv[2] == "True"
result = run._run(Target("ff", "", fails_on_ff, lambda: [b"abcd"]), 20, 1, Path(sys.argv[1]))
print(run.report(result))
"""


@pytest.mark.parametrize("is_guided", [True, False])
def test_a_finding_is_kept_and_printed(tmp_path: Path, is_guided: bool) -> None:
    """With atheris where it is installed, and with random mutations."""
    if is_guided and not run.has_atheris():
        pytest.skip("atheris is not installed")
    folder = tmp_path / "ff"
    command = [sys.executable, "-c", SCRIPT, str(folder), str(is_guided)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (kept,) = folder.glob("crash-*")
    assert "FAILED" in done.stdout
    assert "ValueError: ff" in done.stdout
    assert f"replay: python -m tests.fuzz.run --target ff --input {kept}" in done.stdout
    with pytest.raises(ValueError, match="ff"):
        fails_on_ff(kept.read_bytes())
