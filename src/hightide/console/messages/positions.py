"""Where reading begins and ends in each partition.  Pure.

beginning     the oldest record
end           what is written from now on
last          the last N of each partition
time          the first record at or after a time
offset        an offset of each chosen partition
at            an offset for each partition: where an earlier scan has stopped
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Start: TypeAlias = Literal["beginning", "end", "last", "time", "offset", "at"]
STARTS: tuple[Start, ...] = ("beginning", "end", "last", "time", "offset", "at")


@dataclass(frozen=True, slots=True)
class Position:
    """Where to begin; only the field that the start names counts."""

    start: Start = "last"
    count: int = 100
    time_ms: int = 0
    offset: int = 0
    at: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets to read of one partition: from `begin` up to, not including, `end`."""

    partition: int
    begin: int
    end: int

    @property
    def offsets(self) -> int:
        return max(0, self.end - self.begin)


def first_offset(
    position: Position, partition: int, start: int, end: int, at_time: int | None
) -> int:
    """The first offset to read, inside of the partition; `at_time` is None after the last."""
    match position.start:
        case "beginning":
            wanted = start
        case "end":
            wanted = end
        case "last":
            wanted = end - position.count
        case "time":
            wanted = end if at_time is None else at_time
        case "offset":
            wanted = position.offset
        case "at":
            wanted = position.at.get(partition, end)
    return min(max(wanted, start), end)


def parse_at(text: str) -> dict[int, int]:
    """`0:17,1:4` as offsets by partition."""
    found = {}
    for part in filter(None, text.split(",")):
        partition, colon, offset = part.partition(":")
        if not colon or not partition.isdecimal() or not offset.isdecimal():
            raise ValueError(f"{part!r} should be partition:offset.")
        found[int(partition)] = int(offset)
    return found


def parse_partitions(text: str) -> list[int]:
    """`0,3,7` as numbers; an empty text means all."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"{text!r} should be the numbers of partitions with commas.")
    return sorted({int(part) for part in parts})
