"""The run of `make test`: its table, its limits, and a worker that dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import parts
from tests.parts import Part, run, table
from tests.support.pages import ROOT


def test_the_table_has_a_row_for_each_part_and_a_total() -> None:
    rows = table([("lint", 61.0, "ok"), ("unit", 130.9, "FAILED")]).splitlines()
    assert [row.split() for row in rows] == [
        ["part", "time"],
        ["lint", "1:01", "ok"],
        ["unit", "2:10", "FAILED"],
        ["total", "3:11"],
    ]


def test_a_part_ends_with_its_first_command_that_fails(tmp_path: Path) -> None:
    good = (sys.executable, "-c", "")
    bad = (sys.executable, "-c", "raise SystemExit(1)")
    mark = (sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert run(Part("good", (good, good)))
    assert not run(Part("bad", (bad, mark)))
    assert not (tmp_path / "ran").exists()


def test_a_part_that_hangs_is_killed_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LIMIT_S", 0.5)
    assert not run(Part("hangs", ((sys.executable, "-c", "import time; time.sleep(600)"),)))


@pytest.mark.parametrize("distribution", ["load", "loadfile"])
def test_a_worker_that_dies_fails_the_run_at_once(tmp_path: Path, distribution: str) -> None:
    """With the options of pyproject.toml: without them xdist hangs under `--dist loadfile`."""
    for number in range(4):
        (tmp_path / f"test_{number}.py").write_text(
            "import os, pytest\n"
            "@pytest.mark.parametrize('case', range(5))\n"
            "def test_it(case):\n"
            f"    if {number} == 2 and case == 2: os._exit(1)\n"
        )
    options = [
        "-c",
        str(ROOT / "pyproject.toml"),
        f"--rootdir={tmp_path}",
        "-p",
        "no:cacheprovider",
    ]
    command = [sys.executable, "-m", "pytest", *options, "-n", "2", "--dist", distribution]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "crashed while running" in done.stdout
