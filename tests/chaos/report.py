"""The report of a chaos run: one HTML file without external parts, or text.

    Report(findings, title="three brokers, embedded ZooKeeper").write(path)

The picture has time from left to right: faults as bars, and for each partition its
acknowledgements, the gaps without any, and its leaders.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from tests.chaos.findings import SHOWN, FaultFigures, Findings, PartitionFigures, Row

WIDTH, LEFT, RIGHT = 1200, 190, 20
BAR, LANE = 16, 30
BUCKETS = 400
GAP_S = 0.5
"""Gaps from this length on are drawn."""
COLOURS = ("#7b61a8", "#2a7ab9", "#c06a1f", "#3d8b57", "#a8456b", "#5b6b7b", "#8a7a1f", "#1f8a8a")

STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1240px; padding: 0 1em;
       color: #1c2733; background: #fff }
h1 { font-size: 1.4em } h2 { font-size: 1.1em; margin-top: 2em }
table { border-collapse: collapse } th, td { padding: .25em .8em; border-bottom: 1px solid #d5dce3;
       text-align: right; font-variant-numeric: tabular-nums }
th:first-child, td:first-child { text-align: left } tr.bad td { background: #fbe6e4 }
.good { color: #1d7a3c; font-weight: 600 } .bad { color: #b3261e; font-weight: 600 }
pre { background: #f4f6f8; padding: .6em; overflow-x: auto; font-size: 12px; margin: .3em 0 1em }
svg text { font: 11px system-ui, sans-serif; fill: #1c2733 } svg .small { font-size: 9px }
.scroll { overflow-x: auto }
"""


class Report:
    def __init__(self, findings: Findings, title: str = "Chaos") -> None:
        self.findings = findings
        self.title = title

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.html(), encoding="utf-8")
        return path

    def text(self) -> str:
        return f"{self.title}\n\n{self.findings.text()}"

    def html(self) -> str:
        findings = self.findings
        totals = ", ".join(f"{count:,} {escape(name)}" for name, count in findings.totals.items())
        if findings.anomalies:
            verdict = f'<p class="bad">{findings.count():,} anomalies</p>'
        else:
            verdict = '<p class="good">no anomalies</p>'
        parts = [
            "<!doctype html><html lang=en><meta charset=utf-8>",
            '<meta name="viewport" content="width=device-width">',
            f"<title>{escape(self.title)}</title><style>{STYLE}</style>",
            f"<h1>{escape(self.title)}</h1>{verdict}<p>{totals}</p>",
            *(f"<p>{escape(note)}</p>" for note in findings.notes),
            "<h2>Timeline</h2><div class=scroll>",
            Timeline(findings).svg(),
            "</div>",
            *self._faults(),
            *self._anomalies(),
            *self._cycles(),
            *self._partitions(),
        ]
        return "\n".join(parts) + "\n"

    def _faults(self) -> Iterator[str]:
        yield "<h2>Faults</h2>"
        rows = self.findings.rows()
        bad = [bool(row.lost or row.duplicated or row.other) for row in rows]
        yield _table(list(Row.HEADS), [row.cells() for row in rows], bad)
        cycles = sum(row.cycles for row in rows)
        if cycles and not self.findings.anomalies:
            yield f"<p>0 failures in {cycles} cycles bound the rate of failures at"
            yield f" {min(1.0, 3 / cycles):.1%} (95 % confidence).</p>"

    def _anomalies(self) -> Iterator[str]:
        found = self.findings.anomalies
        if not found:
            return
        yield f"<h2>Anomalies</h2><p>{len(found):,} findings; at most {SHOWN} are shown.</p>"
        for anomaly in found[:SHOWN]:
            yield f"<p><b>{escape(anomaly.kind)}</b> {escape(anomaly.partition)}:"
            yield f" {escape(anomaly.text)}</p>"
            if anomaly.evidence:
                yield f"<pre>{escape(chr(10).join(anomaly.evidence))}</pre>"

    def _cycles(self) -> Iterator[str]:
        if not self.findings.faults:
            return
        heads = [
            "fault",
            "at",
            "took",
            "acknowledged",
            "longest gap",
            "in",
            "after heal",
            "details",
        ]
        yield f"<h2>Cycles</h2><details><summary>{len(self.findings.faults)} cycles</summary>"
        rows, bad = [], []
        for found in self.findings.faults:
            rows.append(self._cycle(found))
            bad.append(bool(found.counts) or not found.fault.is_healed)
        yield _table(heads, rows, bad) + "</details>"

    def _cycle(self, found: FaultFigures) -> list[str]:
        fault = found.fault
        ended_ns = min(fault.ended_ns, self.findings.ended_ns)
        details = ", ".join(
            f"{name} {value}" for name, value in (fault.value or {}).items() if name != "id"
        )
        details += "".join(f"; {count} {kind}" for kind, count in found.counts.items())
        waited = found.after_heal_s
        return [
            fault.name,
            f"{(fault.begun_ns - self.findings.began_ns) / 1e9:.1f} s",
            f"{(ended_ns - fault.begun_ns) / 1e9:.1f} s",
            f"{found.acknowledged:,}",
            f"{found.longest_gap_s:.2f} s",
            found.gap_in,
            "never" if waited is None else f"{waited:.2f} s",
            f"{details} {fault.error}".strip(),
        ]

    def _partitions(self) -> Iterator[str]:
        yield "<h2>Partitions</h2>"
        rows = [
            [name, f"{found.acknowledged:,}", f"{found.longest_gap_s():.2f} s"]
            for name, found in sorted(self.findings.partitions.items())
        ]
        yield _table(["partition", "acknowledged", "longest gap"], rows, [False] * len(rows))


def _table(heads: list[str], rows: list[list[str]], bad: list[bool]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    body = "".join(
        f"<tr{' class=bad' if is_bad else ''}>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in row)
        + "</tr>"
        for row, is_bad in zip(rows, bad, strict=True)
    )
    return f"<div class=scroll><table><tr>{head}</tr>{body}</table></div>"


class Timeline:
    """The picture: faults above, partitions below."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._began_ns = findings.began_ns
        self._span_ns = max(1, findings.ended_ns - findings.began_ns)
        names = dict.fromkeys(found.fault.name for found in findings.faults)
        self._lanes = {name: at for at, name in enumerate(names)}

    def _x(self, t_ns: int) -> float:
        share = (min(t_ns, self._findings.ended_ns) - self._began_ns) / self._span_ns
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def svg(self) -> str:
        top = 24
        faults_end = top + len(self._lanes) * BAR + 10
        partitions = sorted(self._findings.partitions.values(), key=lambda found: found.name)
        height = faults_end + len(partitions) * LANE + 24
        parts = [*self._axis(top, height - 20)]
        parts += self._faults(top, height - 20)
        for at, partition in enumerate(partitions):
            parts += self._partition(partition, faults_end + at * LANE)
        body = "\n".join(parts)
        return (
            f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img"'
            f' aria-label="Timeline of faults and acknowledgements">\n{body}\n</svg>'
        )

    def _axis(self, top: int, bottom: int) -> Iterator[str]:
        span_s = self._span_ns / 1e9
        steps = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200)
        step_s = next((step for step in steps if span_s / step <= 14), 14400)
        for second in range(0, int(span_s) + 1, step_s):
            x = self._x(self._began_ns + second * 1_000_000_000)
            yield f'<path d="M{x} {top}V{bottom}" stroke="#e3e8ed"/>'
            yield f'<text x="{x}" y="{top - 8}" text-anchor="middle">{second} s</text>'

    def _faults(self, top: int, bottom: int) -> Iterator[str]:
        for name, lane in self._lanes.items():
            y = top + lane * BAR
            yield f'<text x="{LEFT - 8}" y="{y + 11}" text-anchor="end">{escape(name)}</text>'
        for found in self._findings.faults:
            fault, lane = found.fault, self._lanes[found.fault.name]
            x, end = self._x(fault.begun_ns), self._x(fault.ended_ns)
            width, y = round(max(2.0, end - x), 1), top + lane * BAR
            colour = COLOURS[lane % len(COLOURS)] if fault.is_healed else "#b3261e"
            took_s = (min(fault.ended_ns, self._findings.ended_ns) - fault.begun_ns) / 1e9
            title = f"{fault.name} {fault.value or ''}: {took_s:.1f} s"
            title += f", longest gap {found.longest_gap_s:.2f} s in {found.gap_in}"
            yield f'<rect x="{x}" y="{y}" width="{width}" height="{bottom - y}" fill="{colour}"'
            yield ' fill-opacity=".06"/>'
            yield f'<rect x="{x}" y="{y + 2}" width="{width}" height="{BAR - 4}" fill="{colour}">'
            yield f"<title>{escape(title)}</title></rect>"

    def _partition(self, partition: PartitionFigures, y: int) -> Iterator[str]:
        base = y + LANE - 6
        yield f'<text x="{LEFT - 8}" y="{base}" text-anchor="end">{escape(partition.name)}</text>'
        counts = [0] * BUCKETS
        for t_ns, count in zip(partition.times_ns, partition.counts, strict=True):
            at = (t_ns - self._began_ns) * BUCKETS // self._span_ns
            counts[min(max(at, 0), BUCKETS - 1)] += count
        # The burst after a fault would make everything else invisible.
        usual = sorted(count for count in counts if count)
        highest = 2 * usual[len(usual) // 2] if usual else 1
        step = (WIDTH - LEFT - RIGHT) / BUCKETS
        path = f"M{LEFT} {base}" + "".join(
            f"V{base - (LANE - 10) * min(1, count / highest):.1f}h{step:.2f}" for count in counts
        )
        yield f'<path d="{path}V{base}z" fill="#9bb8d3"/>'
        for begin_ns, end_ns in partition.gaps():
            if end_ns - begin_ns >= GAP_S * 1e9:
                x, end = self._x(begin_ns), self._x(end_ns)
                yield f'<rect x="{x}" y="{base - 4}" width="{max(1.0, end - x):.1f}" height="4"'
                yield f' fill="#b3261e"><title>{(end_ns - begin_ns) / 1e9:.2f} s without an'
                yield "acknowledgement</title></rect>"
        for t_ns, leader in self._findings.leaders.get(partition.name, ()):
            x = self._x(t_ns)
            yield f'<path d="M{x} {y + 2}V{base}" stroke="#1c2733" stroke-opacity=".35"/>'
            name = f"{leader}" if leader >= 0 else "none"
            yield f'<text class="small" x="{x + 1}" y="{y + 9}">{name}</text>'
