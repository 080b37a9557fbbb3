"""The marker: what a transaction says about its micro-batch, and what follows from that.

    group <name>-batches, some partition of an output topic
        offset      the next batch: those before it are in the topics, whole
        metadata    "query": whose batches; "run": which run writes; "input": what the last one read

The marker is committed in the same transaction as the records, so one is never there without the
other. A driver that begins a batch fences all other producers first, and then reads the marker, so
the marker cannot change behind its back.

A query's id lives as long as its checkpoint, and each start has a run id. After a crash Spark
repeats the last batch that is not in its commit log, with the same id and the same input. So a
batch that the marker has passed is a replay, if it is the last one and had the same input. Anything
else means that the checkpoint was restored or edited. Skipping such a batch could lose records and
writing it could duplicate some, so it is refused. With a new checkpoint the query has a new id and
counts from the start again: deleting a checkpoint means that its input is to be read again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

TopicPartition = tuple[str, int]


class Refused(Exception):
    """A batch that can be neither written nor skipped; the text says what to do."""


class Replaced(Exception):
    """Another driver writes under this name now, so this one must stop."""


class Verdict(Enum):
    """What to do with a batch."""

    WRITE = "write"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class Claim:
    """Which run of which query wants to write which batch."""

    query: str
    run: str
    batch: int
    input: str = ""


@dataclass(frozen=True, slots=True)
class Marker:
    """The batches that are written, and by which run."""

    next_batch: int
    query: str = ""
    run: str = ""
    input: str = ""

    @property
    def metadata(self) -> str:
        return json.dumps({"query": self.query, "run": self.run, "input": self.input})


def read(committed: Mapping[TopicPartition, tuple[int, str]]) -> dict[TopicPartition, Marker]:
    """Parse the markers of a group; there are several if the output topic has changed."""
    found = {}
    for where, (offset, metadata) in committed.items():
        try:
            fields = json.loads(metadata)
            texts = {key: str(fields.get(key, "")) for key in ("query", "run", "input")}
        except (ValueError, AttributeError):
            texts = {}
        found[where] = Marker(offset, **texts)
    return found


def newest(markers: Mapping[TopicPartition, Marker], query: str) -> Marker | None:
    """Return the marker that counts: the furthest of this query, or of any."""
    own = [marker for marker in markers.values() if marker.query == query]
    return max(own or markers.values(), key=lambda marker: marker.next_batch, default=None)


def takeover_marker(marker: Marker | None, claim: Claim) -> Marker:
    """Return the marker of a run that begins: only the run id changes."""
    if marker is None or marker.query != claim.query:
        return Marker(claim.batch, claim.query, claim.run)
    return replace(marker, run=claim.run)


def batch_marker(claim: Claim) -> Marker:
    """Return the marker for the transaction of a batch."""
    return Marker(claim.batch + 1, claim.query, claim.run, claim.input)


def is_owner(marker: Marker | None, claim: Claim) -> bool:
    """Return whether no other run has taken over since this run did."""
    return marker is None or (marker.query, marker.run) == (claim.query, claim.run)


def check_owner(marker: Marker | None, claim: Claim) -> None:
    """Raise `Replaced` if another run has taken over."""
    if marker is None or is_owner(marker, claim):
        return
    if marker.query == claim.query:
        other = f"Run {marker.run} of this query"
    else:
        other = f"Run {marker.run} of another query, {marker.query},"
    raise Replaced(
        f"{other} has taken over. This run, {claim.run}, has written nothing of batch "
        f"{claim.batch} and stops."
    )


def decide(marker: Marker | None, claim: Claim) -> Verdict:
    """Return what to do with a batch; raise `Refused` if neither is right."""
    if marker is None or marker.query != claim.query or marker.next_batch <= claim.batch:
        return Verdict.WRITE
    if marker.next_batch > claim.batch + 1:
        raise Refused(
            f"Batch {claim.batch} is older than the last one, {marker.next_batch - 1}. "
            "The checkpoint was restored to an earlier state. To write those batches again, give "
            "the sink another name; to continue after them, restore the latest checkpoint."
        )
    if marker.input and claim.input and marker.input != claim.input:
        raise Refused(
            f"Batch {claim.batch} is already written, with other input. The "
            "checkpoint was restored to an earlier state or edited. To write its new input as "
            "well, give the sink another name."
        )
    return Verdict.REPLAY
