"""Writes one record, and replays records of a topic to another.

Both write with acks=all as an idempotent producer, so that a retry writes nothing twice.  A key
chooses the same partition as with Java's producer and `hightide produce`.
"""

from __future__ import annotations

import base64
import binascii
import json
import shlex
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from hightide.client.admin import Admin
from hightide.client.leader_cache import LeaderCache
from hightide.client.model.cluster import Timestamp
from hightide.client.producer import PartitionProducer
from hightide.client.transactional import Identity, Transactional
from hightide.console.commands import command
from hightide.console.messages.filter import Filter
from hightide.console.messages.plan import ask_offsets
from hightide.console.messages.positions import Span
from hightide.console.messages.scan import FoundIn, Limits, Scan
from hightide.wire.batch import Headers, Record, build

FORMS = ("text", "json", "hex", "base64", "null")
BATCH_RECORDS = 500
BATCH_BYTES = 512 * 1024
MOST_REPLAYED = 10_000
REPLAY_BYTES = 256 * 1024 * 1024
COMMANDS_SHOWN = 20

Placement = Literal["same", "key"]


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to write; `partition` None lets the key choose."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    partition: int
    offset: int


def parse_record(given: Mapping[str, Any]) -> NewRecord:
    """The record of a request; ValueError says which field is wrong."""
    headers = given.get("headers", [])
    if not isinstance(headers, list):
        raise ValueError("headers should be a list.")
    partition = given.get("partition")
    if partition is not None and (not isinstance(partition, int) or isinstance(partition, bool)):
        raise ValueError(f"The partition should be a number, not {partition!r}.")
    return NewRecord(
        key=parse_bytes(given.get("key"), "The key"),
        value=parse_bytes(given.get("value"), "The value"),
        headers=tuple(_header(header) for header in headers),
        partition=partition,
    )


def _header(given: Any) -> tuple[str, bytes | None]:
    if not isinstance(given, dict) or not given.get("name"):
        raise ValueError("Each header needs a name.")
    return str(given["name"]), parse_bytes(given, f"The header {given['name']}")


def parse_bytes(given: Any, what: str) -> bytes | None:
    """Bytes from `{"as": "text|json|hex|base64|null", "text": "…"}`."""
    if given is None:
        return None
    if not isinstance(given, dict) or given.get("as", "text") not in FORMS:
        raise ValueError(f"{what} should be an object with as ({', '.join(FORMS)}) and text.")
    form, text = given.get("as", "text"), str(given.get("text", ""))
    try:
        if form == "null":
            return None
        if form == "hex":
            return bytes.fromhex(text)
        if form == "base64":
            return base64.b64decode("".join(text.split()), validate=True)
        if form == "json":
            json.loads(text)
        return text.encode()
    except (ValueError, binascii.Error) as error:
        raise ValueError(f"{what} is not {form}: {error}.") from None


def produce_command(bootstrap: str, topic: str, record: NewRecord) -> str:
    """The `hightide produce` that writes the same record.

    What has bytes that are not text goes through --json, which takes base64.
    """
    target = topic if record.partition is None else f"{topic}/{record.partition}"
    texts = [_utf8(record.key), _utf8(record.value)]
    headers = [(name, _utf8(value)) for name, value in record.headers]
    is_plain = (
        all(text is not None for text in texts[1:])
        and (record.key is None or texts[0] is not None)
        and all(value is not None and "=" not in name for name, value in headers)
        and not (texts[1] or "").startswith("-")
    )
    if not is_plain:
        line = json.dumps(_json_line(record), ensure_ascii=False)
        return f"echo {shlex.quote(line)} | " + command(bootstrap, "produce", target, "--json")
    words: list[object] = ["produce", target, texts[1]]
    if record.key is not None:
        words += ["--key", texts[0]]
    for name, value in headers:
        words += ["--header", f"{name}={value}"]
    return command(bootstrap, *words)


def _json_line(record: NewRecord) -> dict[str, Any]:
    return {
        **({} if record.key is None else _json_field("key", record.key)),
        **_json_field("value", record.value),
        **(
            {
                "headers": [
                    {"key": name, **_json_field("value", value)} for name, value in record.headers
                ]
            }
            if record.headers
            else {}
        ),
    }


def _json_field(name: str, data: bytes | None) -> dict[str, Any]:
    text = _utf8(data)
    if data is None or text is not None:
        return {name: text}
    return {f"{name}_base64": base64.b64encode(data).decode()}


def _utf8(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


# -- write ---------------------------------------------------------------------------------


class Writer:
    """Writes to the partitions of one topic; `finish` waits for the acknowledgements."""

    def __init__(self, leaders: LeaderCache, topic: str, identity: Identity) -> None:
        self._leaders, self._topic, self._identity = leaders, topic, identity
        self._producers: dict[int, PartitionProducer] = {}
        self._sequences: dict[int, int] = {}

    async def append(self, partition: int, records: Sequence[Record]) -> None:
        """Send records as one batch; their offsets do not matter, the broker gives new ones."""
        if partition not in self._producers:
            self._producers[partition] = PartitionProducer(self._leaders, self._topic, partition)
        sequence = self._sequences.get(partition, 0)
        data = build(
            [record._replace(offset=at) for at, record in enumerate(records)],
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=sequence,
        )
        self._sequences[partition] = sequence + len(records)
        await self._producers[partition].append(bytes(data), len(records))

    async def finish(self) -> dict[int, Written]:
        """Wait; return the offset of the last batch of each partition."""
        for producer in self._producers.values():
            await producer.flush()
        return {
            partition: Written(partition, producer.last_base_offset)
            for partition, producer in self._producers.items()
        }

    @property
    def written(self) -> int:
        return sum(producer.written for producer in self._producers.values())

    def close(self) -> None:
        for producer in self._producers.values():
            producer.close()


async def begin_writing(admin: Admin, leaders: LeaderCache, topic: str) -> Writer:
    identity = await Transactional(admin.router).init_producer(None)
    return Writer(leaders, topic, identity)


async def produce(
    admin: Admin, leaders: LeaderCache, topic: str, record: NewRecord, now_ms: int
) -> Written:
    """Write one record and wait until it is acknowledged by all in-sync replicas."""
    (found,) = await admin.topics.describe([topic])
    partition = record.partition
    if partition is None:
        with_leader = [part.partition for part in found.partitions if part.leader >= 0]
        partition = choose(record.key, len(found.partitions), with_leader, now_ms)
    elif partition not in [part.partition for part in found.partitions]:
        raise ValueError(f"{topic} has no partition {partition}.")
    writer = await begin_writing(admin, leaders, topic)
    try:
        await writer.append(
            partition, [Record(0, now_ms, record.key, record.value, record.headers)]
        )
        return (await writer.finish())[partition]
    finally:
        writer.close()


def choose(key: bytes | None, count: int, with_leader: Sequence[int], turn: int) -> int:
    """The partition of a key as Java's producer chooses it; without a key, one with a leader."""
    if key is not None or not with_leader:
        return (murmur2(key or b"") & 0x7FFFFFFF) % count
    return with_leader[turn % len(with_leader)]


def murmur2(data: bytes) -> int:
    """MurmurHash2 with Kafka's seed, as an unsigned number."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    value = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * multiplier & mask
        part = (part ^ part >> 24) * multiplier & mask
        value = (value * multiplier & mask) ^ part
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * multiplier & mask
    value = (value ^ value >> 13) * multiplier & mask
    return value ^ value >> 15


# -- replay --------------------------------------------------------------------------------


@dataclass(slots=True)
class Replay:
    """What a replay reads and writes; with `is_dry` it writes nothing."""

    topic: str
    target: str
    offsets: dict[int, list[int]]
    """The chosen offsets of each partition, ascending."""
    placement: Placement = "same"
    is_dry: bool = True
    read: int = 0
    written: int = 0
    bytes: int = 0
    missing: list[tuple[int, int]] = field(default_factory=list)
    by_partition: dict[int, int] = field(default_factory=dict)

    @property
    def wanted(self) -> int:
        return sum(map(len, self.offsets.values()))


def parse_selection(given: Any) -> dict[int, list[int]]:
    """`[[partition, offset], …]` as ascending offsets by partition."""
    if not isinstance(given, list) or not given:
        raise ValueError("Select records first.")
    if len(given) > MOST_REPLAYED:
        raise ValueError(f"At most {MOST_REPLAYED} records are replayed at once.")
    found: dict[int, set[int]] = {}
    for item in given:
        if not (
            isinstance(item, list)
            and len(item) == 2
            and all(isinstance(part, int) and part >= 0 for part in item)
        ):
            raise ValueError(f"{item!r} should be a partition and an offset.")
        found.setdefault(item[0], set()).add(item[1])
    return {partition: sorted(offsets) for partition, offsets in sorted(found.items())}


def runs(offsets: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Consecutive offsets as (first, count)."""
    for _, group in groupby(enumerate(offsets), lambda pair: pair[1] - pair[0]):
        run = [offset for _, offset in group]
        yield run[0], len(run)


def replay_commands(bootstrap: str, replay: Replay) -> list[str]:
    """The pipes of the CLI that do the same, one for each run of consecutive offsets."""
    lines = []
    without_partition = " | jq -c 'del(.partition)'" if replay.placement == "key" else ""
    for partition, offsets in replay.offsets.items():
        for first, count in runs(offsets):
            source = command(
                bootstrap, "consume", f"{replay.topic}/{partition}", "--from", first,
                "--count", count, "--output", "json",
            )  # fmt: skip
            target = command(bootstrap, "produce", replay.target, "--json")
            lines.append(f"{source}{without_partition} | {target}")
    return lines


async def run_replay(
    admin: Admin, leaders: LeaderCache, replay: Replay
) -> AsyncGenerator[Replay, None]:
    """Read the chosen records and write them; yield after each part."""
    (source,) = await admin.topics.describe([replay.topic])
    (target,) = await admin.topics.describe([replay.target])
    known = {partition.partition for partition in source.partitions}
    if unknown := [index for index in replay.offsets if index not in known]:
        raise ValueError(f"{replay.topic} has no partition {unknown[0]}.")
    count = len(target.partitions)
    if replay.placement == "same" and (largest := max(replay.offsets)) >= count:
        raise ValueError(
            f"{replay.target} has {count} partitions, so it has no partition {largest}:"
            " let the keys choose the partitions."
        )
    with_leader = [part.partition for part in target.partitions if part.leader >= 0]
    spans = await _spans(leaders, replay)
    writer = None if replay.is_dry else await begin_writing(admin, leaders, replay.target)
    waiting: dict[int, list[Record]] = {}
    seen: set[tuple[int, int]] = set()
    try:
        limits = Limits(
            found=2**62, looked=2**62, bytes=REPLAY_BYTES, found_bytes=REPLAY_BYTES, seconds=300
        )
        scan = Scan(leaders, replay.topic, spans, Filter(), limits)
        chosen = {(index, offset) for index, offs in replay.offsets.items() for offset in offs}
        async for found in scan.run():
            for one in found:
                key = one.partition, one.found.record.offset
                if key in chosen and key not in seen:
                    seen.add(key)
                    index = _place(replay, one, count, with_leader)
                    waiting.setdefault(index, []).append(one.found.record)
                    _count(replay, one, index)
            if writer is not None:
                await _send(writer, waiting, is_last=False)
                replay.written = writer.written
            yield replay
        if scan.progress.stopped != "end":
            raise ValueError("The selection is too large to replay at once.")
        replay.missing = sorted(chosen - seen)
        if writer is not None:
            await _send(writer, waiting, is_last=True)
            await writer.finish()
            replay.written = writer.written
        yield replay
    finally:
        if writer is not None:
            writer.close()


async def _spans(leaders: LeaderCache, replay: Replay) -> list[Span]:
    partitions = list(replay.offsets)
    starts = await ask_offsets(leaders, replay.topic, partitions, Timestamp.EARLIEST)
    ends = await ask_offsets(leaders, replay.topic, partitions, Timestamp.LATEST, True)
    spans = []
    for index, offsets in replay.offsets.items():
        for first, length in joined_runs(offsets):
            begin, end = max(first, starts[index]), min(first + length, ends[index])
            if begin < end:
                spans.append(Span(index, begin, end))
    return spans


def joined_runs(offsets: Sequence[int], gap: int = 1_000) -> Iterable[tuple[int, int]]:
    """Runs with the small gaps between them filled, so that there are few fetches."""
    found: list[list[int]] = []
    for first, count in runs(offsets):
        if found and first - (found[-1][0] + found[-1][1]) <= gap:
            found[-1][1] = first + count - found[-1][0]
        else:
            found.append([first, count])
    return [(first, count) for first, count in found]


def _place(replay: Replay, one: FoundIn, count: int, with_leader: Sequence[int]) -> int:
    if replay.placement == "same":
        return one.partition
    return choose(one.found.record.key, count, with_leader, replay.read)


def _count(replay: Replay, one: FoundIn, index: int) -> None:
    record = one.found.record
    replay.read += 1
    replay.bytes += len(record.key or b"") + len(record.value or b"")
    replay.by_partition[index] = replay.by_partition.get(index, 0) + 1


async def _send(writer: Writer, waiting: dict[int, list[Record]], *, is_last: bool) -> None:
    """Send full batches, and at the end all that waits."""
    for partition, records in waiting.items():
        while records and (is_last or len(records) >= BATCH_RECORDS):
            size = taken = 0
            for record in records[:BATCH_RECORDS]:
                size += 64 + len(record.key or b"") + len(record.value or b"")
                if taken and size > BATCH_BYTES:
                    break
                taken += 1
            await writer.append(partition, records[:taken])
            del records[:taken]
