"""Take a snapshot of one location and write it to another, with the checks that protect a cluster.

One cluster must not exist in two locations, and its znodes must not change under running brokers.
So a copy is refused while brokers are registered at either end, and while the target holds a
cluster, unless the caller asks for it. What was written is read back and compared.
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
    """The copy would lose something; the text says what, and which option allows it."""


class CopyFailed(Exception):
    """The target differs from the snapshot after writing."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was written, or what a dry run would write."""

    source: str
    target: str
    znodes: int
    data_bytes: int
    replaced_znodes: int
    ephemerals_left_out: int
    zxid: int
    done: bool


def take_snapshot(source: Location, *, allow_changes: bool = False) -> Snapshot:
    """Read all persistent znodes of a location, consistent at one point in time."""
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
    """Write a snapshot to a location and verify it."""
    old = target.read_all(allow_changes=True)
    present = Snapshot.of(*old)
    if not force:
        refuse_while_brokers_run(present, target.name)
    roots = KAFKA_ROOTS | snapshot.roots
    replaced = [path for path in old.nodes if root_of(path) in roots]
    if replaced and not overwrite:
        tops = sorted({root_of(path) for path in replaced})
        raise CopyRefused(
            f"{target.name} already has {_some(tops)}. Nothing was changed. Use --overwrite to"
            " delete these znodes first, with all below them."
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
            f" {'are' if several else 'is'} registered at {name}. Nothing was changed. Stop the"
            " brokers first, or use --force if only their sessions are left."
        )


def _write(snapshot: Snapshot, target: Location, old: Contents, roots: frozenset[str]) -> None:
    target.replace(old, roots, snapshot)
    found = Snapshot.of(*target.read_all(allow_changes=True)).under(roots)
    wrong = list(islice(differences(snapshot, found), SHOWN + 1))
    if wrong:
        raise CopyFailed(
            f"{target.name} was written, but differs from the snapshot: {_some(wrong)}."
        )


def _some(texts: list[str] | tuple[str, ...]) -> str:
    more = ", …" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more
