"""Turns a position into spans of offsets, by asking the leaders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hightide.client.admin import Admin
from hightide.client.admin.records import list_offsets
from hightide.client.leader_cache import LeaderCache
from hightide.client.model.cluster import Timestamp
from hightide.console.messages.positions import Position, Span, first_offset
from hightide.wire.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class Plan:
    """What to read, and what is there."""

    spans: list[Span]
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    """The last stable offsets for read_committed, else the high watermarks."""
    held: Mapping[int, int]
    """How many offsets wait for open transactions, by partition."""


async def make_plan(
    admin: Admin,
    leaders: LeaderCache,
    topic: str,
    position: Position,
    partitions: Sequence[int] = (),
    *,
    read_committed: bool = True,
) -> Plan:
    (found,) = await admin.topics.describe([topic])
    known = [partition.partition for partition in found.partitions]
    for index in partitions:
        if index not in known:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {topic!r} has no partition {index}."
            )
    chosen = list(partitions or known)
    if position.start == "at":
        chosen = [index for index in chosen if index in position.at]
    starts = await ask_offsets(leaders, topic, chosen, Timestamp.EARLIEST)
    ends = await ask_offsets(leaders, topic, chosen, Timestamp.LATEST, read_committed)
    held = {}
    if read_committed:
        high = await ask_offsets(leaders, topic, chosen, Timestamp.LATEST)
        held = {index: high[index] - ends[index] for index in chosen if high[index] > ends[index]}
    times: Mapping[int, int] = {}
    if position.start == "time":
        times = await ask_offsets(leaders, topic, chosen, position.time_ms)
    spans = []
    for index in chosen:
        at_time = times.get(index, -1)
        begin = first_offset(
            position, index, starts[index], ends[index], at_time if at_time >= 0 else None
        )
        spans.append(Span(index, begin, ends[index]))
    return Plan(spans, starts, ends, held)


async def ask_offsets(
    leaders: LeaderCache,
    topic: str,
    partitions: Sequence[int],
    timestamp: int,
    read_committed: bool = False,
) -> dict[int, int]:
    """The offsets at a timestamp, by partition; -1 where there is no record after it."""
    if not partitions:
        return {}
    asked = {(topic, index): timestamp for index in partitions}
    ask = list_offsets(leaders.timeout_ms, read_committed=read_committed)
    answers = await leaders.ask(asked, ask)
    return {index: at.offset for (_, index), at in answers.items()}
