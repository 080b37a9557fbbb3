"""Check a history against what Kafka promises.

    findings = check(folder)
    assert not findings.anomalies, findings.text()

It knows nothing of brokers: only what clients sent, what they were answered and what they read.
Its time is linear in the length of the history.

    lost                  acknowledged with acks=all, and not in the final log
    duplicate             an idempotent writer's record is in the log twice
    reordered             an idempotent writer's records are not in the order of its sends, or a
                          record that was acknowledged before another was sent is behind it
    refused-written       refused for good, and in the log
    phantom               in the log, and never sent there
    hole                  an offset without a record, in a log without transactions
    inconsistent-offsets  one offset, two records: between two readers, or an acknowledgement and
                          the log
    dirty-read            a reader got a record that is gone
    reread                a reader got an offset again, or one before
    skipped               a reader jumped over a record
    unseen                a reader or a group read to the end and did not get a record
    damaged               a record was served whose checksum is wrong
    reader-error          a reader got an error that it could not get over
    torn-transaction      some records of a transaction are visible, and others are not
    lost-transaction      a transaction was committed, and none of its records are visible
    aborted-visible       a record of a transaction that was not committed is visible
    early-read            a reader of committed records got one before its commit was requested
    zombie                a process committed after its successor had taken its transactional id
    copy-lost, copy-duplicate, copy-reordered
                          a transactional copy is not its source, record by record
    commit-went-back      a group's committed offset is lower than one that was acknowledged
    client-crashed        a client aborted, as librdkafka does when it gets batches of zeros
    replicas-differ       two replicas have different bytes below the high watermark (`replicas.py`)
    unreachable           clients or the final reader did not come to the end
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from signal import Signals

from tests.chaos.facts import (
    ACKED,
    FOREVER_NS,
    HOLE,
    NUMBERS,
    REFUSED,
    WRITER_SHIFT,
    Commit,
    Facts,
    Log,
    Poll,
    Reading,
    Sends,
    Start,
    Transaction,
)
from tests.chaos.findings import Anomaly, Findings, add_evidence, joined
from tests.chaos.history import END_MARKER, Operation

TRANSACTIONAL = ("copier", "transactional")
"""Roles of writers whose records are visible when their transaction is committed."""
CRASHES = (-Signals.SIGABRT, -Signals.SIGSEGV, -Signals.SIGBUS)


def check(history: Path | Iterable[Operation]) -> Findings:
    """Return what is wrong with a history, and its figures."""
    facts = Facts.load(history)
    anomalies = joined(anomalies_of(facts))
    findings = Findings.of(facts, anomalies)
    if isinstance(history, Path):
        add_evidence(findings, history)
    return findings


def anomalies_of(facts: Facts) -> Iterator[Anomaly]:
    for log in facts.logs.values():
        yield from _of_log(facts, log)
    yield from _whole(facts)
    for sends in facts.sends.values():
        yield from _of_sends(facts, sends)
    yield from _realtime_order(facts)
    yield from _owners_order(facts)
    for reading in facts.readings.values():
        yield from _of_reading(facts, reading)
    yield from _unseen(facts)
    for transaction in facts.transactions.values():
        yield from _of_transaction(facts, transaction)
    yield from _copies(facts)
    yield from _commits(facts)
    for t_ns, process, partition, offset, error in facts.troubles:
        kind = "damaged" if error == "damaged" else "reader-error"
        text = f"{process} at offset {offset}: {error}"
        yield Anomaly(kind, partition, text, t_ns, offsets=(offset,))
    for t_ns, client, code in facts.ended:
        if code in CRASHES:
            text = f"{client} was ended by {Signals(-code).name}"
            yield Anomaly("client-crashed", "", text, t_ns)
    for t_ns, text in facts.misses:
        yield Anomaly("unreachable", "", text, t_ns)


# -- the log -----------------------------------------------------------------------------------


def _of_log(facts: Facts, log: Log) -> Iterator[Anomaly]:
    """Find the place of every record, and the records that have two places or no sender."""
    partition = log.partition
    streams = [facts.sends.get((writer, partition)) for writer in facts.writers]
    markers = facts.writers.index(END_MARKER) if END_MARKER in facts.writers else -1
    is_plain = not any(
        facts.role(writer) in TRANSACTIONAL or facts.processes.get(writer, {}).get("keys")
        for writer in facts.writers
        if (writer, partition) in facts.sends
    )
    holes = 0
    for offset, cell in enumerate(log.cells):
        if cell < 0:
            holes += 1
            continue
        writer, number = cell >> WRITER_SHIFT, cell & NUMBERS
        if writer == markers:
            continue
        sends = streams[writer]
        if sends is None or number >= len(sends):
            yield Anomaly("phantom", partition, f"{facts.named(cell)} at {offset} was never sent")
        elif sends.places[number] < 0:
            sends.places[number] = offset
        elif _promises(facts, sends.writer, "idempotent"):
            text = f"{facts.named(cell)} is at {sends.places[number]} and at {offset}"
            at = (sends.places[number], offset)
            t_ns = sends.begun_ns(number)
            yield Anomaly("duplicate", partition, text, t_ns, sends.writer, (number,), at)
    if holes and is_plain:
        first = log.cells.index(HOLE)
        text = f"{holes} offsets have no record, the first is {first}"
        yield Anomaly("hole", partition, text, offsets=(first,), count=holes)


def _whole(facts: Facts) -> Iterator[Anomaly]:
    for partition in sorted({partition for _, partition in facts.sends} | facts.logs.keys()):
        log = facts.logs.get(partition)
        if log is None or not log.is_whole:
            text = f"the final reader came to offset {len(log.cells) if log else 0}, not to the end"
            yield Anomaly("unreachable", partition, text, facts.last_ns)


def _promises(facts: Facts, writer: str, promise: str) -> bool:
    return bool(facts.processes.get(writer, {}).get(promise, True))


# -- sends -------------------------------------------------------------------------------------


def _of_sends(facts: Facts, sends: Sends) -> Iterator[Anomaly]:
    about = facts.processes.get(sends.writer, {})
    if about.get("role") not in TRANSACTIONAL and about.get("durable", True):
        yield from _lost(facts, sends, about.get("keys", 0))
    partition, writer = sends.partition, sends.writer
    highest, before = -1, -1
    is_ordered = _promises(facts, writer, "idempotent")
    log = facts.logs.get(partition)
    for number, place in enumerate(sends.places):
        if place < 0:
            continue
        if place < highest and is_ordered:
            text = f"{writer} #{before} is at {highest} and #{number} at {place}"
            t_ns, at = sends.begun_ns(number), (highest, place)
            yield Anomaly("reordered", partition, text, t_ns, writer, (before, number), at)
        if place > highest:
            highest, before = place, number
        if sends.outcomes[number] == REFUSED:
            text = f"{writer} #{number} at {place} was refused"
            t_ns = sends.begun_ns(number)
            yield Anomaly("refused-written", partition, text, t_ns, writer, (number,), (place,))
    if log is None or sends.offsets == sends.places:
        return
    for number, (offset, place) in enumerate(zip(sends.offsets, sends.places, strict=True)):
        if HOLE not in (offset, place) and offset != place:
            there = log.cells[offset] if offset < len(log.cells) else HOLE
            if there == place or facts.named(there) == f"{writer} #{number}":
                continue  # the log has it twice, and the duplicate is reported
            text = f"{writer} #{number} was acknowledged at {offset} and is at {place}"
            t_ns, at = sends.ended_ns(number), (offset, place)
            yield Anomaly("inconsistent-offsets", partition, text, t_ns, writer, (number,), at)


def _lost(facts: Facts, sends: Sends, keys: int) -> Iterator[Anomaly]:
    """Report acknowledged records that are not in the log, one anomaly for each run of them."""
    missing = [
        number
        for number, place in enumerate(sends.places)
        if place < 0 and sends.outcomes[number] == ACKED
    ]
    if keys:
        latest: dict[int, int] = {}
        for number, place in enumerate(sends.places):
            if place >= 0:
                latest[number % keys] = number
        missing = [number for number in missing if latest.get(number % keys, -1) < number]
    partition, writer = sends.partition, sends.writer
    for _, run in groupby(enumerate(missing), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        first, last = numbers[0], numbers[-1]
        text = f"{writer} #{first} to #{last}, acknowledged at {sends.offsets[first]}"
        if first == last:
            text = f"{writer} #{first}, acknowledged at {sends.offsets[first]}"
        at = tuple(offset for offset in (sends.offsets[first],) if offset >= 0)
        t_ns = sends.ended_ns(first)
        yield Anomaly("lost", partition, text, t_ns, writer, (first, last), at, len(numbers))


def _realtime_order(facts: Facts) -> Iterator[Anomaly]:
    """A record that was acknowledged before another was sent comes before it."""
    by_partition: dict[str, list[Sends]] = defaultdict(list)
    for (_, partition), sends in facts.sends.items():
        by_partition[partition].append(sends)
    for partition, streams in by_partition.items():
        begun = _stretches(streams, is_end=False)
        ended = _stretches(streams, is_end=True)
        at, highest = 0, (-1, "")
        for t_ns, lowest, sends, first in begun:
            while at < len(ended) and ended[at][0] < t_ns:
                highest = max(highest, (ended[at][1], f"{ended[at][2].writer} #{ended[at][3]}"))
                at += 1
            if highest[0] > lowest:
                text = f"{highest[1]} at {highest[0]} was acknowledged before"
                text += f" {sends.writer} #{first} was sent, which is at {lowest}"
                where = (highest[0], lowest)
                yield Anomaly("reordered", partition, text, t_ns, sends.writer, (first,), where)


def _stretches(streams: list[Sends], *, is_end: bool) -> list[tuple[int, int, Sends, int]]:
    """Return time, lowest or highest place, and first number of each stretch, by time."""
    found = []
    for sends in streams:
        for t_ns, first, end in sends.ended if is_end else sends.begun:
            places = [place for place in sends.places[first:end] if place >= 0]
            if places:
                found.append((t_ns, max(places) if is_end else min(places), sends, first))
    found.sort(key=lambda stretch: stretch[:2])
    return found


def _owners_order(facts: Facts) -> Iterator[Anomaly]:
    """The records of a transactional id's owner come before those of its next owner."""
    for transactional_id, owners in facts.owners.items():
        highest: dict[str, tuple[int, str]] = {}
        for t_ns, process in sorted(owners):
            for (writer, partition), sends in facts.sends.items():
                places = (
                    [place for place in sends.places if place >= 0] if writer == process else []
                )
                if not places:
                    continue
                before, earlier = highest.get(partition, (-1, ""))
                if before > min(places):
                    text = f"{earlier} has offset {before}, and {process}, the next owner of"
                    text += f" {transactional_id}, has {min(places)}"
                    where = (before, min(places))
                    yield Anomaly("reordered", partition, text, t_ns, process, offsets=where)
                highest[partition] = max((before, earlier), (max(places), process))


# -- readers -----------------------------------------------------------------------------------


def _of_reading(facts: Facts, reading: Reading) -> Iterator[Anomaly]:
    log = facts.logs.get(reading.partition)
    cells = log.cells if log is not None else array("q")
    is_compacted = _is_compacted(facts, reading.partition)
    process, partition = reading.process, reading.partition
    position = HOLE
    for step in reading.steps:
        if isinstance(step, Start):
            position = step.offset
            continue
        t_ns, offset, found, number = step
        if position >= 0 and offset < position:
            text = f"{process} got {offset} after {position - 1}"
            yield Anomaly("reread", partition, text, t_ns, offsets=(offset, position - 1))
        elif 0 <= position < offset:
            jumped = [at for at in range(position, min(offset, len(cells))) if cells[at] >= 0]
            if jumped:
                text = f"{process} got {offset} after {position - 1}, and not"
                text += f" {facts.named(cells[jumped[0]])} at {jumped[0]}"
                at = (jumped[0], offset)
                yield Anomaly("skipped", partition, text, t_ns, offsets=at, count=len(jumped))
        position = offset + len(found)
        kept = cells[offset:position]
        is_known = log is not None and (log.is_whole or len(kept))
        if is_known and kept != array("q", found):
            yield from _contradicted(facts, reading, step, kept, is_compacted)
        if number >= 0:
            yield from _early(facts, reading, step)


def _is_compacted(facts: Facts, partition: str) -> bool:
    return any(
        facts.processes.get(writer, {}).get("keys")
        for writer in facts.writers
        if (writer, partition) in facts.sends
    )


def _contradicted(
    facts: Facts, reading: Reading, step: Poll, kept: array[int], is_compacted: bool
) -> Iterator[Anomaly]:
    """A reader got other records than the final log has."""
    t_ns, offset, found, _ = step
    for index, cell in enumerate(found):
        there = kept[index] if index < len(kept) else HOLE
        if there == cell or (there < 0 and is_compacted):
            continue
        kind = "dirty-read" if there < 0 else "inconsistent-offsets"
        text = f"{reading.process} got {facts.named(cell)} at {offset + index}"
        text += f", where {facts.named(there)} is now"
        number = (cell & NUMBERS,)
        at = (offset + index,)
        yield Anomaly(kind, reading.partition, text, t_ns, facts.writer(cell), number, at)


def _early(facts: Facts, reading: Reading, step: Poll) -> Iterator[Anomaly]:
    t_ns, offset, found, number = step
    writer = facts.writer(found[0])
    transaction = facts.transactions.get((writer, number))
    if transaction is not None and t_ns < transaction.commit_ns < FOREVER_NS:
        text = f"{reading.process} got offset {offset} before the commit of {transaction.name}"
        numbers = (found[0] & NUMBERS,)
        yield Anomaly("early-read", reading.partition, text, t_ns, writer, numbers, (offset,))


def _unseen(facts: Facts) -> Iterator[Anomaly]:
    """Records that readers who came to the end did not get.

    The members of a group read a partition together, and so do a reader and its successors.
    """
    seen: dict[tuple[str, str], bytearray] = {}
    starts: dict[tuple[str, str], int] = {}
    whole: set[tuple[str, str]] = set()
    for (process, partition), reading in facts.readings.items():
        log = facts.logs.get(partition)
        if log is None or facts.role(process) == "copier":
            continue
        key = (facts.group(process), partition)
        marks = seen.setdefault(key, bytearray(len(log.cells)))
        if reading.is_whole:
            whole.add(key)
        for step in reading.steps:
            if isinstance(step, Start):
                starts[key] = min(step.offset, starts.get(key, step.offset))
            else:
                marks[step.offset : step.offset + len(step.cells)] = b"\1" * len(step.cells)
    for group, partition in sorted(whole):
        cells, marks = facts.logs[partition].cells, seen[group, partition]
        if marks.count(1) >= len(cells):
            continue
        first = starts.get((group, partition), 0)
        missing = [at for at in range(first, len(cells)) if cells[at] >= 0 and not marks[at]]
        if missing:
            text = f"{group} did not get {facts.named(cells[missing[0]])} at {missing[0]}"
            text += f" ({len(missing)} in all)"
            at = (missing[0],)
            yield Anomaly("unseen", partition, text, offsets=at, count=len(missing))


# -- transactions ------------------------------------------------------------------------------


def _of_transaction(facts: Facts, transaction: Transaction) -> Iterator[Anomaly]:
    total, visible, where = 0, 0, ""
    missing: list[tuple[str, int]] = []
    for partition, first, end in transaction.sent:
        log = facts.logs.get(partition)
        if log is None or not log.is_whole:
            return
        places = facts.sends[transaction.process, partition].places[first:end]
        gone = places.count(HOLE)
        total += end - first
        visible += end - first - gone
        if gone:
            missing.append((partition, first + places.index(HOLE)))
        where = where or partition
    writer, t_ns = transaction.process, min(transaction.commit_ns, facts.last_ns)
    was_requested = transaction.commit_ns < FOREVER_NS
    if visible and (transaction.is_aborted or not was_requested):
        text = f"{visible} records of {transaction.name}, which was not committed"
        numbers = (transaction.sent[0][1],)
        yield Anomaly("aborted-visible", where, text, t_ns, writer, numbers, count=visible)
        return
    if 0 < visible < total:
        text = f"{visible} of the {total} records of {transaction.name}"
        partition, number = missing[0]
        yield Anomaly("torn-transaction", partition, text, t_ns, writer, (number,))
    elif total and not visible and transaction.is_committed:
        numbers = (transaction.sent[0][1],)
        yield Anomaly("lost-transaction", where, transaction.name, t_ns, writer, numbers, (), total)
    if visible or transaction.is_committed:
        yield from _zombie(facts, transaction, where)


def _zombie(facts: Facts, transaction: Transaction, where: str) -> Iterator[Anomaly]:
    for owners in facts.owners.values():
        mine = next((t_ns for t_ns, process in owners if process == transaction.process), None)
        if mine is None:
            continue
        later = min((t_ns for t_ns, _ in owners if t_ns > mine), default=FOREVER_NS)
        if later < transaction.commit_ns < FOREVER_NS:
            late_s = (transaction.commit_ns - later) / 1e9
            text = f"{transaction.name} was committed {late_s:.3f} s after another process had"
            text += " taken over"
            yield Anomaly("zombie", where, text, transaction.commit_ns, transaction.process)


def _copies(facts: Facts) -> Iterator[Anomaly]:
    """Compare each topic that copiers write with the topic that they read."""
    pairs = {
        (about["source"], about["target"])
        for about in facts.processes.values()
        if about.get("role") == "copier"
    }
    done = {
        (str(facts.processes[process]["target"]), partition.rpartition("-")[2])
        for (process, partition), reading in facts.readings.items()
        if facts.role(process) == "copier" and reading.is_whole
    }
    markers = facts.end_cells()
    for source, target in sorted(pairs):
        for partition, log in sorted(facts.logs.items()):
            topic, _, index = partition.rpartition("-")
            origin = facts.logs.get(f"{source}-{index}")
            if topic == target and origin is not None:
                is_done = (target, index) in done and log.is_whole and origin.is_whole
                yield from _copy(facts, origin, log, markers, is_done=is_done)


def _copy(
    facts: Facts, origin: Log, log: Log, markers: range, *, is_done: bool
) -> Iterator[Anomaly]:
    wanted = [at for at, cell in enumerate(origin.cells) if cell >= 0 and cell not in markers]
    copied = [source for source in log.sources if source >= 0]
    if not is_done:
        wanted = wanted[: len(copied)]
    if wanted == copied:
        return
    known = set(copied)
    lost = [at for at in wanted if at not in known]
    if lost:
        text = f"{len(lost)} records of {origin.partition}, the first is at {lost[0]}"
        yield Anomaly("copy-lost", log.partition, text, offsets=(lost[0],), count=len(lost))
    places: dict[int, int] = {}
    highest = -1
    for place, source in enumerate(log.sources):
        if source < 0:
            continue
        if source in places:
            text = f"offset {source} of {origin.partition} is at {places[source]} and at {place}"
            yield Anomaly("copy-duplicate", log.partition, text, offsets=(places[source], place))
        elif source < highest:
            text = f"offset {source} of {origin.partition} at {place} comes after {highest}"
            yield Anomaly("copy-reordered", log.partition, text, offsets=(place,))
        places[source] = place
        highest = max(highest, source)


# -- groups ------------------------------------------------------------------------------------


def _commits(facts: Facts) -> Iterator[Anomaly]:
    """What a group finds committed is at least what was acknowledged before it asked."""
    for (group, partition), fetched in facts.fetched.items():
        commits = facts.commits.get((group, partition), [])
        done = sorted(
            (commit for commit in commits if commit.ended_ns < FOREVER_NS),
            key=lambda commit: commit.ended_ns,
        )
        in_doubt = {commit.offset for commit in commits if commit.ended_ns == FOREVER_NS}
        times = [commit.ended_ns for commit in done]
        highest: list[Commit] = []
        for commit in done:
            is_higher = not highest or commit.offset > highest[-1].offset
            highest.append(commit if is_higher else highest[-1])
        for offset, begun_ns, process in fetched:
            before = bisect_left(times, begun_ns)
            if not before:
                continue
            floor = highest[before - 1]
            if offset < floor.offset and offset not in in_doubt:
                text = f"{process} of {group} found {offset}, but {floor.process} had committed"
                text += f" {floor.offset}"
                yield Anomaly("commit-went-back", partition, text, begun_ns)
