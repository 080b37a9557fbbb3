"""The machine room: what its faults do, and one fault of each family."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.machine import missing
from tests.chaos.room import INSIDE

ROOT = Path(__file__).parents[2]
POWER_CUTS = """
import os, sys
from pathlib import Path
from tests.chaos.machine import Disk
disk = Disk(Path(sys.argv[1]), "disk", 64)
for number in range(5):
    synced, unsynced = disk.path / f"synced-{number}", disk.path / f"unsynced-{number}"
    for file in (synced, unsynced):
        with file.open("wb") as output:
            output.write(b"x" * 10_000)
            if file == synced:
                output.flush()
                os.fsync(output.fileno())
    disk.die()
    try:
        (disk.path / "more").touch()
        raise SystemExit("a dead disk took a file")
    except OSError:
        pass
    disk.renew()
    assert synced.read_bytes() == b"x" * 10_000, synced
    assert not unsynced.exists() or not unsynced.read_bytes(), unsynced
    disk.fill()
    assert disk.free_bytes() < 4096
    disk.empty()
    assert disk.free_bytes() > 2**20
disk.unmount()
"""


def run(*words: str, limit_s: float) -> None:
    environment = {name: value for name, value in os.environ.items() if name != INSIDE}
    environment["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT}"
    done = subprocess.run(
        words,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=limit_s,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.extended
@pytest.mark.skipif(bool(missing()), reason=f"this needs {', '.join(missing())}")
def test_a_power_cut_loses_what_was_not_synced_and_nothing_else(tmp_path: Path) -> None:
    code = [sys.executable, "-c", POWER_CUTS, str(tmp_path)]
    run("unshare", "--mount", *code, limit_s=60)


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_a_cluster_survives_one_fault_of_each_family(tmp_path: Path) -> None:
    """Without root the room has fewer faults, and the run says which ones it leaves out."""
    words = ["--faults", "each", "--pages", str(tmp_path)]
    run(sys.executable, "-m", "tests.chaos.run", *words, limit_s=800)
