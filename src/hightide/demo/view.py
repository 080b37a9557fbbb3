"""The live view: one screen that is drawn again a few times in a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hightide.demo.observer import Seen
from hightide.demo.scene import Event, Scene, balance
from hightide.spark.pipelines.status import QueryStatus

STALL_S = 1.5
LOW, BAD, GOOD = "dim", "bold red", "green"


class Screen:
    """The terminal, for as long as the block lasts."""

    def __init__(self) -> None:
        self._live = Live(console=Console(), screen=True, auto_refresh=False)

    def __enter__(self) -> Screen:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def draw(self, scene: Scene) -> None:
        self._live.update(drawn(scene, self._live.console.height), refresh=True)


def drawn(scene: Scene, height: int) -> RenderableType:
    """The whole screen."""
    layout = Layout()
    layout.split_column(
        Layout(_title(scene), size=3),
        Layout(name="middle"),
        Layout(name="bottom", size=max(8, height // 3)),
    )
    layout["middle"].split_row(
        Layout(_panel("Partitions", _partitions(scene)), ratio=3),
        Layout(name="right", ratio=3),
    )
    layout["right"].split_column(
        Layout(_panel("Stream", _stream(scene)), size=7),
        Layout(_panel(f"Pipeline: {scene.pipeline}", _queries(scene))),
    )
    layout["bottom"].split_row(
        Layout(_panel("Revenue in ten seconds, newest first", _revenue(scene)), ratio=2),
        Layout(_panel("Events, newest first", _events(scene.events)), ratio=3),
    )
    return layout


def _panel(title: str, inside: RenderableType) -> Panel:
    return Panel(inside, title=title, title_align="left", border_style=LOW)


def _title(scene: Scene) -> RenderableType:
    text = Text.assemble(
        (" Hightide ", "bold reverse"),
        f"  {scene.bootstrap}   {scene.elapsed_s:.0f} s   ",
        ("k", "bold"), " kill a broker   ",
        ("r", "bold"), " start it again   ",
        ("q", "bold"), " quit",
    )  # fmt: skip
    return Panel(text, border_style=LOW)


def _partitions(scene: Scene) -> RenderableType:
    table = Table(box=None, pad_edge=False, expand=True)
    for name in ("partition", "leader", "in sync", "hw", "leo"):
        table.add_column(name, justify="left" if name == "partition" else "right", no_wrap=True)
    for (topic, index), each in sorted(scene.picture.partitions.items()):
        table.add_row(f"{topic}/{index}", *_partition(each))
    live = scene.picture.live
    brokers = Text("brokers  ")
    for broker in sorted(live | set(scene.dead)):
        style = BAD if broker in scene.dead or broker not in live else GOOD
        crown = "*" if broker == scene.picture.controller else ""
        brokers.append(f"{broker}{crown} ", style)
    return Group(brokers, table)


def _partition(each: Seen) -> tuple[Text, Text, str, str]:
    leader = Text("none", BAD) if each.leader is None else Text(str(each.leader))
    isr = Text()
    for broker in sorted(each.replicas):
        isr.append(f"{broker} " if broker in each.isr else "· ", "" if broker in each.isr else BAD)
    return leader, isr, _number(each.high_watermark), _number(each.end_offset)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _stream(scene: Scene) -> RenderableType:
    rates = Text(
        "   ".join(f"{topic} {rate:,.0f}/s" for topic, rate in scene.rates.items()), "bold"
    )
    if scene.silent_s > STALL_S:
        rates.append(f"   no acknowledgement for {scene.silent_s:.1f} s", BAD)
    return Group(rates, Text(""), Text(f"orders: {balance(scene)}"), _proof(scene))


def _proof(scene: Scene) -> Text:
    if scene.duplicates:
        return Text("Orders have come back twice!", BAD)
    if scene.outstanding or not scene.read_back:
        return Text("None has come back twice.", GOOD)
    return Text("All that was acknowledged has come back, each order once.", GOOD)


def _queries(scene: Scene) -> RenderableType:
    table = Table(box=None, pad_edge=False, expand=True)
    for name in ("query", "rows/s", "lag", "batch"):
        table.add_column(name, justify="left" if name == "query" else "right", no_wrap=True)
    for each in scene.app.queries if scene.app else ():
        table.add_row(*_query(each))
    return table


def _query(each: QueryStatus) -> tuple[str, str, str, str]:
    took = "" if each.batch_ms is None else f"{each.batch_ms} ms"
    return f"{each.name} → {each.to}", _number(each.rows_in_per_s), _number(each.lag), took


def _revenue(scene: Scene) -> RenderableType:
    table = Table(box=None, pad_edge=False, expand=True)
    for name in ("from", "product", "orders", "amount"):
        table.add_column(name, justify="left" if name == "product" else "right", no_wrap=True)
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for each in scene.revenue:
        newest[str(each.get("start")), str(each.get("product"))] = each
    for (start, product), each in sorted(newest.items(), reverse=True):
        amount = f"{each.get('amount', 0):,.2f}"
        table.add_row(start[11:19], product, _number(each.get("orders")), amount)
    return table


def _events(events: list[Event] | Any) -> RenderableType:
    text = Text(no_wrap=False)
    for each in reversed(events):
        text.append(f"{each.at} ", LOW)
        text.append(f"{each.sentence}\n", BAD if "killed" in each.sentence else "")
    return text
