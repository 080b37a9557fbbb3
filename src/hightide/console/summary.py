"""The summary of a cluster that the overview shows: one sentence, brokers, a cell per partition.

Rows of partitions are kept from look to look; only those that have changed are made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hightide.client.model.cluster import Node, Partition
from hightide.client.model.diagnosis import Cause, CauseKind, causes
from hightide.client.model.health import ProblemKind
from hightide.client.model.replicas import PartitionReplicas, ReplicasDescription
from hightide.console.commands import here
from hightide.core.partition.state import NO_BROKER

_BAD = {
    CauseKind.NO_CONTROLLER,
    CauseKind.LOST_RECORDS,
    CauseKind.OFFLINE,
    CauseKind.UNDER_MIN_ISR,
    CauseKind.REPLICA_FAILED,
}
_BAD_EFFECTS = {ProblemKind.OFFLINE, ProblemKind.UNDER_MIN_ISR}
RATE_S = 3.0
"""Rates are averages over about so long."""


@dataclass(slots=True)
class Disk:
    """The disks of a broker together; None if it does not say."""

    total_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(slots=True)
class _Written:
    end_offset: int
    size_bytes: int


@dataclass(slots=True)
class Rates:
    """Messages and bytes that leaders take in each second, from their log ends."""

    messages_in_s: float | None = None
    bytes_in_s: float | None = None
    _known: dict[Partition, _Written] = field(default_factory=dict)
    _since_ms: int = 0
    _messages: int = 0
    _bytes: int = 0

    def take(self, key: Partition, partition: PartitionReplicas | None) -> None:
        """A partition has changed, or is gone."""
        report = partition.leader_report if partition else None
        if partition is None:
            self._known.pop(key, None)
        if report is None or (partition and partition.is_internal):
            return
        self.appended(key, report.end_offset, report.size_bytes)

    def appended(self, key: Partition, end_offset: int, size_bytes: int) -> None:
        """The leader's log now ends here."""
        known = self._known.get(key)
        if known is not None:
            # A leader that takes over may have less; retention makes logs smaller.
            self._messages += max(0, end_offset - known.end_offset)
            self._bytes += max(0, size_bytes - known.size_bytes)
        self._known[key] = _Written(end_offset, size_bytes)

    def looked(self, now_ms: int) -> None:
        """All that has changed is taken."""
        if not self._since_ms:
            self._since_ms, self._messages, self._bytes = now_ms, 0, 0
            return
        past_s = (now_ms - self._since_ms) / 1000
        if past_s >= RATE_S or (self.messages_in_s is None and past_s > 0):
            self.messages_in_s = round(self._messages / past_s, 1)
            self.bytes_in_s = round(self._bytes / past_s, 1)
            self._since_ms, self._messages, self._bytes = now_ms, 0, 0


def partition_row(
    partition: PartitionReplicas, min_isr: int, offsets: tuple[int, int] | None = None
) -> dict[str, Any]:
    """`offsets`: high watermark and log end of a leader that does not report them."""
    report, state = partition.leader_report, partition.state
    mark, end = offsets or (None, None)
    if report is not None:
        mark, end = report.high_watermark, report.end_offset
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "level": level(partition, min_isr),
        "leader": partition.leader,
        "leader_epoch": state.leader_epoch,
        "replicas": state.replicas,
        "isr": state.isr,
        "high_watermark": mark,
        "end_offset": end,
        "internal": partition.is_internal,
    }


def level(partition: PartitionReplicas, min_isr: int) -> str:
    if partition.is_offline:
        return "off"
    if (
        partition.is_under_min_isr(min_isr)
        or partition.leader in partition.silent
        or partition.failures
        or partition.losses
    ):
        return "bad"
    return "warn" if partition.missing else "ok"


def broker_rows(
    nodes: Mapping[int, Node],
    cluster: ReplicasDescription,
    rows: Mapping[Partition, Mapping[str, Any]],
    versions: Mapping[int, str],
    disks: Mapping[int, Disk],
    foreign_sizes: Mapping[tuple[int, Partition], int],
) -> list[dict[str, Any]]:
    leads: Counter[int] = Counter()
    in_sync: Counter[int] = Counter()
    held: Counter[int] = Counter()
    used: Counter[int] = Counter()
    for row in rows.values():
        leads[row["leader"]] += 1
        in_sync.update(row["isr"])
        held.update(row["replicas"])
    for partition in cluster.partitions:
        for broker, report in partition.reports.items():
            used[broker] += report.size_bytes
    for (broker, _), size_bytes in foreign_sizes.items():
        used[broker] += size_bytes
    found = []
    for broker in sorted({*nodes, *held}):
        node, disk = nodes.get(broker), disks.get(broker, Disk())
        found.append(
            {
                "id": broker,
                "address": cluster.addresses.get(broker),
                "rack": node.rack if node else None,
                "alive": node is not None,
                "controller": broker == cluster.controller,
                "leads": leads[broker],
                "in_sync": in_sync[broker],
                "replicas": held[broker],
                "disk_bytes": used.get(broker),
                "free_bytes": disk.free_bytes,
                "version": versions.get(broker) or None,
                "paused": broker in cluster.silent,
            }
        )
    return found


def sentence_of(
    cluster: ReplicasDescription,
    min_isr: Mapping[str, int],
    bootstrap: str,
    *,
    is_local: bool,
    now_ms: int,
) -> dict[str, Any]:
    """The worst cause and its next command, or that all is well."""
    found = causes(cluster, min_isr, is_local=is_local, now_ms=now_ms)
    problems = [cause for cause in found if cause.kind is not CauseKind.REASSIGNING]
    if problems:
        worst = next(filter(_is_bad, problems), problems[0])
        bad = any(map(_is_bad, problems))
        return _sentence(
            "bad" if bad else "warn",
            worst.cause,
            here(worst.next.command, bootstrap),
            len(problems),
        )
    if found:
        return _sentence("ok", found[0].cause, here(found[0].next.command, bootstrap), 0)
    brokers, partitions = len(cluster.live), len(cluster.partitions)
    return _sentence(
        "ok",
        f"All is well: {brokers} broker{'s' * (brokers != 1)} answer{'s' * (brokers == 1)}, and all"
        f" replicas of {partitions:,} partition{'s' * (partitions != 1)} are in sync.",
        None,
        0,
    )


def _is_bad(cause: Cause) -> bool:
    return cause.kind in _BAD or any(effect.kind in _BAD_EFFECTS for effect in cause.effects)


def away(bootstrap: str, why: str) -> dict[str, Any]:
    text = f"The cluster at {bootstrap} does not answer. {why}".strip()
    return _sentence("off", text, here("hightide doctor", bootstrap), 1)


def _sentence(level: str, text: str, command: str | None, count: int) -> dict[str, Any]:
    return {"level": level, "text": text, "next": command, "count": count}


def totals(rows: Mapping[Partition, Mapping[str, Any]], rates: Rates) -> dict[str, Any]:
    levels = Counter(row["level"] for row in rows.values())
    return {
        "messages_in_s": rates.messages_in_s,
        "bytes_in_s": rates.bytes_in_s,
        "under_replicated": sum(len(row["isr"]) < len(row["replicas"]) for row in rows.values()),
        "under_min_isr": levels["bad"],
        "offline": sum(row["leader"] == NO_BROKER for row in rows.values()),
    }
