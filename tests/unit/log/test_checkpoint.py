"""Checkpoint files have Kafka's format, and a damaged one counts as missing."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.log import checkpoint
from hightide.log.disk import Disk, MemoryDisk
from hightide.log.leader_epochs import EPOCH_CHECKPOINT, LeaderEpochs


def test_offset_checkpoints_have_kafkas_format(disk: Disk) -> None:
    offsets = {("a-topic", 0): 17, ("b.c_d", 12): 0}
    checkpoint.write_offsets(disk, checkpoint.RECOVERY_POINTS, offsets)
    data = disk.read_file("recovery-point-offset-checkpoint")
    assert data == b"0\n2\na-topic 0 17\nb.c_d 12 0\n"
    assert checkpoint.read_offsets(disk, checkpoint.RECOVERY_POINTS) == offsets


@pytest.mark.parametrize(
    "data",
    [b"", b"0\n", b"0\n1\n", b"1\n0\n", b"0\n2\nt 0 1\n", b"0\n1\nt 0 1", b"0\n1\nt 0\n",
     b"0\n1\nt 0 x\n", b"0\nx\n", b"\xff\xfe", b"0\n0\nt 0 1\n"],
)  # fmt: skip
def test_a_damaged_checkpoint_is_as_good_as_none(disk: Disk, data: bytes) -> None:
    disk.create("c").append(data)
    assert checkpoint.read_offsets(disk, "c") is None
    disk.make_directory("t-0")
    disk.create(f"t-0/{EPOCH_CHECKPOINT}").append(data)
    assert LeaderEpochs.load(disk, "t-0").entries == []


def test_a_topic_id_is_kept_as_kafka_writes_it(disk: Disk) -> None:
    disk.make_directory("t-0")
    topic_id = UUID("0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9")
    checkpoint.write_topic_id(disk, "t-0", topic_id)
    assert disk.read_file("t-0/partition.metadata") == (
        b"version: 0\ntopic_id: ChssPU5fYHGCk6S1xtfo-Q"
    )
    assert checkpoint.read_topic_id(disk, "t-0") == topic_id
    for damaged in (b"", b"version: 1\ntopic_id: ChssPU5fYHGCk6S1xtfo-Q", b"version: 0", b"x"):
        disk.create("t-0/partition.metadata").append(damaged)
        assert checkpoint.read_topic_id(disk, "t-0") is None


def test_meta_properties_tell_whose_directory_it_is(disk: Disk) -> None:
    assert checkpoint.read_meta_properties(disk) is None
    checkpoint.write_meta_properties(disk, {"cluster.id": "abc", "broker.id": "3"})
    assert checkpoint.read_meta_properties(disk) == {
        "version": "0",
        "cluster.id": "abc",
        "broker.id": "3",
    }
    disk.create("meta.properties").append(b"#Thu May 1\n\nversion=0\nbroker.id = 4 \n")
    assert checkpoint.read_meta_properties(disk) == {"version": "0", "broker.id": "4"}


class TestLeaderEpochs:
    def test_an_epoch_ends_where_the_next_begins(self) -> None:
        epochs = LeaderEpochs()
        for epoch, start in ((2, 10), (3, 20), (7, 30)):
            epochs.assign(epoch, start)
        ends = {epoch: epochs.end_offset_for(epoch, 40) for epoch in range(-1, 9)}
        assert ends == {
            -1: (-1, -1),
            0: (0, 10),
            1: (1, 10),
            2: (2, 20),
            3: (3, 30),
            4: (3, 30),
            5: (3, 30),
            6: (3, 30),
            7: (7, 40),
            8: (-1, -1),
        }
        assert LeaderEpochs().end_offset_for(3, 40) == (-1, -1)
        assert [epochs.epoch_for(offset) for offset in (9, 10, 19, 20, 35)] == [-1, 2, 2, 3, 7]

    def test_entries_that_contradict_a_new_one_go(self) -> None:
        epochs = LeaderEpochs()
        for epoch, start in ((1, 0), (2, 10), (3, 10), (5, 20), (4, 15)):
            epochs.assign(epoch, start)
        assert epochs.entries == [(1, 0), (3, 10), (4, 15)]
        epochs.assign(4, 18)
        assert epochs.entries[-1] == (4, 15)

    def test_truncation_at_both_ends(self) -> None:
        epochs = LeaderEpochs()
        for epoch, start in ((1, 0), (2, 10), (3, 20)):
            epochs.assign(epoch, start)
        epochs.truncate_from_end(20)
        assert epochs.entries == [(1, 0), (2, 10)]
        epochs.truncate_from_start(12)
        assert epochs.entries == [(2, 12)]
        epochs.truncate_from_start(5)
        assert epochs.entries == [(2, 12)]
        epochs.truncate_from_end(0)
        assert epochs.entries == []
        assert epochs.latest == -1

    @given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=20))
    def test_the_file_has_kafkas_format_and_comes_back(self, given: list[tuple[int, int]]) -> None:
        disk = MemoryDisk()
        disk.make_directory("t-0")
        epochs = LeaderEpochs()
        for epoch, start in given:
            epochs.assign(epoch, start)
            starts = [start for _, start in epochs.entries]
            assert starts == sorted(set(starts))
            assert epochs.entries[-1] == (epoch, min(start, epochs.entries[-1][1]))
        epochs.save(disk, "t-0", epochs.version, epochs.encode())
        epochs.save(disk, "t-0", 0, b"something older that comes late")
        if epochs.entries:
            lines = disk.read_file(f"t-0/{EPOCH_CHECKPOINT}").decode().splitlines()
            assert lines == ["0", str(len(starts)), *(f"{e} {s}" for e, s in epochs.entries)]
        loaded = LeaderEpochs.load(disk, "t-0")
        assert loaded.entries == epochs.entries
        assert not loaded.dirty
