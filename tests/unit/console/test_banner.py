"""The banner that another process writes."""

from __future__ import annotations

import os
import time

import pytest

from hightide.console.banner import MOST_BYTES, OLD_S, read_banner, write_banner


def read(file):
    found = read_banner(file)
    assert found is not None
    return found


def test_a_banner_is_read_as_it_was_written(tmp_path):
    file = tmp_path / "banner.json"
    assert read_banner(file) is None
    write_banner(file, "19,380 acknowledged <b>", "ok")
    found = read(file)
    assert (found["text"], found["level"], found["is_old"]) == (
        "19,380 acknowledged <b>",
        "ok",
        False,
    )
    write_banner(file, "none", "bad")
    assert read(file)["level"] == "bad"
    assert [one.name for one in tmp_path.iterdir()] == ["banner.json"]


def test_a_banner_that_is_not_written_again_is_old(tmp_path):
    file = tmp_path / "banner.json"
    write_banner(file, "once")
    before = time.time() - OLD_S - 1
    os.utime(file, (before, before))
    assert read(file)["is_old"] is True


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "7", '{"text": 7}', '{"level": "ok"}', '{"text": "' + "x" * MOST_BYTES + '"}'],
)
def test_what_is_no_banner_is_not_shown(tmp_path, content):
    file = tmp_path / "banner.json"
    file.write_text(content)
    assert read_banner(file) is None


def test_an_unknown_level_has_no_colour(tmp_path):
    file = tmp_path / "banner.json"
    file.write_text('{"text": "a", "level": "<script>"}')
    assert read(file)["level"] == "off"
    with pytest.raises(ValueError, match="not 'loud'"):
        write_banner(file, "a", "loud")
