"""A thread reads ahead of a consumer whose records are not in memory."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from hightide.broker.network.read_ahead import AHEAD_BYTES, MOST_THREADS, ReadAhead
from hightide.log.disk import DiskFailed, RealFile
from tests.support.eventually import eventually_async

SIZE = 4 * AHEAD_BYTES + 1000


class Watched(RealFile):
    """A file that remembers which bytes were read."""

    __slots__ = ("fails", "touched")

    def __init__(self, path: Path) -> None:
        path.touch()
        os.truncate(path, SIZE)
        super().__init__(os.open(path, os.O_RDONLY), str(path), SIZE)
        self.touched: list[tuple[int, int]] = []
        self.fails = False

    def read_into(self, buffer: memoryview, position: int) -> int:
        if self.fails:
            raise DiskFailed(self.path, "reading", OSError("it is broken"))
        count = super().read_into(buffer, position)
        self.touched.append((position, position + count))
        return count

    def parts(self) -> list[tuple[int, int]]:
        """The ranges that were read, adjacent ones merged."""
        found: list[tuple[int, int]] = []
        for start, end in sorted(self.touched):
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], end)
            else:
                found.append((start, end))
        return found


def run(path: Path, test: Callable[[ReadAhead, Watched], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        await test(ReadAhead(), Watched(path / "00000000000000000000.log"))

    asyncio.run(all_of_it())


def test_nothing_is_read_ahead_of_records_in_memory(tmp_path: Path) -> None:
    async def test(ahead: ReadAhead, file: Watched) -> None:
        assert not ahead
        ahead.reached(file, 0)
        assert not ahead

    run(tmp_path, test)


def test_a_thread_stays_ahead_of_a_consumer_up_to_the_end_of_the_file(tmp_path: Path) -> None:
    async def test(ahead: ReadAhead, file: Watched) -> None:
        ahead.begin(file, 1000)
        await eventually_async(lambda: file.parts() == [(1000, 1000 + AHEAD_BYTES)])
        ahead.reached(file, 1000)
        assert len(file.parts()) == 1, "it is far enough ahead"
        for position in range(2000, SIZE, 1 << 20):
            ahead.reached(file, position)
            await eventually_async(lambda: ahead._running == 0)
        await eventually_async(lambda: file.parts() == [(1000, SIZE)])
        assert not ahead, "there is no more to read"
        once = sum(end - start for start, end in file.touched)
        assert once == SIZE - 1000, "nothing is read twice"

    run(tmp_path, test)


def test_the_number_of_threads_is_limited(tmp_path: Path) -> None:
    async def test(ahead: ReadAhead, _file: Watched) -> None:
        files = [Watched(tmp_path / f"{number}.log") for number in range(MOST_THREADS + 1)]
        for file in files:
            ahead.begin(file, 0)
        *served, left = files
        await eventually_async(lambda: all(file.parts() == [(0, AHEAD_BYTES)] for file in served))
        await eventually_async(lambda: ahead._running == 0)
        assert left.touched == []
        ahead.begin(left, 0)
        await eventually_async(lambda: left.parts() == [(0, AHEAD_BYTES)])

    run(tmp_path, test)


def test_a_consumer_that_overtakes_the_thread_is_caught_up_with(tmp_path: Path) -> None:
    async def test(ahead: ReadAhead, file: Watched) -> None:
        ahead.begin(file, 0)
        ahead.reached(file, 2 * AHEAD_BYTES)
        there = (2 * AHEAD_BYTES, 3 * AHEAD_BYTES)
        await eventually_async(lambda: file.parts() == [(0, AHEAD_BYTES), there])

    run(tmp_path, test)


def test_a_disk_failure_is_ignored(tmp_path: Path) -> None:
    async def test(ahead: ReadAhead, file: Watched) -> None:
        file.fails = True
        ahead.begin(file, 0)
        await asyncio.get_running_loop().shutdown_default_executor()
        assert file.touched == []

    run(tmp_path, test)


def test_a_file_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    async def all_of_it() -> None:
        ahead = ReadAhead()
        file = Watched(tmp_path / "00000000000000000000.log")
        ahead.begin(file, 0)
        assert ahead
        del file
        await eventually_async(lambda: not ahead)

    asyncio.run(all_of_it())
