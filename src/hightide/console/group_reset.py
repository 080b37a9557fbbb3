"""What a reset of a group's offsets would do: the same as `hightide group reset`.

    {"to": "earliest"}                       the oldest record
    {"to": "latest"}                         only new records
    {"to": "offset", "value": 42}            this offset of each partition
    {"to": "time", "value": "2026-11-15T10:00:00Z"}, or milliseconds since 1970
    {"to": "duration", "value": "15m"}       the records of the last 15 minutes
    {"to": "shift", "value": -10}            ten offsets back

A position outside of a partition becomes its beginning or its end.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hightide.client.admin import Admin
from hightide.client.model.cluster import Extent, Partition
from hightide.client.model.groups import Commit, GroupDescription
from hightide.wire.errors import ErrorCode, KafkaError

UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
EARLIEST_MS = 100_000_000_000
"""A smaller number of milliseconds is before 1973, and is probably meant as seconds."""
HIGHEST_OFFSET = 2**63 - 1
HAS_MEMBERS = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)


class Refused(Exception):
    """The change is not possible; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where to reset to."""

    to: str
    value: int = 0
    """An offset, a number of offsets, or milliseconds since 1970."""
    words: tuple[str, ...] = ()
    """The option of the command line that means the same."""


@dataclass(frozen=True, slots=True)
class ResetRow:
    """One partition."""

    topic: str
    partition: int
    before: int | None
    after: int
    moved: int | None
    result: str
    note: str = ""


def target(wanted: Mapping[str, Any], now_ms: int | None = None) -> Target:
    """The target of a request; `Refused` says what is wrong with it."""
    to, value = wanted.get("to"), wanted.get("value")
    match to:
        case "earliest":
            return Target("earliest", words=("--to-earliest",))
        case "latest":
            return Target("latest", words=("--to-latest",))
        case "offset":
            offset = _number(value, "An offset", 0)
            return Target("offset", offset, ("--to-offset", str(offset)))
        case "shift":
            shift = _number(value, "The number of offsets", -HIGHEST_OFFSET)
            return Target("shift", shift, ("--shift", str(shift)))
        case "duration":
            now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
            text = str(value or "").strip().lower()
            return Target("time", now_ms - _duration_ms(text), ("--to-time", text))
        case "time":
            moment_ms, text = _moment(str(value or "").strip())
            return Target("time", moment_ms, ("--to-time", text))
    raise Refused("Say where to: earliest, latest, offset, time, duration or shift.")


def _number(value: Any, what: str, least: int) -> int:
    text = str(value).strip() if isinstance(value, int | str) else ""
    if not re.fullmatch(r"[+-]?\d{1,19}", text) or not least <= int(text) <= HIGHEST_OFFSET:
        raise Refused(f"{what} must be a number{' from 0' if least == 0 else ''}.")
    return int(text)


def _duration_ms(text: str) -> int:
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None:
        raise Refused(f"{text!r} is not a duration; it should be like 90s, 15m, 2h or 3d.")
    return int(found[1]) * UNITS_MS[found[2]]


def _moment(text: str) -> tuple[int, str]:
    """A time, also as the command line takes it; without a zone it is UTC."""
    if re.fullmatch(r"\d{1,18}", text):
        if int(text) < EARLIEST_MS:
            raise Refused(f"{text} is shortly after 1970; give milliseconds, not seconds.")
        return int(text), text
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(f"{text!r} is not a time; it should be like 2026-11-15T10:00:00Z.") from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return int(at.timestamp() * 1000), at.isoformat().replace("+00:00", "Z")


def refuse_members(group: GroupDescription, what: str) -> None:
    """Refuse to change a group that has members, and name them."""
    if not group.members:
        return
    names = [
        f"{member.instance_id or member.client_id or member.id} at {member.host.removeprefix('/')}"
        for member in group.members
    ]
    count = "1 member" if len(names) == 1 else f"{len(names)} members"
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    raise Refused(
        f"Group {group.group!r} cannot be {what} while it has {count}: {shown}. "
        "Stop them first; a member that died is removed after its session timeout."
    )


async def plan(
    admin: Admin, group: str, wanted: Target, names: Sequence[tuple[str, int | None]]
) -> list[ResetRow]:
    """The current and the new offset of each partition; a group with members is refused."""
    try:
        refuse_members(await admin.groups.describe(group), "reset")
    except KafkaError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND or not names:
            raise
    commits = await admin.groups.committed(group, stable=True)
    partitions = await _named(admin, names) if names else sorted(commits)
    extents = await admin.records.extents(partitions)
    times: dict[Partition, int | None] = {}
    if wanted.to == "time" and extents:
        found = await admin.records.offsets(dict.fromkeys(extents, max(0, wanted.value)))
        times = {key: at.offset if at.offset >= 0 else None for key, at in found.items()}
    return [
        planned(partition, commits, extents[partition], wanted, times.get(partition))
        for partition in partitions
        if partition in extents
    ]


async def _named(admin: Admin, names: Sequence[tuple[str, int | None]]) -> list[Partition]:
    """The partitions that are named and exist."""
    topics = await admin.topics.describe(sorted({topic for topic, _ in names}))
    return sorted(
        (topic.name, partition.partition)
        for topic in topics
        for partition in topic.partitions
        if (topic.name, None) in names or (topic.name, partition.partition) in names
    )


def planned(
    partition: Partition,
    commits: Mapping[Partition, Commit],
    extent: Extent,
    wanted: Target,
    at_time: int | None = None,
) -> ResetRow:
    """The new offset of one partition, inside of its log."""
    topic, index = partition
    commit = commits.get(partition)
    before = None if commit is None else commit.offset
    match wanted.to:
        case "earliest":
            to = extent.start_offset
        case "latest":
            to = extent.end_offset
        case "time":
            to = extent.end_offset if at_time is None else at_time
        case "shift":
            if before is None:
                raise Refused(
                    f"{topic}/{index} cannot be shifted: the group has no commit there. "
                    "Choose the beginning, the end, an offset or a time."
                )
            to = before + wanted.value
        case _:
            to = wanted.value
    after = min(max(to, extent.start_offset), extent.end_offset)
    note = ""
    if to != after:
        where = "end" if to > after else "beginning"
        note = f"The log has offsets {extent.start_offset} to {extent.end_offset}: its {where}."
    moved = None if before is None else after - before
    return ResetRow(topic, index, before, after, moved, "would be reset", note)
