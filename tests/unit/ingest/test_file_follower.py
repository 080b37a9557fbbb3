"""Files that grow, are renamed, copied, truncated and created again, with collectors that die."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hightide.ingest.file_follower import FileFollower, FollowRules, existing

LONG = "x" * 50


class Watch:
    """A follower with its own clock; `kept` is the content of the state file."""

    def __init__(self, *patterns, **rules) -> None:
        self.rules = FollowRules(tuple(map(str, patterns)), **rules)
        self.kept = {}
        self.now_s = 0.0
        self.start()

    def start(self) -> None:
        self.follower = FileFollower(self.rules, existing(self.kept))

    def crash(self) -> None:
        """Die and start again from the state file."""
        self.follower.close()
        self.start()

    def look(self, *, delivered=True, later_s=1.0) -> list[str]:
        self.now_s += later_s
        self.follower.scan(self.now_s)
        found = list(self.follower.lines(self.now_s, 1 << 20))
        if delivered:
            self.keep({id(followed): followed for followed, _ in found}.values())
        return [line.text.decode() for _, line in found]

    def keep(self, read) -> None:
        self.follower.known.update(self.follower.places(read))
        self.kept = dict(self.follower.known)

    def finish(self) -> list[str]:
        found = list(self.follower.finish())
        self.keep({id(followed): followed for followed, _ in found}.values())
        return [line.text.decode() for _, line in found]


@pytest.fixture
def log(tmp_path) -> Path:
    return tmp_path / "app.log"


def add(path: Path, *lines: str, end="\n") -> None:
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines[:-1]) + lines[-1] + end)


def test_lines_are_given_out_once(log) -> None:
    watch = Watch(log)
    assert watch.look() == []
    add(log, "one", "two")
    assert watch.look() == ["one", "two"]
    add(log, "thr", end="")
    assert watch.look() == []
    add(log, "ee")
    assert watch.look() == ["three"]


def test_after_a_crash_reading_goes_on_behind_what_was_delivered(log) -> None:
    watch = Watch(log)
    add(log, "one")
    assert watch.look() == ["one"]
    add(log, "two")
    assert watch.look(delivered=False) == ["two"]
    watch.crash()
    add(log, "three")
    assert watch.look() == ["two", "three"]
    watch.crash()
    assert watch.look() == []


def test_files_that_come_later_are_found(tmp_path, log) -> None:
    watch = Watch(tmp_path / "*.log", tmp_path / "app.*")
    add(log, "one")
    assert watch.look() == ["one"]
    add(tmp_path / "other.log", "two")
    assert watch.look() == ["two"]


def test_a_renamed_file_is_read_to_its_end_beside_the_new_one(log) -> None:
    watch = Watch(log, quiet_s=5)
    add(log, "one")
    assert watch.look() == ["one"]
    old = log.rename(log.with_suffix(".log.1"))
    add(log, "three")
    add(old, "two", "last", end="")
    assert sorted(watch.look()) == ["three", "two"]
    add(log, "four")
    assert watch.look(later_s=2) == ["four"]
    # The old file has no more writes: its rest is a line now.
    assert watch.look(later_s=5) == ["last"]
    assert len(watch.follower.open) == 2
    watch.look()
    assert [followed.path for followed in watch.follower.open.values()] == [str(log)]


def test_a_file_renamed_while_the_collector_was_down_is_found_by_its_inode(log) -> None:
    watch = Watch(log)
    add(log, "one")
    assert watch.look() == ["one"]
    watch.follower.close()
    add(log, "two")
    log.rename(log.with_suffix(".log.1"))
    add(log, "three")
    watch.start()
    assert sorted(watch.look()) == ["three", "two"]
    watch.crash()
    assert watch.look() == []


def test_a_truncated_file_is_read_from_the_beginning_also_when_it_has_grown_past_the_position(
    log,
) -> None:
    watch = Watch(log)
    add(log, "one", "two")
    assert watch.look() == ["one", "two"]
    log.write_text("three\n")
    assert watch.look() == ["three"]
    log.write_text("four is longer than all that was there\n")
    assert watch.look() == ["four is longer than all that was there"]
    watch.follower.close()
    log.write_text("five is longer than all that was there, too\n")
    watch.start()
    assert watch.look() == ["five is longer than all that was there, too"]


def test_an_incomplete_line_of_a_cut_file_is_not_lost(log) -> None:
    watch = Watch(log)
    add(log, "one", "tw", end="")
    assert watch.look() == ["one"]
    log.write_text("three\n")
    assert watch.look() == ["tw", "three"]


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("pattern", ["app.log", "app.log*"])
def test_the_rest_of_a_file_that_was_copied_and_cut_is_read_from_the_copy(
    tmp_path, log, is_running, pattern
) -> None:
    watch = Watch(tmp_path / pattern)
    first = [f"{number} {LONG}" for number in range(10)]
    add(log, *first)
    assert watch.look() == first
    if not is_running:
        watch.follower.close()
    add(log, "rest")
    shutil.copy(log, log.with_suffix(".log.1"))
    log.write_text("")
    add(log, "new")
    if not is_running:
        watch.start()
    assert sorted(watch.look()) == ["new", "rest"]
    assert watch.look() == []
    watch.crash()
    assert watch.look() == []


def test_files_that_begin_alike_are_not_taken_for_copies(tmp_path, log) -> None:
    watch = Watch(tmp_path / "*.log")
    add(log, "header", "one")
    assert watch.look() == ["header", "one"]
    add(tmp_path / "b.log", "header", "two")
    assert watch.look() == ["header", "two"]


def test_an_inode_that_is_used_again_is_another_file(log) -> None:
    watch = Watch(log)
    add(log, "one")
    assert watch.look() == ["one"]
    watch.follower.close()
    ((identity, place),) = watch.kept.items()
    # As if the file system had reused the inode of a deleted file.
    watch.kept = {identity: replace(place, fingerprint="0" * 24)}
    watch.start()
    assert watch.look() == ["one"]


def test_what_was_there_before_can_be_left_out(tmp_path, log) -> None:
    add(log, "old")
    watch = Watch(tmp_path / "*.log", from_end=True)
    assert watch.look() == []
    add(log, "new")
    add(tmp_path / "b.log", "b")
    assert sorted(watch.look()) == ["b", "new"]


def test_the_last_line_without_newline_is_taken_at_the_end(log) -> None:
    watch = Watch(log)
    add(log, "one", "two", end="")
    assert watch.look() == ["one"]
    assert watch.finish() == ["two"]
    watch.crash()
    assert watch.look() == []


def test_an_event_of_several_lines_is_taken_when_it_is_quiet(log) -> None:
    watch = Watch(log, begins=re.compile(rb"^\d"), quiet_s=5)
    add(log, "1 error", "  at a", "2 fine")
    assert watch.look() == ["1 error\n  at a"]
    assert watch.look(later_s=6) == ["2 fine"]


def test_an_idle_file_is_not_kept_open_and_is_found_when_it_grows(log) -> None:
    watch = Watch(log)
    add(log, "one")
    assert watch.look() == ["one"]
    assert watch.look(later_s=100) == []
    assert watch.follower.open == {}
    add(log, "two")
    assert watch.look() == ["two"]


def test_a_file_that_cannot_be_read_is_told(log, tmp_path) -> None:
    messages = []
    follower = FileFollower(FollowRules((str(tmp_path / "*"),)), {}, messages.append)
    log.symlink_to(tmp_path / "nowhere")
    follower.scan(0)
    assert messages == []
    if os.geteuid() != 0:
        add(tmp_path / "b.log", "one")
        (tmp_path / "b.log").chmod(0)
        follower.scan(0)
        assert "cannot be read" in messages[0]


def test_a_file_that_grows_and_is_rotated_while_it_is_closed_is_read(log) -> None:
    watch = Watch(log)
    add(log, "one")
    assert watch.look() == ["one"]
    watch.start()
    assert watch.look() == [], "it is not opened, because it has not grown"
    add(log, "two")
    log.rename(f"{log}.1")
    add(log, "three")
    assert sorted(watch.look()) == ["three", "two"]


class Rotation(RuleBasedStateMachine):
    """A writer that rotates by renaming, and a collector that dies: no line is lost."""

    @initialize(is_wide=st.booleans())
    def begin(self, is_wide) -> None:
        self.is_wide = is_wide
        self.folder = Path(tempfile.mkdtemp())
        self.log = self.folder / "app.log"
        self.written: list[str] = []
        self.delivered: list[str] = []
        self.number = 0
        self.rotations = 0
        self.watch = Watch(self.folder / ("app.log*" if is_wide else "app.log"), quiet_s=3)

    @rule(count=st.integers(1, 5), torn=st.booleans())
    def write(self, count, torn) -> None:
        for _ in range(count):
            self.number += 1
            line = f"{self.number} {LONG}"
            self.written.append(line)
            add(self.log, line)
        if torn:
            self.number += 1
            line = f"{self.number} torn"
            self.written.append(line)
            add(self.log, line[:-2], end="")
            self.watch_once(delivered=True)
            add(self.log, line[-2:])

    @rule()
    def rotate(self) -> None:
        if self.log.exists():
            if not self.is_wide:
                # Rotated files do not match the pattern: each must be known before it is rotated.
                self.watch_once(delivered=True)
                self.write(2, torn=False)
            self.rotations += 1
            self.log.rename(self.folder / f"app.log.{self.rotations}")

    @rule()
    def look(self) -> None:
        self.watch_once(delivered=True)

    @rule()
    def die(self) -> None:
        self.watch_once(delivered=False)
        self.watch.crash()

    @rule()
    def rotate_while_dead(self) -> None:
        self.rotate()
        self.watch.crash()

    @rule()
    def wait(self) -> None:
        self.watch.now_s += 10

    def watch_once(self, *, delivered) -> None:
        found = self.watch.look(delivered=delivered)
        if delivered:
            self.delivered += found

    @invariant()
    def nothing_is_given_out_twice(self) -> None:
        if hasattr(self, "delivered"):
            assert len(set(self.delivered)) == len(self.delivered)

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        for _ in range(4):
            self.watch_once(delivered=True)
        self.watch.follower.close()
        shutil.rmtree(self.folder)
        assert sorted(self.delivered) == sorted(self.written)


TestRotation = Rotation.TestCase
TestRotation.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
