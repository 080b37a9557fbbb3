"""Lets the tests of this folder share `log_world` and `crash_disk`: there are no test packages."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hightide.log.disk import Disk, MemoryDisk, RealDisk


@pytest.fixture(params=["real", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    """Every test that asks for a disk runs on both."""
    return RealDisk(tmp_path / "data") if request.param == "real" else MemoryDisk()
