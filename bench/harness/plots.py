"""Plots as SVG, written out here: small files, text that is text, the same for the same figures.

The colours suit colour-blind readers, and every series also has a distinct mark. The background is
part of the plot, so that text stays readable on a dark page.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.harness.results import Figure

WIDTH, PAD = 760, 16
LETTER = 6.9  # The usual width of a letter of 12 px; browsers differ a little.
BAR, BAR_GAP, GROUP_GAP = 15, 2, 14
PANEL_HEIGHT = 210
HEAD = 62  # Title and legend.
SHADES = (
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#f0a35e"),
    ("#6b6b6b", "#b5b5b5"),
    ("#007a5a", "#3ecf9e"),
)

STYLE = (
    "text{font:12px system-ui,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;fill:#1f2328}"
    "text.t{font-size:15px;font-weight:600}text.s{fill:#59636e}"
    ".b{fill:#fff;stroke:#d1d9e0}.g{stroke:#e3e8ed}.w{stroke:#1f2328}.l{fill:none;stroke-width:2}"
    + "".join(
        f".f{i}{{fill:{light}}}.k{i}{{stroke:{light}}}" for i, (light, _) in enumerate(SHADES)
    )
    + "@media(prefers-color-scheme:dark){text{fill:#e6edf3}text.s{fill:#9aa5b1}"
    ".b{fill:#12161c;stroke:#333c47}.g{stroke:#28303a}.w{stroke:#e6edf3}"
    + "".join(f".f{i}{{fill:{dark}}}.k{i}{{stroke:{dark}}}" for i, (_, dark) in enumerate(SHADES))
    + "}"
)

Series = Mapping[str, Figure]
"""The figures of one group of bars, by the name of the measured broker."""

Names = Mapping[str, str]
"""The brokers that may be in a plot, in order, with their labels."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over one axis. Every point is its position on the axis, and its figure."""

    title: str
    curves: Mapping[str, Sequence[tuple[float, Figure]]]
    ticks: Sequence[tuple[float, str]]
    is_log_x: bool = False


# ---- pieces -----------------------------------------------------------------------------------


def _text(x: float, y: float, words: str, css: str = "", anchor: str = "start") -> str:
    kind = f' class="{css}"' if css else ""
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{kind}{where}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<path class="{css}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def _mark(x: float, y: float, number: int) -> str:
    """Circle, square, diamond and triangle: colour is not the only difference."""
    shapes = (
        "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
        "m-3.6-3.6h7.2v7.2h-7.2z",
        "m0-5l5 5l-5 5l-5-5z",
        "m0-5l4.6 8.5h-9.2z",
    )
    i = number % len(shapes)
    return f'<path class="f{i}" d="M{x:.1f} {y:.1f}{shapes[i]}"/>'


def _legend(names: Sequence[str], y: float) -> Iterator[str]:
    x = float(PAD)
    for number, name in enumerate(names):
        yield _mark(x + 5, y - 4, number)
        yield _text(x + 15, y, name)
        x += 32 + LETTER * len(name)


def _svg(title: str, unit: str, height: float, names: Sequence[str], inside: list[str]) -> str:
    told = f"{title}, {unit}: {', '.join(names)}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}"'
            f' width="{WIDTH}" height="{height:.0f}" role="img" aria-labelledby="t">',
            f'<title id="t">{escape(told)}</title><style>{STYLE}</style>',
            f'<rect class="b" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="6"/>',
            _text(PAD, 26, title, "t"),
            _text(WIDTH - PAD, 26, unit, "s", "end"),
            *_legend(names, 48),
            *inside,
            "</svg>\n",
        ]
    )


def steps(top: float, most: int = 6) -> list[float]:
    """Return round numbers from 0 to at least `top`, in steps of 1, 2 or 5."""
    if top <= 0:
        return [0.0, 1.0]
    rough = 10.0 ** math.floor(math.log10(top / most))
    step = next(rough * k for k in (1, 2, 5, 10, 20) if top / (rough * k) <= most)
    return [step * i for i in range(math.ceil(top / step - 1e-9) + 1)]


def powers(low: float, high: float) -> list[float]:
    """Return powers of ten around the values, and 2 and 5 times them where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if first == last:
        last += 1
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    found = [10.0**n * k for n in range(first, last + 1) for k in factors]
    below = max(value for value in found if value <= low * (1 + 1e-9))
    above = min((value for value in found if value >= high), default=found[-1])
    return [value for value in found if below <= value <= above]


def plain(value: float) -> str:
    """Format a number of an axis or a bar: three significant digits, thousands separated."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{round(value, digits):,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# ---- bars -------------------------------------------------------------------------------------


def bars(title: str, unit: str, groups: Mapping[str, Series], names: Names) -> str:
    """Lying bars, a group for each label, with a whisker from the smallest to the largest round.

    A comma in a label is where it may be broken into two lines.
    """
    used = [name for name in names if any(name in group for group in groups.values())]
    highest = max(figure.high for group in groups.values() for figure in group.values())
    ticks = steps(highest)
    labels = {label: _broken(label) for label in groups}
    left = PAD + 10 + LETTER * max(len(line) for lines in labels.values() for line in lines)
    scale = (WIDTH - PAD - 60 - left) / ticks[-1]
    inside: list[str] = []
    y = float(HEAD)
    for label, group in groups.items():
        present = [name for name in used if name in group]
        height = max(len(present) * (BAR + BAR_GAP), 15 * len(labels[label]))
        inside += _label(labels[label], left - 8, y + height / 2)
        top = y + (height - len(present) * (BAR + BAR_GAP)) / 2
        for name in present:
            inside += _bar(group[name], left, top, scale, used.index(name))
            top += BAR + BAR_GAP
        y += height + GROUP_GAP
    y -= GROUP_GAP / 2
    grid = [_line(left + at * scale, HEAD - 6, left + at * scale, y, "g") for at in ticks]
    grid += [_text(left + at * scale, y + 15, plain(at), "s", "middle") for at in ticks]
    return _svg(title, unit, y + 28, [names[one] for one in used], grid + inside)


def _broken(label: str) -> list[str]:
    """One line if it is short, else two of about the same length."""
    if len(label) <= 34 or ", " not in label:
        return [label]
    parts = label.split(", ")
    halves = [(", ".join(parts[:i]), ", ".join(parts[i:])) for i in range(1, len(parts))]
    return list(min(halves, key=lambda two: max(map(len, two))))


def _label(lines: Sequence[str], x: float, middle: float) -> Iterator[str]:
    y = middle + 4 - 7.5 * (len(lines) - 1)
    for number, line in enumerate(lines):
        yield _text(x, y + 15 * number, line, anchor="end")


def _bar(figure: Figure, x: float, y: float, scale: float, shade: int) -> Iterator[str]:
    wide = max(1.0, figure.median * scale)
    shade %= len(SHADES)
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{BAR}" rx="2"'
    yield f'<rect class="f{shade}" {shape}/>'
    end = x + wide
    if figure.has_spread:
        # A difference may be below zero; then only the number is shown.
        low, high = (x + max(0.0, value) * scale for value in (figure.low, figure.high))
        middle = y + BAR / 2
        yield f'<path class="w" d="M{low:.1f} {middle:.1f}H{high:.1f}M{high:.1f} {y + 4:.1f}v7"/>'
        end = max(end, high)
    yield _text(end + 6, y + 12, plain(figure.median))


# ---- curves -----------------------------------------------------------------------------------


def curves(
    title: str, unit: str, panels: Sequence[Panel], names: Names, *, is_log_y: bool = False
) -> str:
    """Panels on one scale, so that they can be compared; three in a row at most."""
    used = [name for name in names if any(name in panel.curves for panel in panels)]
    figures = [f for panel in panels for curve in panel.curves.values() for _, f in curve]
    top = max(figure.high for figure in figures)
    # A figure of zero must not stretch the logarithmic scale.
    floor = max(min(figure.low for figure in figures), top / 1e5)
    is_log_y = is_log_y and top > 0
    ticks = powers(floor, top) if is_log_y else steps(top, 5)
    across = min(3, len(panels))
    axis = LETTER * max(len(plain(at)) for at in ticks) + 8
    wide = (WIDTH - 2 * PAD - axis) / across
    inside: list[str] = []
    for number, panel in enumerate(panels):
        x = PAD + axis + wide * (number % across)
        y = HEAD + 14 + (PANEL_HEIGHT + 62) * (number // across)
        rise = _scale(ticks, y + PANEL_HEIGHT, y, is_log=is_log_y)
        inside += _grid(ticks, rise, x, x + wide - 18, with_numbers=number % across == 0)
        inside += _panel(panel, used, x, wide - 18, rise)
    rows = math.ceil(len(panels) / across)
    return _svg(
        title, unit, HEAD + (PANEL_HEIGHT + 62) * rows, [names[one] for one in used], inside
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    is_log: bool

    def __call__(self, value: float) -> float:
        low, high, value = self.low, self.high, max(value, self.low)
        if self.is_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def _scale(ticks: Sequence[float], start: float, end: float, *, is_log: bool) -> _Scale:
    return _Scale(min(ticks), max(ticks), start, end, is_log)


def _grid(
    ticks: Sequence[float], rise: _Scale, left: float, right: float, *, with_numbers: bool
) -> Iterator[str]:
    for at in ticks:
        yield _line(left, rise(at), right, rise(at), "g")
        if with_numbers:
            yield _text(left - 6, rise(at) + 4, plain(at), "s", "end")


def _panel(
    panel: Panel, names: Sequence[str], left: float, wide: float, rise: _Scale
) -> Iterator[str]:
    run = _scale([at for at, _ in panel.ticks], left + 14, left + wide - 14, is_log=panel.is_log_x)
    for at, words in panel.ticks:
        yield _text(run(at), rise.start + 17, words, "s", "middle")
    yield _text(left + wide / 2, rise.start + 35, panel.title, anchor="middle")
    for name, curve in panel.curves.items():
        shade = names.index(name) % len(SHADES)
        points = [(run(at), figure) for at, figure in sorted(curve, key=lambda one: one[0])]
        for x, figure in points:
            if figure.has_spread:
                yield _line(x, rise(figure.low), x, rise(figure.high), f"k{shade}")
        path = "L".join(f"{x:.1f} {rise(figure.median):.1f}" for x, figure in points)
        yield f'<path class="l k{shade}" d="M{path}"/>'
        yield from (_mark(x, rise(figure.median), shade) for x, figure in points)
