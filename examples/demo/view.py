"""The live view: one screen, drawn a few times per second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from examples.demo.observer import PartitionState
from examples.demo.snapshot import Event, Snapshot, order_counts
from hightide.spark.pipelines.status import QueryStatus

STALL_S = 1.5
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
        Layout(_panel("Stream", _stream(snapshot)), size=7),
        Layout(_panel(f"Pipeline: {snapshot.pipeline}", _queries(snapshot))),
    )
    layout["bottom"].split_row(
        Layout(_panel("Revenue per ten seconds, newest first", _revenue(snapshot)), ratio=2),
        Layout(_panel("Events, newest first", _events(snapshot.events)), ratio=3),
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
        ("q", "bold"), " quit",
    )  # fmt: skip
    return Panel(text, border_style=LOW)


def _partitions(snapshot: Snapshot) -> RenderableType:
    table = Table(box=None, pad_edge=False, expand=True)
    for name in ("partition", "leader", "in sync", "hw", "leo"):
        table.add_column(name, justify="left" if name == "partition" else "right", no_wrap=True)
    for (topic, index), partition in sorted(snapshot.cluster.partitions.items()):
        table.add_row(f"{topic}/{index}", *_partition(partition))
    live = snapshot.cluster.live
    brokers = Text("brokers  ")
    for broker in sorted(live | set(snapshot.dead)):
        style = BAD if broker in snapshot.dead or broker not in live else GOOD
        mark = "*" if broker == snapshot.cluster.controller else ""
        brokers.append(f"{broker}{mark} ", style)
    return Group(brokers, table)


def _partition(state: PartitionState) -> tuple[Text, Text, str, str]:
    leader = Text("none", BAD) if state.leader is None else Text(str(state.leader))
    isr = Text()
    for broker in sorted(state.replicas):
        is_in_sync = broker in state.isr
        isr.append(f"{broker} " if is_in_sync else "· ", "" if is_in_sync else BAD)
    return leader, isr, _number(state.high_watermark), _number(state.end_offset)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _stream(snapshot: Snapshot) -> RenderableType:
    rates = Text(
        "   ".join(f"{topic} {rate:,.0f}/s" for topic, rate in snapshot.rates.items()), "bold"
    )
    if snapshot.silent_s > STALL_S:
        rates.append(f"   no acknowledgement for {snapshot.silent_s:.1f} s", BAD)
    return Group(rates, Text(""), Text(f"orders: {order_counts(snapshot)}"), _proof(snapshot))


def _proof(snapshot: Snapshot) -> Text:
    if snapshot.duplicates:
        return Text("Orders were read back twice!", BAD)
    if snapshot.outstanding or not snapshot.read_back:
        return Text("No order was read back twice.", GOOD)
    return Text("Every acknowledged order was read back exactly once.", GOOD)


def _queries(snapshot: Snapshot) -> RenderableType:
    table = Table(box=None, pad_edge=False, expand=True)
    for name in ("query", "rows/s", "lag", "batch"):
        table.add_column(name, justify="left" if name == "query" else "right", no_wrap=True)
    for query in snapshot.app.queries if snapshot.app else ():
        table.add_row(*_query(query))
    return table


def _query(query: QueryStatus) -> tuple[str, str, str, str]:
    took = "" if query.batch_ms is None else f"{query.batch_ms} ms"
    return f"{query.name} → {query.to}", _number(query.rows_in_per_s), _number(query.lag), took


def _revenue(snapshot: Snapshot) -> RenderableType:
    table = Table(box=None, pad_edge=False, expand=True)
    for name in ("from", "product", "orders", "amount"):
        table.add_column(name, justify="left" if name == "product" else "right", no_wrap=True)
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in snapshot.revenue:
        newest[str(row.get("start")), str(row.get("product"))] = row
    for (start, product), row in sorted(newest.items(), reverse=True):
        amount = f"{row.get('amount', 0):,.2f}"
        table.add_row(start[11:19], product, _number(row.get("orders")), amount)
    return table


def _events(events: Sequence[Event]) -> RenderableType:
    text = Text(no_wrap=False)
    for event in reversed(events):
        text.append(f"{event.at} ", LOW)
        text.append(f"{event.sentence}\n", BAD if "killed" in event.sentence else "")
    return text
