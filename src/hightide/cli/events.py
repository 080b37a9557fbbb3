"""`hightide events`: what has happened on the brokers, once or as it happens."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from hightide.cli import completion, moment, render
from hightide.cli.names import named, topic_option
from hightide.cli.options import LIMIT_S, LOCALHOST, Bootstrap, Failed, OutputOption, ask
from hightide.cli.render import Output
from hightide.client.admin import Admin
from hightide.client.model.events import BrokerEvent, EventFilter, FoundEvents
from hightide.core.events import Severity

POLL_S = 0.5
_FOREIGN = (
    "it keeps no events. Only brokers of Hightide do; other brokers have lines in their logs."
)


def events(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events until Ctrl-C.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="How many of the newest events to print.")
    ] = 100,
    broker: Annotated[
        list[int] | None,
        typer.Option(
            "--broker",
            min=0,
            autocompletion=completion.brokers,
            help="Only events of this broker; repeatable.",
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", "-k", help="Only this kind, such as isr_shrunk; repeatable."),
    ] = None,
    topic: Annotated[
        list[str] | None, topic_option("Only events about these partitions; repeatable.")
    ] = None,
    level: Annotated[
        Severity | None,
        typer.Option(
            "--level",
            help="The least level. The default is info, and debug with --kind or -o json.",
        ),
    ] = None,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what has happened on the brokers: elections, ISR changes, rebalances, failures.

    Events of all brokers are in the order of their clocks. Each broker keeps the newest 1,000 of
    each kind since it started. -o json prints one JSON object per line, with all fields.
    """
    least = level or (Severity.DEBUG if kind or output is Output.JSON else Severity.INFO)
    wanted = EventFilter(broker or (), kind or (), named(topic), least)
    try:
        ask(bootstrap, lambda admin: _print(admin, wanted, limit, output, follow=follow))
    except KeyboardInterrupt:
        if not follow:
            raise


async def _print(
    admin: Admin, wanted: EventFilter, limit: int, output: Output, *, follow: bool
) -> None:
    reader = admin.events.reader(wanted, answer_s=LIMIT_S.get())
    found = await reader.newest(limit)
    if not found.answered:
        raise Failed(_why_none(found))
    report = _Report()
    while True:
        report.changes(found)
        lines = map(_json_line if output is Output.JSON else _line, found.events)
        render.write("".join(lines))
        if not follow:
            return
        await asyncio.sleep(POLL_S)
        found = await reader.newer()


def _why_none(found: FoundEvents) -> str:
    for broker, why in found.silent.items():
        return f"Broker {broker} did not report its events. {why}"
    for broker in sorted(found.foreign):
        return f"Broker {broker}: {_FOREIGN}"
    return "The cluster has no broker now."


class _Report:
    """Names the brokers whose events are missing, each once."""

    def __init__(self) -> None:
        self._silent: set[int] = set()
        self._foreign: set[int] = set()

    def changes(self, found: FoundEvents) -> None:
        for broker, why in sorted(found.silent.items()):
            if broker not in self._silent:
                render.say(f"Broker {broker} did not report its events. {why}")
        for broker in sorted(self._silent & found.answered):
            render.say(f"Broker {broker} answers again.")
        for broker in sorted(found.restarted):
            render.say(f"Broker {broker} has restarted.")
        for broker in sorted(found.missed):
            render.say(f"Broker {broker} dropped older events before they were read.")
        for broker in sorted(found.foreign - self._foreign):
            render.say(f"Broker {broker}: {_FOREIGN}")
        self._silent = (self._silent | found.silent.keys()) - found.answered
        self._foreign |= found.foreign


def _line(event: BrokerEvent) -> str:
    """One line, like those of a broker's log."""
    head = f"{moment.local_iso(event.time_ms)} {event.severity.name:<7} [broker {event.broker}]"
    return f"{head} {event.kind}: {render.visible(event.text)}\n"


def _json_line(event: BrokerEvent) -> str:
    """All fields, with the names that they have in a log of JSON."""
    fields: dict[str, Any] = {
        "time": moment.local_iso(event.time_ms),
        "time_ms": event.time_ms,
        "monotonic_ms": event.monotonic_ms,
        "broker_id": event.broker,
        "start_id": event.start_id,
        "sequence": event.sequence,
        "kind": event.kind,
        "level": event.severity.name,
        "message": event.text,
        "data": dict(event.data),
    }
    return render.json_line(fields)
