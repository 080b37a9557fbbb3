"""Every codec with other implementations, with damage and with decompression bombs."""

import gzip
import struct
import subprocess
import sys
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress

import aiokafka.codec
import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.wire.compression import (
    MAX_GZIP_MEMBERS,
    MAX_SNAPPY_BLOCKS,
    MAX_ZSTD_BLOCKS,
    MAX_ZSTD_FRAMES,
    Codec,
    InflatedTooLarge,
    compress,
    decompress,
)
from hightide.wire.errors import Corrupt

# Ignore the warnings that the import of kafka-python causes.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kafka.codec

PACKING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
MIB = 1024 * 1024

payloads = st.one_of(
    st.binary(max_size=300),
    # Repetition causes back references, and more than 64 KiB several blocks.
    st.builds(
        lambda unit, times: unit * times, st.binary(min_size=1, max_size=40), st.integers(1, 5000)
    ),
)

Transform = Callable[[bytes], bytes]


def independent(codec: Codec) -> list[tuple[Transform, Transform]]:
    """Return encoders and decoders of other Kafka clients."""
    name = codec.name.lower()
    found = [
        (getattr(aiokafka.codec, f"{name}_encode"), getattr(aiokafka.codec, f"{name}_decode")),
    ]
    if getattr(kafka.codec, f"has_{name}")():
        found.append(
            (getattr(kafka.codec, f"{name}_encode"), getattr(kafka.codec, f"{name}_decode"))
        )
    if codec is Codec.GZIP:
        found.append((gzip.compress, gzip.decompress))
    return found


@pytest.mark.parametrize("codec", Codec)
@given(data=payloads)
@settings(max_examples=40, deadline=None)
def test_what_is_compressed_comes_back(codec: Codec, data: bytes) -> None:
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, memoryview(bytearray(packed)), len(data)) == data
    assert compress(codec, memoryview(bytearray(data))) == packed


@pytest.mark.parametrize("codec", PACKING)
@given(data=payloads.filter(bool))
@settings(max_examples=25, deadline=None)
def test_other_implementations_read_ours_and_we_read_theirs(codec: Codec, data: bytes) -> None:
    for encode, decode in independent(codec):
        assert bytes(decode(compress(codec, data))) == data
        assert decompress(codec, bytes(encode(data)), len(data)) == data


@pytest.mark.parametrize(
    ("codec", "levels"),
    [(Codec.GZIP, (1, 6, 9)), (Codec.LZ4, (1, 9, 12, 17)), (Codec.ZSTD, (-5, 1, 3, 22))],
)
def test_levels_are_kafkas_and_all_can_be_read(codec: Codec, levels: tuple[int, ...]) -> None:
    data = b"".join(b"%d:%d " % (i, i * i % 997) for i in range(5000))
    sizes = [len(compress(codec, data, level)) for level in levels]
    assert all(decompress(codec, compress(codec, data, level)) == data for level in levels)
    assert len(set(sizes)) > 1


def test_lz4s_default_level_is_the_fast_compressor() -> None:
    data = b"".join(b"%d:%d " % (i, i * i % 997) for i in range(5000))
    assert compress(Codec.LZ4, data, 9) == compress(Codec.LZ4, data)


def test_bare_snappy_is_read_as_librdkafka_writes_it() -> None:
    data = b"tide " * 20_000
    bare = bytes(cramjam.snappy.compress_raw(data))
    assert decompress(Codec.SNAPPY, bare, len(data)) == data


def test_javas_snappy_frame_is_written_in_blocks_of_32_kib() -> None:
    packed = compress(Codec.SNAPPY, bytes(40_000))
    assert packed[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    (length,) = struct.unpack_from(">i", packed, 16)
    assert cramjam.snappy.decompress_raw_len(packed[20 : 20 + length]) == 32 * 1024


def test_snappy_frames_with_version_numbers_the_wrong_way_round_are_read() -> None:
    packed = compress(Codec.SNAPPY, b"tide" * 100)
    swapped = packed[:8] + b"\1\0\0\0\1\0\0\0" + packed[16:]
    assert decompress(Codec.SNAPPY, swapped) == b"tide" * 100


def test_lz4_frames_have_independent_blocks_and_no_content_size() -> None:
    info = lz4.frame.get_frame_info(compress(Codec.LZ4, bytes(200_000)))
    assert not info["block_linked"]
    assert info["content_size"] == 0


def test_several_gzip_members_and_zstd_frames_are_one_text() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"high") + gzip.compress(b"tide")) == b"hightide"
    for sized in (True, False):
        packer = zstandard.ZstdCompressor(write_content_size=sized, write_checksum=sized)
        frames = packer.compress(b"high") + packer.compress(b"tide")
        assert decompress(Codec.ZSTD, frames) == b"hightide"


def test_zstd_frames_without_a_declared_size_are_read() -> None:
    data = b"".join(b"%d " % (i * i) for i in range(100_000))
    stream = zstandard.ZstdCompressor(level=3).compressobj()
    assert decompress(Codec.ZSTD, stream.compress(data) + stream.flush()) == data


@pytest.mark.parametrize("level", [19, 20, 21, 22])
def test_zstd_of_every_level_is_read(level: int) -> None:
    """Java's client declares no size, and a window of 128 MB at level 22."""
    data = b"".join(b"%d " % (i * i) for i in range(10_000))
    stream = zstandard.ZstdCompressor(level=level).compressobj()
    assert decompress(Codec.ZSTD, stream.compress(data) + stream.flush()) == data


def test_a_zstd_window_beyond_the_limit_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = stream.compress(b"tide" * 100) + stream.flush()
    with pytest.raises(Corrupt, match="memory"):
        decompress(Codec.ZSTD, packed)


@pytest.mark.parametrize("codec", Codec)
def test_one_byte_over_the_limit_is_refused_and_the_limit_itself_is_not(codec: Codec) -> None:
    data = bytes(range(256)) * 300
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    with pytest.raises(Corrupt):
        decompress(codec, packed, len(data) - 1)


@pytest.mark.parametrize("codec", PACKING)
def test_data_cut_at_any_byte_is_corrupt(codec: Codec) -> None:
    packed = compress(codec, b"".join(b"%d " % (i * i) for i in range(60)))
    start = 0
    if codec is Codec.SNAPPY:
        # The frame has no end mark: cut directly after its header it is an empty text.
        assert decompress(codec, packed[:16]) == b""
        start = 17
    for end in [*range(min(start, 16)), *range(start, len(packed))]:
        with pytest.raises(Corrupt):
            decompress(codec, packed[:end])


@pytest.mark.parametrize("codec", PACKING)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damage_is_corrupt_or_other_bytes_but_never_another_error(
    codec: Codec, data: st.DataObject
) -> None:
    packed = bytearray(compress(codec, b"".join(b"%d " % (i * i) for i in range(200))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(packed) - 1))
        packed[at] ^= data.draw(st.integers(1, 255))
    try:
        inflated = decompress(codec, packed, 10_000)
    except Corrupt:
        return
    assert len(inflated) <= 10_000


@pytest.mark.parametrize("codec", PACKING)
@given(data=st.binary(max_size=200), prefixed=st.booleans())
@settings(max_examples=100, deadline=None)
def test_noise_is_corrupt_or_bytes_but_never_another_error(
    codec: Codec, data: bytes, prefixed: bool
) -> None:
    beginning = compress(codec, b"")[: 16 if codec is Codec.SNAPPY else 5] if prefixed else b""
    with suppress(Corrupt):
        assert len(decompress(codec, beginning + data, 4096)) <= 4096


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_bytes_after_the_end_are_corrupt(codec: Codec) -> None:
    with pytest.raises(Corrupt):
        decompress(codec, compress(codec, b"tide" * 100) + b"x")


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 2**31 - 1])
def test_snappy_block_lengths_outside_the_data_are_corrupt(length: int) -> None:
    packed = compress(Codec.SNAPPY, b"tide")[:16] + struct.pack(">i", length) + b"\4\x0ctide"
    with pytest.raises(Corrupt, match="snappy block"):
        decompress(Codec.SNAPPY, packed)


def test_a_snappy_block_that_declares_four_gigabytes_is_refused_by_its_declaration() -> None:
    with pytest.raises(Corrupt, match="cannot hold"):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f\0a")


def test_very_many_empty_gzip_members_are_refused() -> None:
    with pytest.raises(Corrupt, match="members"):
        decompress(Codec.GZIP, gzip.compress(b"") * (MAX_GZIP_MEMBERS + 1))


def zeros_in_gzip(size: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return b"".join(packer.compress(bytes(MIB)) for _ in range(size // MIB)) + packer.flush()


def zeros_in_lz4(size: int) -> bytes:
    packer = lz4.frame.LZ4FrameCompressor(block_linked=False)
    pieces = [packer.begin()]
    pieces += [packer.compress(bytes(MIB)) for _ in range(size // MIB)]
    return b"".join([*pieces, packer.flush()])


def zeros_in_zstd(size: int, declared: bool) -> bytes:
    packer = zstandard.ZstdCompressor().compressobj(size=size if declared else -1)
    return b"".join(packer.compress(bytes(MIB)) for _ in range(size // MIB)) + packer.flush()


def zeros_in_snappy(size: int) -> bytes:
    block = compress(Codec.SNAPPY, bytes(32 * 1024))
    return block + block[16:] * (size // (32 * 1024) - 1)


BOMB_BYTES = 256 * MIB
BOMBS: dict[str, tuple[Codec, Callable[[], bytes]]] = {
    "gzip": (Codec.GZIP, lambda: zeros_in_gzip(BOMB_BYTES)),
    "snappy": (Codec.SNAPPY, lambda: zeros_in_snappy(BOMB_BYTES)),
    "bare snappy": (Codec.SNAPPY, lambda: bytes(cramjam.snappy.compress_raw(bytes(BOMB_BYTES)))),
    "lz4": (Codec.LZ4, lambda: zeros_in_lz4(BOMB_BYTES)),
    "zstd": (Codec.ZSTD, lambda: zeros_in_zstd(BOMB_BYTES, declared=False)),
    "zstd with its size": (Codec.ZSTD, lambda: zeros_in_zstd(BOMB_BYTES, declared=True)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_fills_the_memory(name: str) -> None:
    """Run in a separate process, which shows the memory of the codec libraries."""
    codec, make = BOMBS[name]
    script = f"""
import resource, sys
from hightide.wire.compression import Codec, compress, decompress
from hightide.wire.errors import Corrupt
bomb = sys.stdin.buffer.read()
decompress(Codec({codec}), compress(Codec({codec}), b"the library is loaded"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(Codec({codec}), bomb, {8 * MIB})
except Corrupt:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    run = subprocess.run([sys.executable, "-c", script], input=make(), stdout=-1, check=True)
    grown_bytes = int(run.stdout) * 1024
    assert grown_bytes < 32 * MIB


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_too_large_and_not_damaged(name: str) -> None:
    codec, make = BOMBS[name]
    with pytest.raises(InflatedTooLarge, match="limit"):
        decompress(codec, make(), 8 * MIB)


@pytest.mark.parametrize("declared", [True, False])
def test_no_ratio_is_too_high_below_the_limit(declared: bool) -> None:
    packed = zeros_in_zstd(16 * MIB, declared)
    assert len(packed) < 16 * 1024
    assert decompress(Codec.ZSTD, packed) == bytes(16 * MIB)


def test_a_declared_size_that_is_too_small_is_corrupt() -> None:
    packed = bytearray(zeros_in_zstd(MIB, declared=True))
    assert packed[4] & 0xC0 == 0x80, "the size is a number of four bytes"
    at = packed.index(struct.pack("<I", MIB))
    packed[at : at + 4] = struct.pack("<I", 1000)
    with pytest.raises(Corrupt):
        decompress(Codec.ZSTD, packed)


def test_very_many_small_parts_are_refused() -> None:
    empty = zstandard.ZstdCompressor(write_content_size=False).compress(b"")
    with pytest.raises(Corrupt, match="frames"):
        decompress(Codec.ZSTD, empty * (MAX_ZSTD_FRAMES + 1))
    head = empty[: zstandard.frame_header_size(empty)]
    with pytest.raises(Corrupt, match="blocks"):
        decompress(Codec.ZSTD, head + bytes(3) * MAX_ZSTD_BLOCKS + b"\1\0\0")
    frame = compress(Codec.SNAPPY, b"")[:16]
    with pytest.raises(Corrupt, match="blocks"):
        decompress(Codec.SNAPPY, frame + b"\0\0\0\1\0" * (MAX_SNAPPY_BLOCKS + 1))
