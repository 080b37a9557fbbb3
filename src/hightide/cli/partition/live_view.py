"""The picture that `hightide partition show --watch` draws: a state becomes lines of text.

    one partition     a sentence, a bar for each replica, the last minute of each replica, events
    several           a sentence, and a line for each partition with its last minute, events

All functions here are pure.  A line is a list of parts, each a text with the name of a style, so
that colours are one of several signs: every state also has a character.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from hightide.cli.partition.replica_bars import Columns, columns
from hightide.cli.render import Line, Part, line_text, visible
from hightide.client.model.events import BrokerEvent
from hightide.client.model.replicas import PartitionReplicas, ReplicaStatus
from hightide.client.xray.frames import Hold, PartitionFrame
from hightide.core.events import Severity

RIBBON_MS = 60_000
SHORTEST_BAR = 24
SHORTEST_ZOOM = 128
"""Fewer records are not zoomed to: a lag of one record is no difference to look at."""

LEVELS = {"ok": "✓", "warn": "▲", "bad": "✕"}
# The worst comes last: a column of a ribbon shows the worst state in its time.
STATES = {
    "leads": "█",
    "in_sync": "▄",
    "eligible": "░",
    "out": "·",
    "silent": "╌",
    "gone": "✕",
}
STATE_NAMES = {
    "leads": "leads",
    "in_sync": "in sync",
    "eligible": "eligible",
    "out": "out",
    "silent": "silent",
    "gone": "gone",
}
HEALTH = {"all": "█", "fewer": "▄", "too_few": "░", "unknown": "╌", "offline": "✕"}
HEALTH_NAMES = {
    "all": "all in sync",
    "fewer": "under-replicated",
    "too_few": "under min ISR",
    "unknown": "leader does not answer",
    "offline": "no leader",
}
BEGINS = "★"
UNIT = re.compile(r"(?<=\d) (?=(ms|s|min)\b)")
SEVERITY_SIGNS = {Severity.WARNING: ("▲", "warn"), Severity.ERROR: ("✕", "bad")}


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which a state lasted; `begins` is whether the state began then."""

    from_ms: int
    to_ms: int
    state: str
    begins: bool = False


@dataclass(frozen=True, slots=True)
class Watched:
    """A partition that is watched: what is known now, and the last minute."""

    now: PartitionReplicas
    frame: PartitionFrame
    level: str
    sentence: str
    next: str
    """The next command as a line; "" if there is none."""
    ribbons: Mapping[int, Sequence[Span]]
    """The last minute of each replica."""
    health: Sequence[Span]
    """The last minute of the partition."""


@dataclass(frozen=True, slots=True)
class View:
    """All that the picture shows."""

    title: str
    now_ms: int
    partitions: Sequence[Watched]
    events: Sequence[BrokerEvent] = ()
    """Oldest first."""
    failover: str = ""
    """The newest failover by its phases, as a sentence."""
    trouble: str = ""
    """Why the state is not that of now; "" if it is."""
    notes: Sequence[str] = ()


def draw(view: View, width: int, height: int | None = None) -> list[Line]:
    """The picture, with lines of at most `width` characters, and at most `height` lines."""
    width = max(40, width)
    above = _head(view, width)
    for note in view.notes:
        above += _wrapped(note, width, "dim")
    if len(view.partitions) == 1:
        above += _partition(view.partitions[0], view.now_ms, width)
    elif view.partitions:
        room = None if height is None else max(3, height - len(above) - 8)
        above += _partitions(view.partitions, view.now_ms, width, room)
    if view.failover:
        above += [[], *_wrapped(view.failover, width, "", "  ")]
    room = 8 if height is None else height - len(above) - 1
    above += _events(view, width, room)
    return [_cut(line, width) for line in above[:height]]


# -- the head --------------------------------------------------------------------------------------


def _head(view: View, width: int) -> list[Line]:
    left, right = visible(view.title), clock(view.now_ms)
    lines: list[Line] = [
        [(left, "title"), (right.rjust(max(len(right) + 1, width - len(left))), "dim")]
    ]
    if view.trouble:
        lines += _sentence("bad", view.trouble, width)
    if not view.partitions:
        return lines
    ranks = list(LEVELS)
    worst = max(view.partitions, key=lambda one: ranks.index(one.level))
    text = worst.sentence
    if len(view.partitions) > 1:
        bad = [one for one in view.partitions if one.level != "ok"]
        count = len(view.partitions)
        text = f"All replicas of {count:,} partitions are in sync."
        if bad:
            text = f"{len(bad):,} of {count:,} partitions: {worst.now.name}: {worst.sentence}"
    lines += _sentence(worst.level, text, width)
    if worst.next:
        lines += _wrapped(worst.next, width, "bold", "  ")
    return lines


def _sentence(level: str, text: str, width: int) -> list[Line]:
    lines = _wrapped(text, width, level, "  ")
    return [[(f"{LEVELS[level]} ", level), *(part for part in lines[0][1:])], *lines[1:]]


def _wrapped(text: str, width: int, style: str, indent: str = "") -> list[Line]:
    # A number stays with its unit.
    joined = UNIT.sub("\xa0", visible(text))
    found = textwrap.wrap(joined, width - len(indent), break_on_hyphens=False) or [""]
    return [[(indent, ""), (line.replace("\xa0", " "), style)] for line in found]


# -- one partition ---------------------------------------------------------------------------------


def _partition(watched: Watched, now_ms: int, width: int) -> list[Line]:
    return [
        *_facts(watched, width),
        [],
        *_bars(watched, width),
        [],
        *_ribbons(watched, now_ms, width),
    ]


def _facts(watched: Watched, width: int) -> list[Line]:
    frame = watched.frame
    leader = "none" if watched.now.is_offline else str(frame.leader)
    facts = [
        f"leader {leader}",
        f"epoch {frame.leader_epoch}",
        f"ISR {_listed(frame.isr)}",
        f"min ISR {frame.min_isr}",
        f"acks=all {'accepted' if frame.accepts_all else 'refused'}",
    ]
    if frame.elr:
        facts.insert(3, f"ELR {_listed(frame.elr)}")
    if frame.high_watermark is not None:
        facts.append(f"HW {frame.high_watermark:,}")
    if frame.last_stable_offset is not None and frame.last_stable_offset != frame.high_watermark:
        facts.append(f"LSO {frame.last_stable_offset:,}")
    if frame.adding or frame.removing:
        facts.append(f"adds {_listed(frame.adding)}, removes {_listed(frame.removing)}")
    # A fact is not broken: its words are joined until the lines are made.
    text = " · ".join(fact.replace(" ", "\0") for fact in facts)
    lines = textwrap.wrap(text, width - 2, break_long_words=False, break_on_hyphens=False)
    return [[("  ", ""), (line.replace("\0", " ").removesuffix(" ·"), "")] for line in lines]


_CHANGING = ("LAG", "TIME")
_SHORTEST_NAME = len("⏸ in sync")
_EVIDENT = {"leads", "in sync", "its broker is not alive", "eligible to lead", "no leader"}
"""Reasons that the name of a replica's standing says too."""


@dataclass(frozen=True, slots=True)
class _Numbers:
    """The numbers of a replica beside its bar, and how wide their columns are."""

    headings: list[str]
    rows: list[list[str]]

    @property
    def widths(self) -> list[int]:
        """Wide enough for lags that come and go, so that the bars do not change their length."""
        return [
            max(len(heading) + 2 * (heading in _CHANGING), *map(len, cells))
            for heading, *cells in zip(self.headings, *self.rows, strict=True)
        ]

    @property
    def width(self) -> int:
        return sum(width + 1 for width in self.widths)

    def without(self, heading: str) -> _Numbers:
        at = self.headings.index(heading)
        return _Numbers(_less(self.headings, at), [_less(row, at) for row in self.rows])

    def line(self, cells: Sequence[str]) -> str:
        return "".join(f" {cell:>{width}}" for cell, width in zip(cells, self.widths, strict=True))


def _less(cells: list[str], at: int) -> list[str]:
    return cells[:at] + cells[at + 1 :]


def _bars(watched: Watched, width: int) -> list[Line]:
    statuses = watched.now.statuses()
    standings = {status.replica: _standing(watched.now, status) for status in statuses}
    id_width = max(len(str(status.replica)) for status in statuses)
    name_width = max(_SHORTEST_NAME, *(len(text) for text, _ in standings.values()))
    margin = 2 + id_width + 1 + name_width + 1
    numbers = _Numbers(
        ["START", "HW", "LEO", "LAG", "TIME"], [_numbers(status) for status in statuses]
    )
    for heading in ("START", "HW", "TIME"):
        if width - margin - numbers.width < SHORTEST_BAR:
            numbers = numbers.without(heading)
    bar_width = max(8, width - margin - numbers.width)
    known = [status for status in statuses if status.end_offset is not None]
    low, high = zoom(known) if known else (0, 0)
    lines: list[Line] = [
        [
            (f"{'':{margin}}{_scale(low, high, bar_width)}", "dim"),
            (numbers.line(numbers.headings), "dim"),
        ]
    ]
    for status, cells in zip(statuses, numbers.rows, strict=True):
        text, style = standings[status.replica]
        is_leader = status.replica == watched.now.leader
        stable = watched.frame.last_stable_offset if is_leader else None
        lines.append(
            [
                (f"{BEGINS if is_leader else ' '} ", "leads"),
                (f"{status.replica:>{id_width}} ", "leads" if is_leader else ""),
                (f"{text:<{name_width}} ", style),
                *_bar(columns(status, low, high, bar_width - 1), stable, low, high, bar_width),
                (numbers.line(cells), ""),
            ]
        )
        why = _unusual(status)
        if why:
            lines += _wrapped(why, width, "warn", " " * (3 + id_width))
    return [*lines, _bar_legend(watched)]


def zoom(known: Sequence[ReplicaStatus]) -> tuple[int, int]:
    """The first and the last offset of the bars: the end of the log, with all differences.

    The length is a power of two, so that the bars change their scale rarely.
    """
    starts = [one.log_start_offset for one in known if one.log_start_offset is not None]
    ends = [one.end_offset or 0 for one in known]
    marks = [one.high_watermark for one in known if one.high_watermark is not None]
    high, length = max(ends), SHORTEST_ZOOM
    while length < 2 * (high - min(*ends, *marks, high)):
        length *= 2
    return max(min(starts, default=0), high - length), high


def _numbers(status: ReplicaStatus) -> list[str]:
    offsets = (status.log_start_offset, status.high_watermark, status.end_offset)
    texts = ["?" if offset is None else f"{offset:,}" for offset in offsets]
    lag = "?" if status.lag_records is None else f"{status.lag_records:,}"
    return [*texts, lag, duration(status.lag_ms)]


def _standing(partition: PartitionReplicas, status: ReplicaStatus) -> tuple[str, str]:
    """What a replica is, as a text and a style."""
    if status.replica not in partition.live:
        return ("gone, eligible" if status.eligible else "gone"), "gone"
    pause = "⏸ " if status.replica in partition.silent else ""
    style = "silent" if pause else ""
    if status.replica == partition.leader:
        return f"{pause}leads", style or "leads"
    if status.in_sync:
        return f"{pause}in sync", style or "in_sync"
    if status.eligible:
        return f"{pause}eligible", style or "eligible"
    return f"{pause}out", style or "out"


def _unusual(status: ReplicaStatus) -> str:
    """Why a replica is as it is; "" if the other columns say it."""
    return "; ".join(reason for reason in status.why.split("; ") if reason not in _EVIDENT)


def _bar(found: Columns | None, stable: int | None, low: int, high: int, width: int) -> list[Part]:
    if found is None:
        return [("?".ljust(width), "silent")]
    if found.committed is None:
        return [("▒" * found.end, "open"), (" " * (width - found.end), "")]
    below = " " * found.start + "█" * (found.committed - found.start)
    if stable is not None and high > low and low <= stable:
        at = round((stable - low) * (width - 1) / (high - low))
        if at < found.committed:
            below = f"{below[:at]}┆{below[at + 1 :]}"
    rest = width - found.end - 1
    return [
        (below, "committed"),
        ("┃", "mark"),
        ("▒" * (found.end - found.committed), "open"),
        (" " * rest, ""),
    ]


def _scale(low: int, high: int, width: int) -> str:
    left = f"{low:,}"
    if high == low:
        return left.ljust(width)
    return left + f"{high:,}".rjust(max(1, width - len(left)))


def _bar_legend(watched: Watched) -> Line:
    text = "█ committed  ┃ high watermark  ▒ not known to be committed"
    frame = watched.frame
    if frame.last_stable_offset is not None and frame.last_stable_offset != frame.high_watermark:
        text += "  ┆ last stable"
    return [("  ", ""), (text, "dim")]


# -- the last minute -------------------------------------------------------------------------------


def _ribbons(watched: Watched, now_ms: int, width: int) -> list[Line]:
    replicas = watched.now.state.replicas
    id_width = max(len(str(broker)) for broker in replicas)
    ribbon_width = width - 3 - id_width
    lines: list[Line] = [_axis(3 + id_width, ribbon_width)]
    order = list(STATES)
    for broker in replicas:
        spans = watched.ribbons.get(broker, ())
        cells = ribbon(spans, now_ms, ribbon_width, order)
        lines.append([(f"  {broker:>{id_width}} ", ""), *_drawn(cells, STATES, "leads")])
    used = {span.state for spans in watched.ribbons.values() for span in spans}
    legend = [f"{sign} {STATE_NAMES[state]}" for state, sign in STATES.items() if state in used]
    legend.insert(1, f"{BEGINS} begins to lead")
    return [*lines, [("  ", ""), ("  ".join(legend), "dim")]]


def _axis(margin: int, width: int) -> Line:
    left, right = "-60 s", "now"
    return [(f"{'':{margin}}{left}{right:>{width - len(left)}}", "dim")]


def ribbon(
    spans: Sequence[Span], now_ms: int, width: int, order: Sequence[str]
) -> list[tuple[str, bool]]:
    """A state for each column of the last minute, and whether it began there; "" is unknown.

    Of several states in a column the last one in `order` counts, so that a short one is seen.
    """
    first_ms = now_ms - RIBBON_MS
    cells = [("", False)] * width
    for span in spans:
        start = (span.from_ms - first_ms) * width // RIBBON_MS
        end = -((first_ms - min(span.to_ms, now_ms)) * width // RIBBON_MS)
        for at in range(max(0, start), min(width, max(end, start + 1))):
            state, begins = cells[at]
            if not state or order.index(span.state) > order.index(state):
                state = span.state
            cells[at] = state, begins or (span.begins and at == start)
    return cells


def _drawn(cells: Sequence[tuple[str, bool]], signs: Mapping[str, str], starred: str) -> list[Part]:
    """The columns as parts, neighbours with the same style in one part."""
    parts: list[Part] = []
    for state, begins in cells:
        sign, style = signs.get(state, " "), state
        if begins:
            sign, style = BEGINS, starred
        if parts and parts[-1][1] == style:
            parts[-1] = parts[-1][0] + sign, style
        else:
            parts.append((sign, style))
    return parts


# -- several partitions ----------------------------------------------------------------------------


def _partitions(
    partitions: Sequence[Watched], now_ms: int, width: int, room: int | None
) -> list[Line]:
    """A line for each partition; if there is no room for all, those that need attention first."""
    shown = list(partitions)
    left_out = 0
    if room is not None and len(shown) > room - 3:
        ranks = list(LEVELS)
        worst = sorted(shown, key=lambda one: -ranks.index(one.level))[: max(1, room - 4)]
        left_out = len(shown) - len(worst)
        shown = [one for one in shown if one in worst]
    headings = ["PARTITION", "LEADER", "EPOCH", "ISR", "HW", "LEO", "LAG"]
    rows = [_row(one) for one in shown]
    for heading in ("EPOCH", "HW"):
        widths = [max(map(len, cells)) for cells in zip(headings, *rows, strict=True)]
        if width - sum(widths) - 2 * len(widths) < SHORTEST_BAR:
            at = headings.index(heading)
            headings, rows = _less(headings, at), [_less(row, at) for row in rows]
    widths = [max(map(len, cells)) for cells in zip(headings, *rows, strict=True)]
    margin = 2 + sum(widths) + 2 * len(widths)
    ribbon_width = max(8, width - margin)
    lines: list[Line] = [
        [],
        [(_joined(headings, widths), "dim"), *_axis(0, ribbon_width)],
    ]
    for one, row in zip(shown, rows, strict=True):
        cells = ribbon(one.health, now_ms, ribbon_width, list(HEALTH))
        text = _joined(row, widths)[2:]
        sign = (f"{LEVELS[one.level]} ", one.level)
        lines.append([sign, (text, ""), *_drawn(cells, HEALTH, "leads")])
    if left_out:
        lines.append([(f"  … and {left_out:,} more", "dim")])
    used = {span.state for one in partitions for span in one.health}
    legend = [f"{sign} {HEALTH_NAMES[state]}" for state, sign in HEALTH.items() if state in used]
    legend.append(f"{BEGINS} new leader")
    return [*lines, [("  ", ""), ("  ".join(legend), "dim")]]


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    """The cells of a row; the first is aligned left, as it is a name."""
    first, *rest = (
        f"{cell:<{width}}" if at == 0 else f"{cell:>{width}}"
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"  {first}  " + "".join(f"{cell}  " for cell in rest)


def _row(watched: Watched) -> list[str]:
    frame, partition = watched.frame, watched.now
    ends = [status.lag_records for status in partition.statuses() if status.lag_records is not None]
    leader = "none" if partition.is_offline else str(frame.leader)
    pause = "⏸ " if partition.leader in partition.silent else ""
    return [
        visible(partition.name),
        f"{pause}{leader}",
        str(frame.leader_epoch),
        _listed(frame.isr),
        "?" if frame.high_watermark is None else f"{frame.high_watermark:,}",
        "?" if frame.end_offset is None else f"{frame.end_offset:,}",
        f"{max(ends):,}" if ends else "?",
    ]


# -- events ----------------------------------------------------------------------------------------


def _events(view: View, width: int, room: int) -> list[Line]:
    """The newest events, oldest first; those that need two lines have them."""
    prefix = f"{view.partitions[0].now.name}: " if len(view.partitions) == 1 else ""
    lines: list[Line] = []
    for event in reversed(view.events):
        added = _event(event, prefix, width)[: max(1, room)]
        if len(lines) + len(added) > room:
            break
        lines = added + lines
    return [[], *lines] if lines else []


def _event(event: BrokerEvent, prefix: str, width: int) -> list[Line]:
    sign, style = SEVERITY_SIGNS.get(event.severity, (" ", ""))
    at = f"{clock(event.time_ms, is_exact=True)} "
    indent = " " * (2 + len(at))
    first, *rest = _wrapped(event.text.removeprefix(prefix), width - 2, style, indent)
    if len(rest) > 1:
        rest = [[*rest[0], (" …", "dim")]]
    return [[(f"{sign} ", style), (at, "dim"), *first[1:]], *rest]


# -- parts -----------------------------------------------------------------------------------------


def clock(time_ms: int, *, is_exact: bool = False) -> str:
    """The local time of day."""
    at = datetime.fromtimestamp(time_ms / 1000, UTC).astimezone()
    text = at.strftime("%H:%M:%S")
    return f"{text}.{time_ms % 1000:03}" if is_exact else text


def duration(ms: int | None) -> str:
    if ms is None:
        return "?"
    if ms < 1_000:
        return f"{ms} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else f"{ms // 60_000} min"


def _listed(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers)) or "-"


def _cut(line: Line, width: int) -> Line:
    """The line with at most `width` characters; one that is longer ends with `…`."""
    if len(line_text(line)) <= width:
        return line
    found, left = [], width - 1
    for text, style in line:
        if left <= 0:
            break
        found.append((text[:left], style))
        left -= len(text)
    return [*found, ("…", "dim")]


def hold_level(frame: PartitionFrame, is_under_replicated: bool) -> str:
    """How bad the state of a partition is."""
    if frame.held in (Hold.OFFLINE, Hold.MIN_ISR, Hold.FAILED):
        return "bad"
    if frame.held in (Hold.SLOW, Hold.SILENT) or is_under_replicated:
        return "warn"
    return "ok"
