"""The five codecs of record batches, with a limit on the decompressed size.

A few kilobytes of zstd can decompress to hundreds of megabytes, so the output of every codec has a
limit in bytes. There is no limit on the ratio: honest records that repeat themselves reach 400 to 1
and more. The data is decompressed as a stream and the limit applies to the bytes that come out; a
declared size is used only to refuse earlier, before memory is allocated.

The codec libraries are imported on first use: most brokers only store compressed batches and never
decompress them.
"""

import zlib
from enum import IntEnum
from struct import Struct
from typing import TypeAlias

from hightide.wire.errors import Corrupt

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_INFLATED_BYTES = 256 * 1024 * 1024
"""The limit of every reader for one decompressed batch, and the highest value of the setting
`message.max.decompressed.bytes`: what a broker has accepted can be read, even if the setting has
been lowered since."""
DEFAULT_INFLATED_BYTES = 32_000_000
"""The default of the setting: what a broker accepts from producers.

librdkafka reads every zstd batch up to a third of its receive.message.max.bytes (100,000,000), and
may ask for a larger one for ever."""
MAX_ZSTD_WINDOW_BYTES = 128 * 1024 * 1024
"""What Java's client sets at level 22, and what Kafka reads. Only the part of a window that is
written takes memory."""
MAX_GZIP_MEMBERS = 1024
"""Each member has a set-up cost, so very many empty members would waste time."""
MAX_ZSTD_FRAMES = 1024
MAX_ZSTD_BLOCKS = 16 * 1024
MAX_SNAPPY_BLOCKS = 16 * 1024
"""The same for the other codecs: these are enough for the limit at the usual block sizes."""
MAX_SNAPPY_RATIO = 24
"""More than the format can do: three bytes copy at most 64."""

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_FLAGS, _LZ4_KAFKA = 0x23, 0x20  # independent blocks; no dictionary, no unknown flag

_PIECE_BYTES = 256 * 1024
_GZIP_CONTAINER = 16 + zlib.MAX_WBITS

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\0\0\0\1\0\0\0\1"
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = Struct(">i")

_KAFKA_DEFAULT_LZ4_LEVEL = 9

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_RLE_BLOCK = 1


class Codec(IntEnum):
    """The lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class InflatedTooLarge(Corrupt):
    """The decompressed data exceeds the limit."""


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
    """Decompress `data` as `inflate` does, into bytes."""
    return bytes(inflate(codec, data, limit))


def inflate(codec: Codec, data: Buffer, limit: int = MAX_INFLATED_BYTES) -> bytes | bytearray:
    """Decompress `data`; raise Corrupt if it is damaged, InflatedTooLarge if it has more bytes than
    the limit."""
    if codec is Codec.NONE:
        if len(data) > limit:
            raise _too_large(limit)
        return bytes(data)
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


def _too_large(limit: int) -> InflatedTooLarge:
    return InflatedTooLarge(f"the decompressed records exceed the limit of {limit} bytes")


def _decompress_gzip(data: memoryview, limit: int) -> bytearray:
    # Small pieces keep `unused_data` short: otherwise each member would copy all that follow it.
    # One join of all pieces would hold the GIL for long, so they are added one by one.
    out = bytearray()
    size = at = 0
    for _ in range(MAX_GZIP_MEMBERS):
        member = zlib.decompressobj(wbits=_GZIP_CONTAINER)
        while not member.eof:
            piece = data[at : at + _PIECE_BYTES]
            if not piece:
                raise Corrupt("the gzip data ends too early")
            try:
                inflated = member.decompress(piece, min(limit - size + 1, _PIECE_BYTES))
            except zlib.error as error:
                raise Corrupt(f"the gzip data is damaged: {error}") from None
            size += len(inflated)
            if size > limit:
                raise _too_large(limit)
            out += inflated
            at += len(piece) - len(member.unused_data) - len(member.unconsumed_tail)
        if at == len(data):
            return out
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


def _decompress_snappy(data: memoryview, limit: int) -> bytes | bytearray:
    """Decompress blocks in the frame of Java clients, or the one bare block of librdkafka."""
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, limit)
    # Ignore the two version numbers: some writers get their byte order wrong.
    at = len(_XERIAL_HEADER)
    if len(data) < at:
        raise Corrupt("the snappy header ends too early")
    out = bytearray()
    blocks = 0
    while at < len(data):
        blocks += 1
        if blocks > MAX_SNAPPY_BLOCKS:
            raise Corrupt(f"the snappy data has more than {MAX_SNAPPY_BLOCKS} blocks")
        if len(data) - at < _BLOCK_LENGTH.size:
            raise Corrupt("the snappy data ends inside a block length")
        (length,) = _BLOCK_LENGTH.unpack_from(data, at)
        at += _BLOCK_LENGTH.size
        if not 0 < length <= len(data) - at:
            raise Corrupt(f"a snappy block has {length} bytes, but {len(data) - at} are left")
        block = _decompress_snappy_block(data[at : at + length], limit)
        limit -= len(block)
        out += block
        at += length
    return out


def _decompress_snappy_block(data: memoryview, limit: int) -> bytes:
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > MAX_SNAPPY_RATIO * len(data):
            raise Corrupt(f"{len(data)} bytes of snappy data cannot hold {size} bytes")
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


def is_for_every_reader(codec: Codec, data: Buffer) -> bool:
    """Whether Java's clients can read data that `inflate` reads: their lz4 needs blocks that do not
    depend on each other."""
    if codec is not Codec.LZ4:
        return True
    head = bytes(data[:5])
    return head[:4] == _LZ4_MAGIC and head[4] & _LZ4_FLAGS == _LZ4_KAFKA


def _decompress_lz4(data: memoryview, limit: int) -> bytearray:
    import lz4.frame

    context = lz4.frame.create_decompression_context()
    out = bytearray()
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
        out += piece
    if at != len(data):
        raise Corrupt(f"{len(data) - at} bytes follow the lz4 frame")
    return out


def _decompress_zstd(data: memoryview, limit: int) -> bytearray:
    import zstandard

    # The reader stops without an error where the data ends inside a frame, so each frame is
    # measured first.
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)
    out = bytearray()
    size = at = frames = blocks = 0
    while at < len(data) or not frames:
        frames += 1
        if frames > MAX_ZSTD_FRAMES:
            raise Corrupt(f"the zstd data has more than {MAX_ZSTD_FRAMES} frames")
        try:
            if data[at : at + 4] != _ZSTD_MAGIC:
                raise Corrupt("there is no zstd frame where one is expected")
            declared = zstandard.get_frame_parameters(data[at:]).content_size
            if declared != zstandard.CONTENTSIZE_UNKNOWN and declared > limit - size:
                raise _too_large(limit)
            first_block = at + zstandard.frame_header_size(data[at:])
            end, blocks = _measure_zstd(data, at, first_block, blocks)
            reader = decompressor.stream_reader(data[at:end])
            while piece := reader.read(min(limit - size + 1, _PIECE_BYTES)):
                size += len(piece)
                if size > limit:
                    raise _too_large(limit)
                out += piece
        except zstandard.ZstdError as error:
            raise Corrupt(f"the zstd data is damaged: {error}") from None
        at = end
    return out


def _measure_zstd(data: memoryview, start: int, at: int, blocks: int) -> tuple[int, int]:
    """Return where the frame at `start` ends, and the number of blocks with those of the frames
    before it. Its blocks begin at `at`."""
    has_checksum = data[start + 4] & 4
    last = 0
    while not last:
        blocks += 1
        if blocks > MAX_ZSTD_BLOCKS:
            raise Corrupt(f"the zstd data has more than {MAX_ZSTD_BLOCKS} blocks")
        header = data[at : at + 3]
        if len(header) != 3:
            raise Corrupt("the zstd data ends too early")
        bits = int.from_bytes(header, "little")
        last, kind, size = bits & 1, bits >> 1 & 3, bits >> 3
        at += 3 + (1 if kind == _ZSTD_RLE_BLOCK else size)
    if has_checksum:
        at += 4
    if at > len(data):
        raise Corrupt("the zstd data ends too early")
    return at, blocks
