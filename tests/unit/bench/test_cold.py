"""Cold means that a file is not in the page cache, and the harness must be able to tell."""

from pathlib import Path

import pytest

from bench.harness.broker import BrokerFailure
from bench.harness.cold import make_cold
from bench.harness.machine import file_system
from bench.harness.page_cache import cached_share

PAGES = 100
PAGE = 4096


def test_what_was_just_written_is_in_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "written"
    path.write_bytes(b"x" * PAGES * PAGE + b"and a piece of a page")
    assert cached_share(path) == 1.0


def test_an_empty_file_is_not_in_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    assert cached_share(path) == 0.0


def test_a_cold_file_is_gone_from_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "cold"
    path.write_bytes(b"x" * PAGES * PAGE)
    try:
        make_cold([path])
    except BrokerFailure:
        if file_system(tmp_path) in ("ext4", "xfs"):
            raise
        pytest.skip("this file system lives in the page cache")
    assert cached_share(path) == 0.0
