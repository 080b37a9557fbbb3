"""Write docs/benchmarks.md and its plots from the results of runs.

    python -m bench.document result.json [more.json ...]

The files are what run.py, bystander.py and spark.py of bench/ write with `--json`. If a workload is
in several files, the last one counts.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.harness.families import FAMILIES, Family
from bench.harness.lab import Metric
from bench.harness.report import BESIDE, bound
from bench.harness.results import Figure, Measured, Results, Row, UnreadableResults, read

ROOT = Path(__file__).resolve().parents[1]
# Figures that no results file holds.
OTHER_FIGURES = ROOT / "bench" / "other_figures.md"
CALLED = {
    "hightide": "Hightide",
    "hightide-plain": "Hightide, at least once",
    "kafka": "Apache Kafka",
    "connector": "Spark's connector",
}
# A broker whose later rounds are better than the first ones by more than this is still warming up.
WARM_GAIN = 0.2
FEW_ROUNDS = 3
NOT_MEASURED = "not measured"
LIMITS = """\
- **More than one small machine.** Brokers and clients share {cpus}. What a client takes, a broker
  lacks, and a cluster of three has no more than one broker has.
- **Many cores.** A Hightide broker does its work on one core, Kafka's on as many as there are. On a
  large machine one Kafka broker goes on where Hightide needs more brokers; nothing here shows that.
- **Networks.** Everything goes over loopback: no distance, no loss, no card that is full, no TLS.
- **Disks under pressure.** Nothing waits for fsync, as is the default of both. Topics are deleted
  after a round, before much of them has been written out, and what is read is in the page cache
  unless a section says otherwise.
- **Kafka as an operator tunes it.** It runs with its defaults, with heap (1 GB) and collector as
  its start script sets them, and every node is broker and controller at once. More memory,
  controllers of their own and other settings may well help it.
- **Days.** Rounds last seconds. A JVM goes on compiling for minutes; leaks, fragmentation,
  compaction and retention take hours to show.
- **Other clients.** Most of the load is librdkafka's. Other clients batch and wait differently.
- **Other machines.** Ratios travel better than figures, and neither travels far.
"""


def called(name: str) -> str:
    return CALLED.get(name, name)


# ---- figures in words -------------------------------------------------------------------------


def figure(metric: Metric, value: Figure | None) -> str:
    if value is None:
        return "–"
    middle = f"{value.median:,.{metric.digits}f}"
    if not value.has_spread:
        return middle
    return f"{middle} ({value.low:,.{metric.digits}f}–{value.high:,.{metric.digits}f})"


def ratio(value: Figure | None) -> str:
    if value is None:
        return "–"
    if not value.has_spread:
        return f"**{value.median:.2f}**"
    return f"**{value.median:.2f}** ({value.low:.2f}–{value.high:.2f})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 2) -> list[str]:
    """A table whose first columns are words, and the others figures."""
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in ([*head], rule, *body)]


# ---- parts of the page ------------------------------------------------------------------------


def head(results: Results, others: Sequence[str]) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    beside = " and ".join(map(called, others))
    if others:
        yield f"Hightide beside {beside}: every ratio is between neighbours in one run."
    else:
        yield (
            "Hightide alone: no other broker was measured in this run, so that there are no ratios"
            " here and nothing is held to a bar."
        )
    yield "One command writes this page and its plots. Do not edit them:"
    yield ""
    yield "    make bench"
    yield ""
    yield from (f"> {note}\n" for note in results.notes)


def machine(results: Results, others: Sequence[str]) -> Iterator[str]:
    facts = {
        "Machine": results.fact("machine"),
        "System": re.sub(r"(\d)-[\w.-]+", r"\1", results.fact("system")),
        "Data on": "; ".join(
            dict.fromkeys(one.rpartition(" on ")[2] for one in results.fact("data").split("; "))
        ),
        "Hightide": f"commit {results.fact('commit')}",
        "Apache Kafka": results.fact("kafka").removeprefix("Apache Kafka "),
        "Client": results.fact("librdkafka client"),
    }
    yield from table(("", ""), [(name, value) for name, value in facts.items() if value])
    yield ""
    yield "## How it is measured"
    yield ""
    yield from method(results, others)
    yield ""


def method(results: Results, others: Sequence[str]) -> Iterator[str]:
    rounds, seconds = results.argument("rounds"), results.argument("seconds")
    if others:
        yield "- All get the same load from the same client on the same machine, taking turns."
        yield "- Each has its turn in every round; the order is reversed from round to round."
    if rounds:
        yield f"- Rounds of {seconds} s, up to {rounds} for each workload, after a short warm-up."
    if warm := results.argument("warm_brokers"):
        yield f"- Brokers that serve several workloads are warmed by {warm} s of load for each."
    yield "- A figure is the median over the rounds, with the smallest and the largest in brackets."
    if others:
        yield "- A ratio is Hightide's figure over the other's **in the same round**, so that drift"
        yield "  of the machine touches both; shown are the median of these ratios and their range."
    yield "- CPU is what the kernel counted for all threads of brokers and clients in the window."
    yield "- MB and GB are powers of ten, and count message values as an application sees them."


def verdict(metric: Metric, value: Figure | None, doubt: str) -> str:
    """Return the verdict, with the reasons to doubt it, because readers look here."""
    assert metric.ratio_goal is not None
    if value is None:
        return NOT_MEASURED
    if metric.ratio_aim is not None and metric.is_met(metric.ratio_aim, value.median):
        found = "aim reached"
    else:
        found = "met" if metric.is_met(metric.ratio_goal, value.median) else "**missed**"
    return f"{found}, but {doubt}" if doubt else found


def doubt_of(workload: Measured, subject: str) -> str:
    cold = [one for one in workload.rounds if one != subject and workload.gain(one) > WARM_GAIN]
    doubts = ["the machine was not quiet"] if workload.was_disturbed else []
    fewest = min(map(len, workload.rounds.values()))
    if fewest < FEW_ROUNDS:
        doubts.append(
            "there was 1 round only" if fewest == 1 else f"there were {fewest} rounds only"
        )
    return " and ".join(
        [*doubts, *(f"{called(one)} still got better from round to round" for one in cold)]
    )


def bar_rows(results: Results) -> Iterator[list[str]]:
    for family, workloads in by_family(results):
        for workload in workloads:
            what = f"{family.title}: {family.said(workload)}"
            doubt = doubt_of(workload, results.subject)
            for row in workload.rows.values():
                if row.metric.ratio_goal is not None:
                    yield [what, *bar_row(row, results.subject, doubt)]
                    what = ""


def bar_row(row: Row, subject: str, doubt: str) -> list[str]:
    metric = row.metric
    other = next((name for name in BESIDE if name in row.brokers), "")
    bars = (metric.ratio_goal, metric.ratio_aim)
    return [
        metric.title,
        figure(metric, row.brokers.get(subject)),
        figure(metric, row.brokers.get(other)),
        ratio(row.ratio),
        *("–" if one is None else f"{metric.sign} {bound(one)}" for one in bars),
        verdict(metric, row.ratio, doubt),
    ]


def the_bars(results: Results) -> Iterator[str]:
    rows = list(bar_rows(results))
    if not rows or all(row[-1] == NOT_MEASURED for row in rows):
        return
    yield "## Bars"
    yield ""
    yield "A bar is the worst ratio that the project is content with, the aim what it would like to"
    yield "have. The median counts for both."
    yield ""
    titles = ("workload", "measure", "Hightide", "beside it", "ratio", "bar", "aim", "verdict")
    yield from table(titles, rows)
    yield ""


def section(
    family: Family, workloads: Sequence[Measured], results: Results, plots: Sequence[str]
) -> Iterator[str]:
    names = [n for n in results.names if any(n in w.rounds and w.rounds[n] for w in workloads)]
    others = [n for n in names if any(n in r.ratios for w in workloads for r in w.rows.values())]
    yield f"## {family.title}"
    yield ""
    yield family.words
    yield ""
    for plot in plots:
        yield f"![{family.title}: {plot.replace('-', ' ')}](benchmarks/{plot}.svg)"
        yield ""
    if family.columns:
        yield from columns(family, workloads, names)
        yield ""
        yield from remarks(family, workloads)
        return
    rows = []
    for workload in workloads:
        said = family.said(workload)
        for row in workload.shown():
            if row.metric.key in family.leaves_out:
                continue
            figures = [figure(row.metric, row.brokers.get(name)) for name in names]
            rows.append(
                [said, row.metric.title, *figures, *(ratio(row.ratios.get(o)) for o in others)]
            )
            said = ""
    over = [f"ratio to {called(name)}" if len(others) > 1 else "ratio" for name in others]
    if rows:
        yield from table(("workload", "measure", *map(called, names), *over), rows)
        yield ""
    yield from remarks(family, workloads)


def columns(family: Family, workloads: Sequence[Measured], names: Sequence[str]) -> Iterator[str]:
    """A table with a row for each workload: the figures of all brokers, then the ratio."""
    titles = {key: row.metric.title for one in workloads for key, row in one.rows.items()}
    compared = {key: len(names) > 1 for key in family.columns if key in titles}
    wanted = compared | dict.fromkeys(
        (k for k in family.columns_without_ratio if k in titles), False
    )
    rows = [
        [family.said(one), *(cell(one.rows.get(key), names, has) for key, has in wanted.items())]
        for one in workloads
    ]
    order = " / ".join(map(called, names))
    if len(names) > 1:
        yield f"Each cell has {order}, and the ratio of waits."
    else:
        yield f"All figures are of {order}."
    yield ""
    yield from table(("workload", *(titles[key] for key in wanted)), rows, words=1)


def cell(row: Row | None, names: Sequence[str], has_ratio: bool) -> str:
    if row is None or not row.brokers:
        return "–"
    figures = [figure(row.metric, row.brokers.get(name)) for name in names]
    return " / ".join([*figures, *([ratio(row.ratio)] if has_ratio else [])])


def remarks(family: Family, workloads: Sequence[Measured]) -> Iterator[str]:
    found = []
    for one in workloads:
        said = family.said(one)
        found += [
            f"- {called(broker)} left out of “{said}”: {why}" for broker, why in one.gaps.items()
        ]
        found += [
            f"- {called(broker)} failed in “{said}”: {why}" for broker, why in one.failures.items()
        ]
        found += [
            f"- {called(broker)} still got better in “{said}”: the later rounds were"
            f" {one.gain(broker):.0%} better than the first."
            for broker in one.rounds
            if one.gain(broker) > WARM_GAIN
        ]
        if one.was_disturbed:
            found.append(f"- The machine was not quiet during “{said}”.")
    if found:
        yield from (line.replace("\n", " ") for line in found)
        yield ""


def limits(results: Results) -> Iterator[str]:
    yield "## What this does not show"
    yield ""
    yield LIMITS.format(cpus=results.fact("machine").partition(" (")[0] or "the CPUs").rstrip("\n")


# ---- the files --------------------------------------------------------------------------------


def by_family(results: Results) -> Iterator[tuple[Family, list[Measured]]]:
    """Group workloads by family, in order; each belongs to the first that takes it."""
    kept: dict[str, list[Measured]] = {}
    for workload in results.workloads.values():
        family = next(one for one in FAMILIES if one.takes(workload.name))
        kept.setdefault(family.title, []).append(workload)
    for family in FAMILIES:
        if found := kept.get(family.title):
            yield family, found


def page(results: Results) -> tuple[str, dict[str, str]]:
    """Return the text of the page, and its plots by file name."""
    others = [n for n in results.names if n in BESIDE]
    lines = [*head(results, others), *machine(results, others), *the_bars(results)]
    plots: dict[str, str] = {}
    labels = {name: called(name) for name in results.names}
    for family, workloads in by_family(results):
        drawn = []
        for name, plot in family.plots:
            if drawing := plot(workloads, labels):
                plots[name] = drawing
                drawn.append(name)
        lines += section(family, workloads, results, drawn)
    if others:
        lines.append(OTHER_FIGURES.read_text("utf-8"))
    lines += limits(results)
    return "\n".join(lines) + "\n", plots


def write(paths: Sequence[Path], docs: Path = ROOT / "docs") -> None:
    """Write the page and its plots; delete the plots of removed sections."""
    text, plots = page(read(paths))
    folder = docs / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        if old.stem not in plots:
            old.unlink()
    for name, drawing in plots.items():
        (folder / f"{name}.svg").write_text(drawing, "utf-8")
    (docs / "benchmarks.md").write_text(text, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", nargs="+", type=Path, help="JSON files of runs, oldest first")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="the folder to write to")
    options = parser.parse_args()
    try:
        write(options.results, options.docs)
    except UnreadableResults as reason:
        sys.exit(str(reason))


if __name__ == "__main__":
    main()
