"""The disks that the log is tested on."""

from pathlib import Path

import pytest

from hightide.log.disk import Disk, MemoryDisk, RealDisk


@pytest.fixture(params=["real", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    """Every test that asks for a disk runs on both."""
    return RealDisk(tmp_path / "data") if request.param == "real" else MemoryDisk()
