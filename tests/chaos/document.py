"""Print the figures of chaos runs as a table for docs/reliability.md.

    python -m tests.chaos.document build/chaos/*.json

Runs of the same family are added up, whatever their commits; the table names all of them.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HEADS = ["family", "cycles", "acknowledged", "lost", "duplicated", "other anomalies"]
HEADS += ["longest gap", "healed by itself", "in sync within", "at most", "ZooKeeper", "commits"]


def table(runs: Iterable[dict[str, Any]]) -> list[str]:
    families: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        families[run["family"]].append(run)
    lines = [f"| {' | '.join(HEADS)} |", f"|{' --- |' * len(HEADS)}"]
    for family, found in families.items():
        lines.append(f"| {' | '.join(cells(family, found))} |")
    return lines


def cells(family: str, runs: list[dict[str, Any]]) -> list[str]:
    def total(name: str) -> int:
        return sum(run[name] for run in runs)

    cycles, healed = total("cycles"), total("healed")
    bad = total("lost") + total("duplicated") + total("other") + cycles - healed
    damages = f" ({total('damages')} damages)" if total("damages") else ""
    return [
        family,
        f"{cycles}{damages}",
        f"{total('acked'):,}",
        f"{total('lost'):,}",
        f"{total('duplicated'):,}",
        f"{total('other'):,}",
        f"{max(run['gap_s'] for run in runs):.1f} s",
        f"{healed} of {cycles}",
        f"{max(run['heal_s'] for run in runs):.1f} s",
        f"{min(1.0, 3 / cycles):.0%}" if not bad else "",
        ", ".join(sorted({run["zookeeper"] for run in runs})),
        ", ".join(sorted({f"{run['commit']} ({run['date'][:10]})" for run in runs})),
    ]


def faults(runs: Iterable[dict[str, Any]]) -> list[str]:
    """Return how often each fault came."""
    counts: dict[str, int] = defaultdict(int)
    for run in runs:
        for name, count in run["faults"].items():
            counts[name] += count
    return [f"| {name} | {count} |" for name, count in sorted(counts.items())]


def main(files: list[str]) -> None:
    runs = [json.loads(Path(file).read_text()) for file in files]
    print("\n".join([*table(runs), "", "| fault | times |", "| --- | --- |", *faults(runs)]))


if __name__ == "__main__":
    main(sys.argv[1:])
