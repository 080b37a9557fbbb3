"""The sparse indexes find positions, have Kafka's format, and notice damage."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.log.disk import Disk, MemoryDisk
from hightide.log.index import OffsetIndex, TimeIndex
from hightide.wire.errors import Corrupt

entries = st.lists(
    st.tuples(st.integers(1, 1000), st.integers(1, 10_000)), min_size=0, max_size=40
).map(lambda steps: [(sum(a for a, _ in steps[: i + 1]), sum(b for _, b in steps[: i + 1]))
                     for i in range(len(steps))])  # fmt: skip


def test_the_files_have_kafkas_format(disk: Disk) -> None:
    offsets, times = OffsetIndex("o", 1000), TimeIndex("t", 1000)
    offsets.add(1007, 4200)
    offsets.add(1019, 8500)
    times.add(99, 1007)
    times.add(99, 1010)
    times.add(150, 1019)
    offsets.flush(disk)
    times.flush(disk)
    assert disk.read_file("o") == pack(">iiii", 7, 4200, 19, 8500)
    assert disk.read_file("t") == pack(">qiqi", 99, 7, 150, 19)


@given(entries, st.integers(0, 50_000), st.integers(0, 500_000), st.integers(1, 39))
def test_lookups_agree_with_a_walk(
    known: list[tuple[int, int]], offset: int, position: int, flushed: int
) -> None:
    disk = MemoryDisk()
    index = OffsetIndex("o", 100)
    for i, (relative, at) in enumerate(known):
        index.add(100 + relative, at)
        if i == flushed:
            index.flush(disk)
    index.flush(disk)
    loaded = OffsetIndex("o", 100)
    loaded.load(disk, 10**9)
    for tested in (index, loaded):
        wanted = max((at for relative, at in known if 100 + relative <= offset), default=0)
        assert tested.position_for(offset) == wanted
        assert tested.boundary_before(position) == max(
            (at for _, at in known if at <= position), default=0
        )


@given(entries, st.integers(0, 11_000))
def test_time_lookups_skip_only_what_is_earlier(known: list[tuple[int, int]], at: int) -> None:
    disk = MemoryDisk()
    index = TimeIndex("t", 100)
    for timestamp, relative in known:
        index.add(timestamp, 100 + relative)
    index.flush(disk)
    loaded = TimeIndex("t", 100)
    loaded.load(disk)
    wanted = max((100 + relative for timestamp, relative in known if timestamp < at), default=100)
    assert index.offset_before(at) == loaded.offset_before(at) == wanted
    assert loaded.last() == ((known[-1][0], 100 + known[-1][1]) if known else (-1, 100))


@given(entries, st.integers(0, 400_000))
def test_truncation_reaches_the_file(known: list[tuple[int, int]], cut: int) -> None:
    disk = MemoryDisk()
    index = OffsetIndex("o", 0)
    for relative, at in known:
        index.add(relative, at)
    index.flush(disk)
    index.truncate(disk, cut)
    index.add(10**6, 10**6)
    index.flush(disk)
    loaded = OffsetIndex("o", 0)
    loaded.load(disk, 10**9)
    kept = [entry for entry in known if entry[1] < cut]
    assert list(zip(loaded.offsets, loaded.positions, strict=True)) == [*kept, (10**6, 10**6)]


@pytest.mark.parametrize(
    "data",
    [
        b"1234567",
        pack(">IIII", 5, 100, 5, 200),
        pack(">IIII", 5, 100, 6, 100),
        pack(">IIII", 9, 100, 6, 200),
        pack(">II", 5, 5000),
        pack(">IIII", 5, 100, 0, 0),
        bytes(800),
    ],
)
def test_a_damaged_offset_index_is_refused(disk: Disk, data: bytes) -> None:
    disk.create("o").append(data)
    with pytest.raises(Corrupt):
        OffsetIndex("o", 0).load(disk, 5000)


@pytest.mark.parametrize(
    "data",
    [
        b"1234567",
        pack(">qiqi", 5, 1, 5, 2),
        pack(">qiqi", 5, 3, 6, 2),
        pack(">qi", 5, -1),
        pack(">qiqi", 5, 1, 0, 0),
    ],
)
def test_a_damaged_time_index_is_refused(disk: Disk, data: bytes) -> None:
    disk.create("t").append(data)
    with pytest.raises(Corrupt):
        TimeIndex("t", 0).load(disk)
