"""The marker: what a transaction says about the micro-batch in it, and what follows from that.

    group <name>-batches, some partition of an output topic
        offset      the next batch: those before it are in the topics, whole
        metadata    whose batches: "query", who writes them: "run", what the last one read: "input"

It is committed in the same transaction as the records, so one is never there without the other.  A
driver that begins a batch fences everybody else first, and then reads the marker; nobody can change
it behind the back of the one who decides.

Spark gives a query an id that lives as long as its checkpoint, and each start a run id.  After a
crash it repeats the last batch that is not in its commit log, with the same id and the same input.
So a batch that the marker has passed is a replay, if it is the last one and had the same input.
Anything else means that the checkpoint was put back or edited.  To skip such a batch could lose
records, and to write it could repeat some, so it is refused.  With another checkpoint the query has
another id: that is a new life, which begins to count anew, because whoever deletes a checkpoint
wants its input to be read again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

TopicPartition = tuple[str, int]


class Refused(Exception):
    """A batch that can be neither written nor left out; the text says what to do."""


class Replaced(Exception):
    """Another driver writes in this name now, so this one must stop."""


class Verdict(Enum):
    """What is to be done with a batch."""

    WRITE = "write"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class Claim:
    """Who wants to write which batch."""

    query: str
    run: str
    batch: int
    input: str = ""


@dataclass(frozen=True, slots=True)
class Marker:
    """What has been written, by whom."""

    next_batch: int
    query: str = ""
    run: str = ""
    input: str = ""

    @property
    def metadata(self) -> str:
        return json.dumps({"query": self.query, "run": self.run, "input": self.input})


def read(committed: Mapping[TopicPartition, tuple[int, str]]) -> dict[TopicPartition, Marker]:
    """The markers of a group.  There are several if the output topic has been another before."""
    found = {}
    for where, (offset, metadata) in committed.items():
        try:
            told = json.loads(metadata)
            texts = {key: str(told.get(key, "")) for key in ("query", "run", "input")}
        except (ValueError, AttributeError):
            texts = {}
        found[where] = Marker(offset, **texts)
    return found


def newest(markers: Mapping[TopicPartition, Marker], query: str) -> Marker | None:
    """The one that counts: of this query, if it has any, the furthest."""
    own = [marker for marker in markers.values() if marker.query == query]
    return max(own or markers.values(), key=lambda marker: marker.next_batch, default=None)


def taken_over(marker: Marker | None, claim: Claim) -> Marker:
    """The marker of a run that begins: nothing else is written, but others see who writes now."""
    if marker is None or marker.query != claim.query:
        return Marker(claim.batch, claim.query, claim.run)
    return replace(marker, run=claim.run)


def written(claim: Claim) -> Marker:
    """The marker in the transaction of a batch."""
    return Marker(claim.batch + 1, claim.query, claim.run, claim.input)


def is_owner(marker: Marker | None, claim: Claim) -> bool:
    """For a run that has taken over: whether no other has done so since."""
    return marker is None or (marker.query, marker.run) == (claim.query, claim.run)


def check_owner(marker: Marker | None, claim: Claim) -> None:
    """The same; raises `Replaced` if another has."""
    if marker is None or is_owner(marker, claim):
        return
    if marker.query == claim.query:
        who = f"Run {marker.run} of this query"
    else:
        who = f"Run {marker.run} of another query, {marker.query},"
    raise Replaced(
        f"{who} has taken over. This run, {claim.run}, has written nothing of batch {claim.batch} "
        "and stops."
    )


def decide(marker: Marker | None, claim: Claim) -> Verdict:
    """What to do with a batch; raises `Refused` if nothing would be right."""
    if marker is None or marker.query != claim.query or marker.next_batch <= claim.batch:
        return Verdict.WRITE
    if marker.next_batch > claim.batch + 1:
        raise Refused(
            f"Batch {claim.batch} comes after batch {marker.next_batch - 1} has been written. The "
            "checkpoint was put back to an earlier state. To write again what has been written "
            "since, give the sink another name; to go on after it, restore the checkpoint."
        )
    if marker.input and claim.input and marker.input != claim.input:
        raise Refused(
            f"Batch {claim.batch} has been written, but with other input than it has now. The "
            "checkpoint was put back to an earlier state or edited. To write its new input as "
            "well, give the sink another name."
        )
    return Verdict.REPLAY
