"""The disks that the tests of the log use."""

from pathlib import Path

import pytest

from hightide.log.disk import Disk, MemoryDisk, RealDisk


@pytest.fixture(params=["real", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    """Run every test with a disk on a real disk and in memory."""
    return RealDisk(tmp_path / "data") if request.param == "real" else MemoryDisk()
