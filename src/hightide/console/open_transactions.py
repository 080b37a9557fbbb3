"""Open transactions, what each of them blocks, and those that hang.

Consumers that read committed records stop at the last stable offset: the first offset of the oldest
open transaction in the partition.  So a transaction *holds* a partition if it begins there, and it
blocks the records from there to the high watermark.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hightide.client.admin import Admin
from hightide.client.admin.records import list_offsets
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.model.cluster import Partition, Timestamp
from hightide.client.model.transactions import (
    ABORTING,
    COMMITTING,
    ActiveProducer,
    TransactionDescription,
)
from hightide.console.group_reset import Refused
from hightide.wire.errors import ErrorCode, KafkaError

OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")
MOST_TRANSACTIONS = 500
MOST_PARTITIONS = 5_000
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Ends:
    """Where the committed records of a partition end, for both kinds of consumers."""

    last_stable_offset: int
    high_watermark: int


async def ends_of(admin: Admin, partitions: Iterable[Partition]) -> dict[Partition, Ends]:
    """The last stable offset and the high watermark; partitions without a leader are left out."""
    wanted = [*partitions]
    if not wanted:
        return {}
    # Ask for the stable offset first: so it is never above the high watermark.
    topics = await admin.topics.list()
    with_leader = {
        (topic.name, partition.partition)
        for topic in topics
        for partition in topic.partitions
        if partition.leader in admin.router.nodes
    }
    led = [key for key in wanted if key in with_leader]
    stable = await stable_offsets(admin, led)
    ends = await admin.records.offsets(dict.fromkeys(led, int(Timestamp.LATEST)))
    return {key: Ends(stable[key], ends[key].offset) for key in led}


async def stable_offsets(admin: Admin, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """The last stable offset of partitions with a leader."""
    ask = list_offsets(admin.router.timeout_ms, read_committed=True)
    latest = dict.fromkeys(partitions, int(Timestamp.LATEST))
    found = await admin.router.ask_leaders(latest, ask)
    return {key: at.offset for key, at in found.items()}


async def look(admin: Admin, now_ms: int) -> dict[str, Any]:
    """The open transactions, oldest first, and what each blocks."""
    listed = await admin.transactions.list(states=OPEN)
    notes = [f"Broker {broker} does not answer: {why}" for broker, why in listed.silent.items()]
    ids = [listing.transactional_id for listing in listed.transactions]
    if len(ids) > MOST_TRANSACTIONS:
        notes.append(f"Only {MOST_TRANSACTIONS} of {len(ids)} open transactions are shown.")
    known = await described(admin, ids[:MOST_TRANSACTIONS])
    partitions = sorted({key for one in known for key in one.partitions})
    if len(partitions) > MOST_PARTITIONS:
        notes.append(f"Only {MOST_PARTITIONS} of {len(partitions)} partitions were asked.")
    ends: dict[Partition, Ends] = {}
    producers: Sequence[ActiveProducer] = ()
    try:
        ends = await ends_of(admin, partitions[:MOST_PARTITIONS])
        producers = await admin.transactions.producers(ends)
    except (KafkaError, ConnectionFailed) as error:
        notes.append(f"What the transactions block is not known now: {error}")
    rows = [row(one, ends, producers, now_ms) for one in known]
    rows.sort(key=lambda found: found["started_ms"] or now_ms)
    return {"transactions": rows, "notes": notes, "time_ms": now_ms}


async def described(admin: Admin, ids: Iterable[str]) -> list[TransactionDescription]:
    """Describe transactional ids; those that are gone or have nothing open are left out."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> TransactionDescription | None:
        async with gate:
            try:
                found = await admin.transactions.describe(name)
            except KafkaError as error:
                if error.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise
                return None
            return found if found.is_open else None

    return [found for found in await asyncio.gather(*map(one, ids)) if found is not None]


def row(
    known: TransactionDescription,
    ends: dict[Partition, Ends],
    producers: Iterable[ActiveProducer],
    now_ms: int,
) -> dict[str, Any]:
    mine = {
        (one.topic, one.partition): one
        for one in producers
        if one.producer_id == known.producer_id and one.start_offset is not None
    }
    partitions = [
        blocked(key, ends.get(key), mine.get(key)) for key in sorted({*known.partitions, *mine})
    ]
    age_ms = None if known.started_ms is None else max(0, now_ms - known.started_ms)
    return {
        "transactional_id": known.transactional_id,
        "state": known.state,
        "coordinator": known.coordinator,
        "producer_id": known.producer_id,
        "producer_epoch": known.producer_epoch,
        "timeout_ms": known.timeout_ms,
        "started_ms": known.started_ms,
        "age_ms": age_ms,
        "is_late": age_ms is not None and age_ms > known.timeout_ms,
        "can_abort": known.state not in COMMITTING | ABORTING,
        "partitions": partitions,
        "holds": sum(found["holds"] for found in partitions),
        "blocked": sum(found["blocked"] for found in partitions if found["holds"]),
    }


def blocked(key: Partition, ends: Ends | None, producer: ActiveProducer | None) -> dict[str, Any]:
    """What a transaction blocks in a partition: `holds` means that consumers wait for this one."""
    start = None if producer is None else producer.start_offset
    stable = None if ends is None else ends.last_stable_offset
    return {
        "topic": key[0],
        "partition": key[1],
        "start_offset": start,
        "last_written_ms": None if producer is None else producer.last_ms,
        "last_stable_offset": stable,
        "high_watermark": None if ends is None else ends.high_watermark,
        "holds": start is not None and start == stable,
        "blocked": 0 if ends is None else max(0, ends.high_watermark - ends.last_stable_offset),
    }


# -- hanging -------------------------------------------------------------------------------------


async def hanging(admin: Admin) -> list[dict[str, Any]]:
    """Transactions that hold a partition, and that no coordinator knows.

    Each is open in its partition before and after all coordinators said that they do not know it.
    """
    topics = await admin.topics.list()
    ends = await ends_of(
        admin, [(topic.name, p.partition) for topic in topics for p in topic.partitions]
    )
    held = [key for key, end in ends.items() if end.last_stable_offset < end.high_watermark]
    if not held:
        return []
    seen = [p for p in await admin.transactions.producers(held) if p.start_offset is not None]
    owned = await _owned(admin, seen)
    suspects = [p for p in seen if (p.producer_id, p.topic, p.partition) not in owned]
    places = {(producer.topic, producer.partition) for producer in suspects}
    again = await admin.transactions.producers(places) if places else ()
    open_still = {(p.topic, p.partition, p.producer_id, p.start_offset) for p in again}
    return [
        {
            **blocked((p.topic, p.partition), ends.get((p.topic, p.partition)), p),
            "producer_id": p.producer_id,
            "producer_epoch": p.producer_epoch,
        }
        for p in suspects
        if (p.topic, p.partition, p.producer_id, p.start_offset) in open_still
    ]


async def _owned(admin: Admin, producers: Sequence[ActiveProducer]) -> set[tuple[int, str, int]]:
    """The producers and partitions that a coordinator knows as part of an open transaction."""
    ids = sorted({producer.producer_id for producer in producers})
    if not ids:
        return set()
    listed = await admin.transactions.list(producer_ids=ids)
    if listed.silent:
        raise Refused("Hanging transactions can only be found when all brokers answer.")
    found: dict[int, set[Partition]] = defaultdict(set)
    for known in await described(admin, [one.transactional_id for one in listed.transactions]):
        found[known.producer_id].update(known.partitions)
    return {(producer, *key) for producer, keys in found.items() for key in keys}


# -- abort ---------------------------------------------------------------------------------------


async def abort_id(admin: Admin, transactional_id: str, *, dry_run: bool) -> dict[str, Any]:
    """Abort the transaction of an id, which fences its producer."""
    known = await admin.transactions.describe(transactional_id)
    if known.state in COMMITTING:
        raise Refused(
            f"The transaction of {transactional_id!r} is being committed and cannot be aborted."
        )
    if not known.is_open:
        raise Refused(f"{transactional_id!r} has no open transaction any more.")
    names = [f"{topic}/{partition}" for topic, partition in known.partitions]
    if known.state in ABORTING:
        return {"result": "is being aborted", "partitions": names}
    if dry_run:
        return {"result": "would be aborted", "partitions": names}
    try:
        await admin.transactions.fence_producer(known)
    except KafkaError as error:
        if error.code != ErrorCode.CONCURRENT_TRANSACTIONS:
            raise
        now = await admin.transactions.describe(transactional_id)
        if now.state not in ABORTING:
            raise
        # A partition without a leader gets its marker later.
        return {"result": "is being aborted", "partitions": names}
    return {"result": "aborted", "partitions": names}


async def abort_hanging(
    admin: Admin, place: Partition, producer_id: int, start_offset: int, *, dry_run: bool
) -> dict[str, Any]:
    """Write an abort marker into one partition, if the transaction there hangs."""
    name = f"{place[0]}/{place[1]}"

    async def find() -> ActiveProducer:
        for producer in await admin.transactions.producers([place]):
            if (producer.producer_id, producer.start_offset) == (producer_id, start_offset):
                return producer
        raise Refused(f"{name} has no such open transaction any more.")

    meant = await find()
    if await _owned(admin, [meant]) & {(producer_id, *place)}:
        raise Refused(
            "That transaction does not hang: a coordinator knows it. Abort it by its id instead."
        )
    # The transaction may have ended while the coordinators were asked.
    meant = await find()
    if dry_run:
        return {"result": "would be aborted", "partitions": [name]}
    await admin.transactions.abort_hanging(meant)
    return {"result": "aborted", "partitions": [name]}
