"""The live view: one screen, drawn a few times per second."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from examples.demo.observer import PartitionState
from examples.demo.snapshot import STALL_S, Event, Snapshot, order_counts
from hightide.spark.pipelines.status import QueryStatus

LOW, BAD, GOOD = "dim", "bold red", "green"


class Screen:
    """Draws on the terminal's alternate screen within a `with` block."""

    def __init__(self) -> None:
        self._live = Live(console=Console(), screen=True, auto_refresh=False)

    def __enter__(self) -> Screen:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def draw(self, snapshot: Snapshot) -> None:
        self._live.update(render(snapshot, self._live.console.height), refresh=True)


def render(snapshot: Snapshot, height: int) -> RenderableType:
    """Return the whole screen."""
    layout = Layout()
    layout.split_column(
        Layout(_title(snapshot), size=3),
        Layout(name="middle"),
        Layout(name="bottom", size=max(8, height // 3)),
    )
    layout["middle"].split_row(
        Layout(_panel("Partitions", _partitions(snapshot)), ratio=3),
        Layout(name="right", ratio=3),
    )
    layout["right"].split_column(
        Layout(_panel("Stream", _stream(snapshot)), size=8),
        Layout(_panel(f"Pipeline: {snapshot.pipeline}", _queries(snapshot))),
    )
    layout["bottom"].split_row(
        Layout(_panel("Revenue per ten seconds", _revenue(snapshot))),
        Layout(_panel("Events, newest first", _events(snapshot.events))),
    )
    return layout


def _panel(title: str, inside: RenderableType) -> Panel:
    return Panel(inside, title=title, title_align="left", border_style=LOW)


def _title(snapshot: Snapshot) -> RenderableType:
    text = Text.assemble(
        (" Hightide ", "bold reverse"),
        f"  {snapshot.bootstrap}   {snapshot.elapsed_s:.0f} s   ",
        ("k", "bold"), " kill a broker   ",
        ("r", "bold"), " restart it   ",
        *((("c", "bold"), f" console {snapshot.console}   ") if snapshot.console else ()),
        ("q", "bold"), " quit",
    )  # fmt: skip
    return Panel(text, border_style=LOW)


def _table(names: Sequence[str], rows: Iterable[Sequence[Text | str]], *, wide: str) -> Table:
    """A table in which only the column `wide` is shortened where there is little space."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True)
    shown = list(rows)
    for at, name in enumerate(names):
        if name == wide:
            table.add_column(name, ratio=1, no_wrap=True)
        else:
            width = max(len(name), *(len(row[at]) for row in shown), 0)
            table.add_column(name, justify="right", no_wrap=True, min_width=width)
    for row in shown:
        table.add_row(*row)
    return table


def _partitions(snapshot: Snapshot) -> RenderableType:
    dead = set(snapshot.dead)
    rows = [
        (f"{topic}/{index}", *_partition(partition, dead))
        for (topic, index), partition in sorted(snapshot.cluster.partitions.items())
    ]
    live = snapshot.cluster.live
    brokers = Text("brokers  ")
    for broker in sorted(live | dead):
        is_down = broker in dead or broker not in live
        mark = "*" if broker == snapshot.cluster.controller and not is_down else ""
        brokers.append(f"{broker}{mark}{' down' if is_down else ''}  ", BAD if is_down else GOOD)
    names = ("partition", "leader", "ISR", "HW", "LEO")
    return Group(brokers, _table(names, rows, wide="partition"))


def _partition(state: PartitionState, dead: Collection[int]) -> tuple[Text, Text, str, str]:
    """Show a dead broker as neither leader nor in sync, before the cluster says so."""
    has_leader = state.leader is not None and state.leader not in dead
    leader = Text(str(state.leader)) if has_leader else Text("none", BAD)
    isr = Text(" ").join(
        Text(str(broker)) if broker in state.isr and broker not in dead else Text("·", BAD)
        for broker in sorted(state.replicas)
    )
    return leader, isr, _number(state.high_watermark), _number(state.end_offset)


def _number(value: float | None) -> str:
    """A number in at most seven characters."""
    if value is None:
        return ""
    for limit, unit, name in ((1e6, 1, ""), (1e9, 1e6, "M"), (1e12, 1e9, "G"), (1e18, 1e12, "T")):
        if value < limit:
            return f"{value / unit:,.{1 if name else 0}f}{name}"
    return f"{value:.1e}"


def _stream(snapshot: Snapshot) -> RenderableType:
    rates = "   ".join(f"{topic} {rate:,.0f}/s" for topic, rate in snapshot.rates.items())
    is_silent = snapshot.silent_s > STALL_S
    silence = f"no acknowledgement for {snapshot.silent_s:.1f} s" if is_silent else ""
    return Group(
        Text(rates, "bold"),
        Text(silence, BAD),
        Text(f"orders: {order_counts(snapshot)}"),
        _proof(snapshot),
    )


def _proof(snapshot: Snapshot) -> Text:
    if snapshot.duplicates:
        return Text("Orders were read back twice!", BAD)
    if snapshot.outstanding or not snapshot.read_back:
        return Text("No order was read back twice.", GOOD)
    return Text("Every acknowledged order was read back exactly once.", GOOD)


def _queries(snapshot: Snapshot) -> RenderableType:
    rows = [_query(query) for query in (snapshot.app.queries if snapshot.app else ())]
    return _table(("query", "rows/s", "lag", "batch"), rows, wide="query")


def _query(query: QueryStatus) -> tuple[str, str, str, str]:
    took = "" if query.batch_ms is None else f"{query.batch_ms} ms"
    return f"{query.name} → {query.to}", _number(query.rows_in_per_s), _number(query.lag), took


def _revenue(snapshot: Snapshot) -> RenderableType:
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in snapshot.revenue:
        newest[str(row.get("start")), str(row.get("product"))] = row
    rows = [
        (start[11:19], product, _number(row.get("orders")), f"{row.get('amount', 0):,.2f}")
        for (start, product), row in sorted(newest.items(), reverse=True)
    ]
    return _table(("from", "product", "orders", "amount"), rows, wide="product")


def _events(events: Sequence[Event]) -> RenderableType:
    text = Text(no_wrap=False)
    for event in reversed(events):
        text.append(f"{event.at} ", LOW)
        text.append(f"{event.sentence}\n", BAD if "killed" in event.sentence else "")
    return text
