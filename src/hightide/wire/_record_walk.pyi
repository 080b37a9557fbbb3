from hightide.wire.compression import Buffer

def walk(
    buffer: Buffer, start: int, end: int, count: int, base_timestamp: int, /
) -> tuple[int, int, int, int, int]: ...
