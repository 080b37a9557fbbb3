"""Chaos: real clients and real brokers in a machine room, under faults that a seed chooses.

    make chaos DURATION=600 SEED=7 ARGS="--faults kill,power --zookeeper apache"
    make chaos ARGS="--faults cut --cycles 50"

Each family of faults runs alone in a room of its own, and then all of them mixed.  Clients write
and read, with and without transactions, while faults come and go.  After each fault the cluster
must become healthy without any command.  At the end of a family the history of the clients is
checked, all replicas must be equal byte for byte, deleted topics must be gone, and no broker may
have logged a bug.  A seed chooses the faults, but not the timing of real processes: a seed that
failed once need not fail again.

Reports, one for each family, are in `build/chaos`: HTML with a picture, and the figures as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import faults_of_clusters, faults_of_files  # noqa: F401 - they add families
from tests.chaos.checker import check
from tests.chaos.clients import java
from tests.chaos.faults import FAMILIES, NOT_NOW, Broken, Chaos, Family, Fault
from tests.chaos.findings import Findings
from tests.chaos.machine import Meddler
from tests.chaos.report import Report as Page
from tests.chaos.room import Room, enter, sweep
from tests.chaos.workload import CLIENTS, CONFLUENT, COPIERS, JAVA, Workload
from tests.chaos.zookeepers import KINDS

HEAL_S = 60.0
"""Within this time after a fault all partitions take writes and all replicas are in sync."""
MIXED = "mixed"
EACH = "each"
"""One fault of each family, one after the other in one room: for a short test."""
TOO_LONG_S = 30.0
ALONE = {"power-all", "kill-all", "power-last", "restart", "zookeeper-away"}
"""Families that are not mixed with others: they need settings, or all brokers."""
DAMAGES = {"damage", "files"}
WARM_UP_S = {"damage": 12.0, "files": 12.0, MIXED: 12.0}
"""How long clients write before the first fault: until there are sealed segments."""
LOST = ("lost", "lost-transaction", "copy-lost")
DUPLICATED = ("duplicate", "copy-duplicate")
PAGES = Path(__file__).parents[2] / "build" / "chaos"


class Report:
    """Prints what happens, with the time."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self.counts: Counter[str] = Counter()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began_s:7.1f} s  {text}", flush=True)


@dataclass(slots=True)
class Figures:
    """What one family did and what came of it."""

    family: str
    seed: int
    zookeeper: str
    commit: str = ""
    date: str = ""
    cycles: int = 0
    healed: int = 0
    acked: int = 0
    lost: int = 0
    duplicated: int = 0
    other: int = 0
    gap_s: float = 0.0
    """The longest time that a partition took no writes."""
    heal_s: float = 0.0
    """The longest time from the end of a fault until all replicas were in sync."""
    damages: int = 0
    stood_still: int = 0
    """Clients of librdkafka that were restarted, because they did not come to their ends."""
    faults: dict[str, int] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def cells(self) -> list[str]:
        return [
            self.family,
            f"{self.cycles}",
            f"{self.acked:,}",
            f"{self.lost:,}",
            f"{self.duplicated:,}",
            f"{self.other:,}",
            f"{self.gap_s:.1f} s",
            f"{self.healed}/{self.cycles}",
            f"{self.heal_s:.1f} s",
            "FAILED" if self.failures else "ok",
        ]

    def take(self, findings: Findings) -> None:
        self.acked = findings.totals["acknowledged"]
        self.lost = findings.count(*LOST)
        self.duplicated = findings.count(*DUPLICATED)
        self.other = findings.count() - self.lost - self.duplicated
        self.rows = [asdict(row) for row in findings.rows()]
        self.gap_s = max((row.longest_gap_s for row in findings.rows()), default=0.0)


HEADS = ["family", "cycles", "acknowledged", "lost", "duplicated", "other anomalies"]
HEADS += ["longest gap", "healed", "within", ""]


def table(found: Sequence[Figures]) -> str:
    rows = [HEADS, *(figures.cells() for figures in found)]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) if not at else cell.rjust(width) for at, (cell, width) in row)
        for row in (list(enumerate(zip(cells, widths, strict=True))) for cells in rows)
    )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Chaos in a machine room.")
    add = parser.add_argument
    add("--duration", type=float, default=780.0, metavar="SECONDS")
    add("--cycles", type=int, default=0, help="so many of each family, however long they take")
    add("--faults", default="", help=f"of {', '.join([*FAMILIES, MIXED, EACH])}")
    add("--seed", type=int, default=None)
    add("--brokers", type=int, default=3)
    add("--zookeeper", choices=list(KINDS), default="embedded")
    add("--rate", type=float, default=1500.0, help="records a second, of all writers")
    add("--java", action="store_true", help="with the Java client instead of Python's own clients")
    add("--pages", type=Path, default=PAGES, help="the directory of the reports")
    add("--keep", action="store_true", help="keep logs and data")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    # Before the namespaces, which have no way to Maven.
    if options.java and (reason := java.missing()):
        print(f"The Java client is left out. {reason}", flush=True)
        arguments = [argument for argument in arguments if argument != "--java"]
        options.java = False
    lacking = enter("tests.chaos.run", arguments)
    sweep()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.disable(logging.CRITICAL)  # clients log every broken connection
    warnings.simplefilter("ignore")
    if options.seed is None:
        options.seed = random.randrange(10**6)
    report = Report()
    report.say(f"seed {options.seed}, ZooKeeper: {options.zookeeper}")
    if lacking:
        report.say(f"No faults of networks, disks and power: this needs {', '.join(lacking)}.")
    families = chosen(options.faults, report, is_whole=not lacking)
    found: list[Figures] = []
    try:
        until_s = time.monotonic() + options.duration
        for at, family in enumerate(families):
            left_s = (until_s - time.monotonic()) / (len(families) - at)
            found.append(Run(family, options, report).run(left_s, is_whole=not lacking))
    finally:
        Meddler.remove()
        print(f"\n{table(found)}", flush=True)
    return int(any(figures.failures for figures in found))


def chosen(names: str, report: Report, *, is_whole: bool) -> list[Family]:
    """Return the families by their names, or all, then mixed; without what the machine lacks."""
    has = Room.possible(is_whole=is_whole)
    wanted = names.split(",") if names else [*FAMILIES, MIXED]
    known = {**FAMILIES, MIXED: Family(MIXED), EACH: Family(EACH)}
    for family in FAMILIES.values():
        known[MIXED].faults += family.faults
        known[EACH].faults += [fault for fault in family.faults if fault.needs <= has][:1]
        known[EACH].settings |= family.settings
    known[EACH].faults = [fault for fault in known[EACH].faults if fault.hold_s[0] < TOO_LONG_S]
    found = []
    for name in wanted:
        if name not in known:
            raise SystemExit(f"No family is called {name!r}. There are: {', '.join(known)}.")
        family = known[name]
        possible = [fault for fault in family.faults if fault.needs <= has]
        for fault in family.faults if name in FAMILIES else ():
            if fault not in possible:
                report.say(f"left out: {fault.name}; it needs {', '.join(fault.needs - has)}")
        if possible:
            found.append(Family(name, possible, family.settings))
    return found


class Run:
    """One family in a room of its own."""

    def __init__(self, family: Family, options: argparse.Namespace, report: Report) -> None:
        self.family = family
        self.options = options
        self.dice = random.Random(f"{options.seed} {family.name}")
        self.report = report
        now = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
        self.figures = Figures(family.name, options.seed, options.zookeeper, commit(), now)

    def run(self, duration_s: float, *, is_whole: bool) -> Figures:
        self.report.say(f"== {self.family.name}")
        room = Room(
            brokers=self.options.brokers,
            zookeeper=self.options.zookeeper,
            settings=self.family.settings,
            is_whole=is_whole,
        )
        try:
            room.start()
            self._load(room, duration_s)
        except Exception as failure:
            traceback.print_exc()
            self._failed(f"{type(failure).__name__}: {failure}")
        finally:
            keep = self.options.keep or bool(self.figures.failures)
            room.stop()
            room.remove(keep=keep)
            if keep:
                self.report.say(f"everything is kept in {room.place}")
        self.options.pages.mkdir(parents=True, exist_ok=True)
        page = self.options.pages / f"{self.family.name}.json"
        page.write_text(json.dumps(asdict(self.figures), indent=1))
        return self.figures

    def _failed(self, why: str) -> None:
        self.figures.failures.append(why)
        self.report.say(f"FAILED: {why}"[:2000])

    def _load(self, room: Room, duration_s: float) -> None:
        workload = Workload(
            room.bootstrap,
            room.place / "history",
            seed=self.options.seed,
            rate=self.options.rate,
            compacted=True,
            clients=(CONFLUENT, JAVA) if self.options.java else CLIENTS,
            copiers=(JAVA,) if self.options.java else COPIERS,
        )
        chaos = Chaos(room, self.dice, workload)
        try:
            workload.create_topics(min(3, self.options.brokers))
            workload.start()
            workload.wait_for_acks()
            room.patience_s = 3.0
            until_s = time.monotonic() + duration_s
            time.sleep(WARM_UP_S.get(self.family.name, 0.0))
            while self._is_more(until_s) and not self.figures.failures:
                self._cycle(chaos)
            room.patience_s = 30.0
            # After a failure the cluster may never let the clients come to their ends.
            for miss in workload.drain(120.0 if not self.figures.failures else 30.0):
                self._failed(miss)
            self.figures.stood_still = len(workload.stood_still)
            for client in workload.stood_still:
                self.report.say(f"restarted {client}, which stood still")
        finally:
            workload.stop()
        self._check(chaos)

    def _is_more(self, until_s: float) -> bool:
        if self.family.name == EACH:
            return self.figures.cycles < len(self.family.faults)
        if self.options.cycles:
            return self.figures.cycles < self.options.cycles
        return time.monotonic() < until_s or not self.figures.cycles

    def _cycle(self, chaos: Chaos) -> None:
        """Inject faults, wait, heal them, and wait until the cluster is healthy."""
        picked = self._choice()
        name = " + ".join(fault.name for fault in picked)
        self.figures.cycles += 1
        workload = chaos.workload
        try:
            with workload.fault(name, family=self.family.name) as noted:
                self._harm(chaos, picked)
                workload.healed(noted)
                healed_s = time.monotonic()
                acked_s = workload.wait_for_acks(HEAL_S)
                committed_s = workload.wait_for_commits(HEAL_S)
                chaos.wait_until_healthy(HEAL_S)
                took_s = time.monotonic() - healed_s
                if any(fault.family in DAMAGES for fault in picked):
                    chaos.wait_until_repaired(HEAL_S)
        except (AssertionError, TimeoutError, Broken) as problem:
            self._failed(f"not healthy {HEAL_S:.0f} s after {name}: {problem}")
            return
        self.figures.healed += 1
        self.figures.heal_s = max(self.figures.heal_s, took_s)
        self.report.say(
            f"    writes after {acked_s:.1f} s, commits after {acked_s + committed_s:.1f} s,"
            f" in sync after {took_s:.1f} s"
        )

    def _choice(self) -> list[Fault]:
        """Choose the next fault, first each in turn; of all families, choose some at once."""
        faults = self.family.faults
        if self.family.name != MIXED:
            if self.figures.cycles < len(faults):
                return [faults[self.figures.cycles]]
            return [self.dice.choice(faults)]
        families = sorted({fault.family for fault in faults} - ALONE)
        found: list[Fault] = []
        for name in self.dice.sample(families, self.dice.choice([1, 2, 2, 3])):
            fault = self.dice.choice([fault for fault in faults if fault.family == name])
            if not (fault.loses and any(other.loses for other in found)):
                found.append(fault)
        return found

    def _harm(self, chaos: Chaos, picked: list[Fault]) -> None:
        """Inject faults, wait, and heal them, and all that they may have left."""
        happening = []
        for fault in picked:
            found = fault.happen(chaos)
            try:
                said = next(found, None)
            except NOT_NOW as reason:
                self.report.say(f"could not {fault.name}: {reason}"[:200])
                continue
            if said is not None:
                self.report.say(said)
                self.figures.faults[fault.name] = self.figures.faults.get(fault.name, 0) + 1
                happening.append(found)
        time.sleep(max((self.dice.uniform(*fault.hold_s) for fault in picked), default=0))
        for found in happening:
            with contextlib.suppress(*NOT_NOW):
                next(found, None)
        chaos.room.heal_all()

    def _check(self, chaos: Chaos) -> None:
        findings = check(chaos.workload.folder)
        findings.add(chaos.differences())
        self.figures.take(findings)
        self.figures.damages = chaos.damages
        title = f"{self.family.name}: seed {self.options.seed}, {self.options.zookeeper} ZooKeeper"
        Page(findings, title).write(self.options.pages / f"{self.family.name}.html")
        for anomaly in findings.anomalies[:10]:
            self._failed(str(anomaly))
        compare(chaos)


def compare(chaos: Chaos) -> None:
    """Check that replicas are where they are assigned, and that no broker logged a bug."""
    room = chaos.room
    known = {topic.name: topic for topic in room.metadata(room.brokers[0]).topics}
    assert chaos.topic in known
    for name, topic in known.items():
        for partition in topic.partitions:
            strangers = [
                broker_id
                for broker_id in room.brokers
                if broker_id not in partition.replica_nodes
                and room.folder(broker_id, name, partition.partition_index).exists()
            ]
            assert not strangers, f"{name}/{partition.partition_index} is on {strangers} too"
    for name in chaos.deleted_topics:
        assert name not in known, f"{name} was deleted and is back"
        for broker_id in room.brokers:
            left = list(room.data(broker_id).glob(f"{name}-*"))
            left = [name for name in left if not name.name.endswith("-delete")]
            assert not left, f"{name} was deleted, and {left} is left"
    room.check_brokers_failed_at_nothing()


def commit() -> str:
    """Return the commit that runs, with a plus if files differ from it."""
    words = ["git", "-C", os.fspath(Path(__file__).parent), "describe", "--always", "--dirty=+"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
