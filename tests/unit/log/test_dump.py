"""The dump of intact, damaged and old files."""

import io
import json
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.log import dump as dumping
from hightide.log.dump import (
    CHUNK_BYTES,
    Damage,
    Dumped,
    DumpedBatch,
    Entry,
    OldMessage,
    describe,
    dump,
    plain,
    read_segment,
)
from hightide.wire.batch import HEADER_BYTES, Record, build
from hightide.wire.compression import Codec
from hightide.wire.control import ControlType, Marker, build_marker
from hightide.wire.crc import crc32c

# Ignore the warnings that the import of kafka-python causes.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from kafka.record.legacy_records import LegacyRecordBatchBuilder

NOW_MS = 1_700_000_000_000
BASE = 100


def some_batches(count: int = 5, base_offset: int = BASE, value_bytes: int = 30) -> list[bytes]:
    """Build batches of three records each, one codec after the other."""
    made = []
    for number in range(count):
        offset = base_offset + 3 * number
        made.append(
            bytes(
                build(
                    [
                        Record(offset + at, NOW_MS + at, b"k%d" % at, b"v" * value_bytes)
                        for at in range(3)
                    ],
                    base_offset=offset,
                    codec=Codec(number % 5),
                    leader_epoch=4,
                )
            )
        )
    return made


def shown(data: bytes, base_offset: int = BASE) -> list[DumpedBatch | OldMessage | Damage]:
    items = list(read_segment(io.BytesIO(data), base_offset))
    # The items cover every byte exactly once, whatever the damage.
    at = 0
    for item in items:
        assert item.position == at
        at += item.size
    assert at == len(data)
    return items


def first_offsets(items: list[Any]) -> list[int]:
    return [item.header.base_offset for item in items if isinstance(item, DumpedBatch)]


def test_every_batch_of_a_whole_segment_is_shown(tmp_path: Path) -> None:
    path = tmp_path / f"{BASE:020}.log"
    path.write_bytes(b"".join(some_batches()))
    items = list(dump(path))
    assert all(isinstance(item, DumpedBatch) and item.crc_ok for item in items)
    assert first_offsets(items) == [100, 103, 106, 109, 112]
    assert not any(item.problems for item in items if isinstance(item, DumpedBatch))
    records = [r for item in items if isinstance(item, DumpedBatch) for r in item.records()]
    assert [record.offset for record in records] == list(range(100, 115))


@pytest.mark.parametrize("name", ["x.log.deleted", "x.log.swap", "anything"])
def test_files_of_other_names_are_taken_for_segments(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(some_batches(1)[0])
    assert first_offsets(list(dump(tmp_path / name))) == [BASE]


def test_a_batch_with_a_wrong_crc_is_shown_and_the_walk_goes_on() -> None:
    batches = [bytearray(batch) for batch in some_batches()]
    batches[2][-1] ^= 1
    items = shown(b"".join(batches))
    assert first_offsets(items) == [100, 103, 106, 109, 112]
    assert [item.crc_ok for item in items if isinstance(item, DumpedBatch)] == [
        True, True, False, True, True,
    ]  # fmt: skip
    broken = items[2]
    assert isinstance(broken, DumpedBatch)
    assert "CRC" in broken.problems[0]


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48, 2**31 - 1])
def test_after_an_impossible_length_the_next_whole_batch_is_found(length: int) -> None:
    batches = [bytearray(batch) for batch in some_batches()]
    struct.pack_into(">i", batches[1], 8, length)
    items = shown(b"".join(batches))
    assert first_offsets(items) == [100, 106, 109, 112]
    damage = items[1]
    assert isinstance(damage, Damage)
    assert (damage.position, damage.size) == (len(batches[0]), len(batches[1]))


def test_a_length_that_leads_into_another_batch_does_not_hide_the_others() -> None:
    batches = [bytearray(batch) for batch in some_batches()]
    (length,) = struct.unpack_from(">i", batches[1], 8)
    struct.pack_into(">i", batches[1], 8, length + len(batches[2]) + 20)
    items = shown(b"".join(batches))
    assert first_offsets(items) == [100, 106, 109, 112]
    assert isinstance(items[1], Damage)


@pytest.mark.parametrize("magic", [-1, 0, 1, 3, 127])
def test_after_a_wrong_magic_the_next_whole_batch_is_found(magic: int) -> None:
    batches = [bytearray(batch) for batch in some_batches()]
    struct.pack_into(">b", batches[3], 16, magic)
    items = shown(b"".join(batches))
    assert first_offsets(items) == [100, 103, 106, 112]
    assert isinstance(items[3], Damage)


def test_bytes_that_are_lost_between_batches_are_counted() -> None:
    batches = some_batches()
    noise = bytes(range(256)) * (CHUNK_BYTES // 256) + b"\2" * 5000
    items = shown(b"".join([*batches[:2], noise, *batches[2:]]))
    assert first_offsets(items) == [100, 103, 106, 109, 112]
    damage = items[2]
    assert isinstance(damage, Damage)
    assert damage.size == len(noise)


def test_a_batch_that_lies_in_a_value_is_not_taken_for_one_of_the_log() -> None:
    inner = some_batches(1, base_offset=0)[0]
    outer = bytearray(build([Record(BASE, NOW_MS, None, inner)], base_offset=BASE))
    struct.pack_into(">i", outer, 8, -1)
    items = shown(bytes(outer) + some_batches(1, base_offset=BASE + 1)[0])
    assert isinstance(items[0], Damage)
    assert first_offsets(items) == [BASE + 1]


@pytest.mark.parametrize("shift", range(0, 2 * HEADER_BYTES, 7))
def test_a_batch_on_the_border_between_two_chunks_is_found(shift: int) -> None:
    noise = b"\xff" * (CHUNK_BYTES - HEADER_BYTES + shift)
    items = shown(noise + some_batches(1)[0])
    assert first_offsets(items) == [BASE]


def test_a_tail_torn_at_any_byte_is_named_and_all_before_it_is_shown() -> None:
    batches = some_batches(3)
    whole = b"".join(batches[:2])
    for end in range(1, len(batches[2])):
        items = shown(whole + batches[2][:end])
        assert first_offsets(items) == [100, 103]
        torn = items[-1]
        assert isinstance(torn, Damage)
        assert torn.size == end


def test_reserved_space_is_told_from_damage() -> None:
    items = shown(some_batches(1)[0] + bytes(3 * CHUNK_BYTES))
    assert isinstance(items[1], Damage)
    assert "preallocated" in items[1].reason


def test_offsets_that_go_back_are_a_problem() -> None:
    first, second = some_batches(2)
    items = shown(second + first)
    assert isinstance(items[1], DumpedBatch)
    assert "base offset is 100, which is not after 105" in items[1].problems[0]


def test_emptied_batches_and_gaps_are_no_damage() -> None:
    empty = build([], base_offset=100, last_offset=109)
    gap = build([Record(115, NOW_MS, None, None)], base_offset=110, last_offset=119)
    assert not any(item.problems for item in shown(bytes(empty + gap)) if hasattr(item, "problems"))


def old_message(offset: int, magic: int, codec: int = 0) -> bytes:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=10_000)
    builder.append(0, timestamp=NOW_MS, key=b"k", value=b"old " * 30)
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, offset)
    return bytes(data)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1])
def test_messages_of_old_formats_are_named_and_passed_over(magic: int, codec: int) -> None:
    old = old_message(98, magic, codec) + old_message(99, magic, codec)
    items = shown(old + b"".join(some_batches(2)), base_offset=0)
    assert [item.magic for item in items[:2] if isinstance(item, OldMessage)] == [magic, magic]
    assert [item.offset for item in items[:2] if isinstance(item, OldMessage)] == [98, 99]
    assert first_offsets(items) == [100, 103]


def test_an_old_message_with_a_wrong_crc_is_damage() -> None:
    old = bytearray(old_message(1, 1))
    assert zlib.crc32(old[16:]) == struct.unpack_from(">I", old, 12)[0]
    old[-1] ^= 1
    assert isinstance(shown(bytes(old), base_offset=0)[0], Damage)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_damage_leaves_every_byte_accounted_for(data: st.DataObject) -> None:
    segment = bytearray(b"".join(some_batches(4)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(segment) - 1))
        match data.draw(st.sampled_from(["flip", "cut out", "put in"])):
            case "flip":
                segment[at] ^= data.draw(st.integers(1, 255))
            case "cut out":
                del segment[at : at + data.draw(st.integers(1, 100))]
                segment += b"?"
            case _:
                segment[at:at] = data.draw(st.binary(max_size=30))
    for item in shown(bytes(segment)):
        assert list(describe(item, with_records=True))
        assert json.dumps(plain(item, with_records=True))


@given(noise=st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_noise_leaves_every_byte_accounted_for(noise: bytes) -> None:
    for item in shown(noise):
        assert list(describe(item, with_records=True))


def test_a_large_file_is_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"{0:020}.log"
    with path.open("wb") as file:
        file.write(b"\xff" * 50)
        # A sparse file costs no space, and the dump must read all of it.
        file.seek(192 * CHUNK_BYTES)
        file.write(some_batches(1)[0])
    peak_bytes = 0
    bytes_at = dumping._bytes_at

    def measured(file: Any, at: int, length: int) -> bytes:
        nonlocal peak_bytes
        data = bytes_at(file, at, length)
        peak_bytes = max(peak_bytes, len(data))
        return data

    monkeypatch.setattr(dumping, "_bytes_at", measured)
    assert first_offsets(list(dump(path))) == [BASE]
    assert peak_bytes < 2 * CHUNK_BYTES


def test_a_batch_too_large_to_hold_is_still_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumping, "LARGEST_HELD_BYTES", 200)
    monkeypatch.setattr(dumping, "CHUNK_BYTES", 64)
    (item,) = shown(some_batches(1, value_bytes=1000)[0])
    assert isinstance(item, DumpedBatch)
    assert item.crc_ok
    assert "too large" in list(describe(item, with_records=True))[1]


class TestText:
    def test_a_batch_and_its_records_as_lines(self) -> None:
        batch = build(
            [
                Record(7, NOW_MS, b"k\x1b[31m", None, (("h", b"1"), ("n", None))),
                Record(8, NOW_MS + 1, None, b"\xff\xfe"),
            ],
            base_offset=7,
            leader_epoch=2,
            producer_id=1000,
            producer_epoch=3,
            base_sequence=12,
            transactional=True,
        )
        (item,) = shown(bytes(batch), base_offset=0)
        assert list(describe(item, with_records=True)) == [
            f"offsets 7-8 count 2 at 0 size {len(batch)} crc ok codec none epoch 2 "
            "producer 1000 producer-epoch 3 sequence 12 "
            "time 2023-11-14T22:13:20.000Z to 2023-11-14T22:13:20.001Z transactional",
            "  offset 7 time 2023-11-14T22:13:20.000Z key 'k\\x1b[31m' value null "
            "headers {'h': '1', 'n': null}",
            "  offset 8 time 2023-11-14T22:13:20.001Z key null value b'\\xff\\xfe'",
        ]
        assert len(list(describe(item))) == 1

    def test_markers_are_spelled_out(self) -> None:
        batch = build_marker(
            Marker(ControlType.COMMIT, 6), timestamp=NOW_MS, producer_id=1, producer_epoch=0
        )
        (item,) = shown(bytes(batch), base_offset=0)
        assert "COMMIT coordinator-epoch 6" in list(describe(item, with_records=True))[1]

    def test_damage_says_how_much_and_where(self) -> None:
        assert list(describe(Damage(10, 5, "it is gone"))) == [
            "damaged: 5 bytes from 10: it is gone"
        ]

    def test_times_beyond_the_calendar_are_numbers(self) -> None:
        batch = build([Record(0, 2**62, None, None)])
        (item,) = shown(bytes(batch), base_offset=0)
        assert str(2**62) in next(describe(item))

    def test_plain_values_go_through_json(self) -> None:
        batch = build([Record(0, NOW_MS, "ключ".encode(), b"\xff", (("\udcff", None),))])
        (item,) = shown(bytes(batch), base_offset=0)
        value = json.loads(json.dumps(plain(item, with_records=True)))
        assert value["codec"] == "none"
        assert value["crc_ok"] is True
        assert value["records"] == [
            {
                "offset": 0,
                "timestamp": NOW_MS,
                "key": "ключ",
                "value": {"base64": "/w=="},
                "headers": [["�", None]],
            }
        ]

    def test_records_that_cannot_be_read_are_a_problem_and_not_an_exception(self) -> None:
        batch = bytearray(build([Record(0, NOW_MS, b"k", b"v")]))
        batch[HEADER_BYTES] = 0x7E
        (item,) = shown(bytes(batch), base_offset=0)
        assert "DAMAGED" in list(describe(item, with_records=True))[1]
        problems = plain(item, with_records=True)["problems"]
        assert isinstance(problems, list)
        assert len(problems) == 2


class TestFilesBesideTheSegment:
    def written(self, path: Path, data: bytes) -> list[Dumped]:
        path.write_bytes(data)
        return list(dump(path))

    def test_offset_index(self, tmp_path: Path) -> None:
        data = struct.pack(">6i", 0, 0, 40, 4096, 35, 9000) + bytes(80)
        items = self.written(tmp_path / f"{BASE:020}.index", data)
        assert [item.fields for item in items if isinstance(item, Entry)] == [
            {"offset": 100, "position": 0},
            {"offset": 140, "position": 4096},
            {"offset": 135, "position": 9000},
        ]
        assert [bool(item.problems) for item in items if isinstance(item, Entry)] == [
            False, False, True,
        ]  # fmt: skip
        assert next(describe(items[1])) == "offset 140 position 4096 at 8"

    def test_time_index_with_a_cut_entry(self, tmp_path: Path) -> None:
        data = struct.pack(">qi", NOW_MS, 3) + b"123"
        items = self.written(tmp_path / f"{BASE:020}.timeindex", data)
        assert items == [
            Entry(0, {"timestamp": NOW_MS, "offset": 103}),
            Damage(12, 3, "3 bytes are not an entry of 12 bytes"),
        ]

    def test_transaction_index(self, tmp_path: Path) -> None:
        data = struct.pack(">hqqqq", 0, 9, 100, 120, 100)
        (item,) = self.written(tmp_path / f"{BASE:020}.txnindex", data)
        assert isinstance(item, Entry)
        assert item.fields["last_offset"] == 120

    def test_producer_snapshot(self, tmp_path: Path) -> None:
        entries = struct.pack(">i", 2)
        entries += struct.pack(">qhiqiqiq", 5, 1, 10, 200, 3, NOW_MS, -1, -1)
        entries += struct.pack(">qhiqiqiq", 6, 0, 0, 201, 0, NOW_MS, 4, 201)
        data = struct.pack(">hI", 1, crc32c(entries)) + entries
        path = tmp_path / f"{BASE:020}.snapshot"
        items = self.written(path, data)
        assert [item.fields["producer_id"] for item in items if isinstance(item, Entry)] == [5, 6]
        assert len(items) == 2
        for end in range(len(data)):
            assert any(isinstance(item, Damage) for item in self.written(path, data[:end]))

    def test_leader_epochs(self, tmp_path: Path) -> None:
        path = tmp_path / "leader-epoch-checkpoint"
        assert self.written(path, b"0\n2\n0 0\n3 150\n") == [
            Entry(4, {"leader_epoch": 0, "start_offset": 0}),
            Entry(8, {"leader_epoch": 3, "start_offset": 150}),
        ]
        for damaged in (b"", b"0\n", b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\nx y\n", b"0\n1\n1 2 3\n"):
            assert any(isinstance(item, Damage) for item in self.written(path, damaged))
