"""Taking a snapshot of one place and putting it into another, and when that is refused.

A cluster must not live in two places, nor be changed under its brokers; so nothing is copied while
brokers are registered at either end, and nothing is written over another cluster, unless somebody
says that this is what they want. What was written is read back and compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from hightide.zookeeper.snapshot import (
    KAFKA_ROOTS,
    Snapshot,
    differences,
    root_of,
)
from hightide.zookeeper.snapshot_locations import Contents, Location

SHOWN = 5


class CopyRefused(Exception):
    """Something would be lost; the text says what, and how to do it all the same."""


class CopyFailed(Exception):
    """The target does not have what the snapshot has."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was written, or would be."""

    source: str
    target: str
    znodes: int
    data_bytes: int
    replaced_znodes: int
    ephemerals_left_out: int
    zxid: int
    done: bool


def take_snapshot(source: Location, *, allow_changes: bool = False) -> Snapshot:
    """All persistent znodes of a place, as they were at one moment."""
    return Snapshot.of(*source.read_all(allow_changes))


def write_snapshot(
    snapshot: Snapshot,
    source: str,
    target: Location,
    *,
    overwrite: bool = False,
    force: bool = False,
    dry_run: bool = False,
) -> Report:
    """Write a snapshot into a place and compare."""
    old = target.read_all(allow_changes=True)
    present = Snapshot.of(*old)
    if not force:
        refuse_while_brokers_run(present, target.name)
    roots = KAFKA_ROOTS | snapshot.roots
    replaced = [path for path in old.nodes if root_of(path) in roots]
    if replaced and not overwrite:
        tops = sorted({root_of(path) for path in replaced})
        raise CopyRefused(
            f"{target.name} has {_some(tops)} already. --overwrite deletes that first, with all"
            " below it; nothing was changed."
        )
    if not dry_run:
        _write(snapshot, target, old, roots)
    return Report(
        source=source,
        target=target.name,
        znodes=len(snapshot.nodes),
        data_bytes=snapshot.data_bytes,
        replaced_znodes=len(replaced),
        ephemerals_left_out=snapshot.ephemeral_count,
        zxid=snapshot.zxid,
        done=not dry_run,
    )


def refuse_while_brokers_run(snapshot: Snapshot, name: str) -> None:
    if snapshot.brokers:
        several = len(snapshot.brokers) > 1
        raise CopyRefused(
            f"{'Brokers' if several else 'Broker'} {_some(snapshot.brokers)}"
            f" {'are' if several else 'is'} registered at {name}. Stop the brokers first; if they"
            " are gone and only their sessions are left, use --force. Nothing was changed."
        )


def _write(snapshot: Snapshot, target: Location, old: Contents, roots: frozenset[str]) -> None:
    target.replace(old, roots, snapshot)
    found = Snapshot.of(*target.read_all(allow_changes=True)).under(roots)
    wrong = list(islice(differences(snapshot, found), SHOWN + 1))
    if wrong:
        raise CopyFailed(
            f"{target.name} was written, but reading it back shows that {_some(wrong)}."
        )


def _some(texts: list[str] | tuple[str, ...]) -> str:
    more = ", …" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more
