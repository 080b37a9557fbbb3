"""After a cut the cluster resumes soon, and a leader that was cut off stops serving."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NOT_RUN = 2


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_a_cut_ends_soon_and_a_leader_without_a_session_stops_serving() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.cuts"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if done.returncode == NOT_RUN:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
