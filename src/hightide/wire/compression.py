"""The five codecs of record batches, with limits on the decompressed size.

A few kilobytes of zstd can decompress to hundreds of megabytes, so the output of every codec has
two limits: a number of bytes, and a ratio to the compressed size. The limits apply while
decompressing, and a size that the data declares is checked before memory is allocated.

The codec libraries are imported on first use: most brokers only store compressed batches and never
decompress them.
"""

import zlib
from enum import IntEnum
from struct import Struct
from typing import TypeAlias

from hightide.wire.errors import Corrupt

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_INFLATED_BYTES = 64 * 1024 * 1024
"""The default limit for one decompressed batch."""
MAX_INFLATION = 100
INFLATION_ALLOWANCE_BYTES = 1024 * 1024
"""A batch may decompress to at most MAX_INFLATION times its size plus this allowance."""
MAX_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
MAX_GZIP_MEMBERS = 1024
"""Each member has a set-up cost, so very many empty members would waste time."""

_PIECE_BYTES = 256 * 1024
_GZIP_CONTAINER = 16 + zlib.MAX_WBITS

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\0\0\0\1\0\0\0\1"
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = Struct(">i")

_KAFKA_DEFAULT_LZ4_LEVEL = 9

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK_BYTES = 128 * 1024
_ZSTD_RLE_BLOCK = 1
_ZSTD_RAW_BLOCK = 0


class Codec(IntEnum):
    """The lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data` as Kafka's clients expect it; `level` is Kafka's compression.*.level."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            deflate = zlib.compressobj(-1 if level is None else level, wbits=_GZIP_CONTAINER)
            return deflate.compress(data) + deflate.flush()
        case Codec.SNAPPY:
            return _compress_snappy(data)
        case Codec.LZ4:
            return _compress_lz4(data, level)
        case Codec.ZSTD:
            import zstandard

            return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)


def decompress(codec: Codec, data: Buffer, limit: int = MAX_INFLATED_BYTES) -> bytes:
    """Decompress `data`; raise Corrupt if it is damaged or exceeds the limits."""
    if codec is Codec.NONE:
        if len(data) > limit:
            raise _too_large(limit)
        return bytes(data)
    limit = min(limit, MAX_INFLATION * len(data) + INFLATION_ALLOWANCE_BYTES)
    view = memoryview(data)
    match codec:
        case Codec.GZIP:
            return _decompress_gzip(view, limit)
        case Codec.SNAPPY:
            return _decompress_snappy(view, limit)
        case Codec.LZ4:
            return _decompress_lz4(view, limit)
        case Codec.ZSTD:
            return _decompress_zstd(view, limit)


def _too_large(limit: int) -> Corrupt:
    return Corrupt(f"the decompressed records exceed the limit of {limit} bytes")


def _decompress_gzip(data: memoryview, limit: int) -> bytes:
    # Small pieces keep `unused_data` short: otherwise each member would copy all that follow it.
    out: list[bytes] = []
    size = at = 0
    for _ in range(MAX_GZIP_MEMBERS):
        inflate = zlib.decompressobj(wbits=_GZIP_CONTAINER)
        while not inflate.eof:
            piece = data[at : at + _PIECE_BYTES]
            if not piece:
                raise Corrupt("the gzip data ends too early")
            try:
                inflated = inflate.decompress(piece, limit - size + 1)
            except zlib.error as error:
                raise Corrupt(f"the gzip data is damaged: {error}") from None
            size += len(inflated)
            if size > limit:
                raise _too_large(limit)
            out.append(inflated)
            at += len(piece) - len(inflate.unused_data)
        if at == len(data):
            return b"".join(out)
    raise Corrupt(f"the gzip data has more than {MAX_GZIP_MEMBERS} members")


def _compress_snappy(data: Buffer) -> bytes:
    import cramjam

    view = memoryview(data)
    out = bytearray(_XERIAL_HEADER)
    for at in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + _XERIAL_BLOCK_BYTES]))
        out += _BLOCK_LENGTH.pack(len(block))
        out += block
    return bytes(out)


def _decompress_snappy(data: memoryview, limit: int) -> bytes:
    """Decompress blocks in the frame of Java clients, or the one bare block of librdkafka."""
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, limit)
    # Ignore the two version numbers: some writers get their byte order wrong.
    at = len(_XERIAL_HEADER)
    if len(data) < at:
        raise Corrupt("the snappy header ends too early")
    out: list[bytes] = []
    while at < len(data):
        if len(data) - at < _BLOCK_LENGTH.size:
            raise Corrupt("the snappy data ends inside a block length")
        (length,) = _BLOCK_LENGTH.unpack_from(data, at)
        at += _BLOCK_LENGTH.size
        if not 0 < length <= len(data) - at:
            raise Corrupt(f"a snappy block has {length} bytes, but {len(data) - at} are left")
        block = _decompress_snappy_block(data[at : at + length], limit)
        limit -= len(block)
        out.append(block)
        at += length
    return b"".join(out)


def _decompress_snappy_block(data: memoryview, limit: int) -> bytes:
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > limit:
            raise _too_large(limit)
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise Corrupt(f"the snappy data is damaged: {error}") from None


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    import lz4.frame

    # Kafka's readers refuse blocks that depend on earlier blocks. Kafka's default level means the
    # fast compressor, which is level 0 here, and not the slow one of that number.
    fast = level is None or level == _KAFKA_DEFAULT_LZ4_LEVEL
    framed: bytes = lz4.frame.compress(
        data, compression_level=0 if fast else level, block_linked=False, store_size=False
    )
    return framed


def _decompress_lz4(data: memoryview, limit: int) -> bytes:
    import lz4.frame

    context = lz4.frame.create_decompression_context()
    out: list[bytes] = []
    size = at = 0
    ended = False
    while not ended:
        room = min(limit - size + 1, _PIECE_BYTES)
        try:
            piece, taken, ended = lz4.frame.decompress_chunk(context, data[at:], max_length=room)
        except RuntimeError as error:
            raise Corrupt(f"the lz4 data is damaged: {error}") from None
        at += taken
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        if not piece and not taken and not ended:
            raise Corrupt("the lz4 data ends too early")
        out.append(piece)
    if at != len(data):
        raise Corrupt(f"{len(data) - at} bytes follow the lz4 frame")
    return b"".join(out)


def _decompress_zstd(data: memoryview, limit: int) -> bytes:
    import zstandard

    # The library applies `max_output_size` only to frames that do not declare their size, so the
    # declared size is checked here. It also ignores everything after the first frame, so the frames
    # are measured and decompressed one by one.
    inflate = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)
    out: list[bytes] = []
    at = 0
    while at < len(data) or not out:
        try:
            if data[at : at + 4] != _ZSTD_MAGIC:
                raise Corrupt("there is no zstd frame where one is expected")
            declared = zstandard.get_frame_parameters(data[at:]).content_size
            end, largest = _measure_zstd(data, at, at + zstandard.frame_header_size(data[at:]))
            if declared != zstandard.CONTENTSIZE_UNKNOWN:
                if declared > limit:
                    raise _too_large(limit)
                largest = declared
            room = max(1, min(largest, limit))
            inflated = inflate.decompress(data[at:end], max_output_size=room)
        except zstandard.ZstdError as error:
            raise Corrupt(f"the zstd data is damaged or exceeds {limit} bytes: {error}") from None
        limit -= len(inflated)
        out.append(inflated)
        at = end
    return b"".join(out)


def _measure_zstd(data: memoryview, start: int, at: int) -> tuple[int, int]:
    """Return where the frame at `start` ends, and the limit of its decompressed size. Its blocks
    begin at `at`."""
    has_checksum = data[start + 4] & 4
    largest = 0
    last = 0
    while not last:
        header = data[at : at + 3]
        if len(header) != 3:
            raise Corrupt("the zstd data ends too early")
        bits = int.from_bytes(header, "little")
        last, kind, size = bits & 1, bits >> 1 & 3, bits >> 3
        at += 3 + (1 if kind == _ZSTD_RLE_BLOCK else size)
        largest += size if kind in (_ZSTD_RAW_BLOCK, _ZSTD_RLE_BLOCK) else _ZSTD_BLOCK_BYTES
    if has_checksum:
        at += 4
    if at > len(data):
        raise Corrupt("the zstd data ends too early")
    return at, largest
