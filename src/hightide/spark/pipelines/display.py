"""How a running app is shown: a live table, or lines where there is no terminal.

A line is printed when a query has made progress, but at most every few seconds, so that the log
stays readable.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hightide.spark.pipelines.status import AppStatus, QueryStatus, State

if TYPE_CHECKING:
    from rich.table import Table

LINE_EVERY_S = 5.0
HEADINGS = (
    *("query", "to", "state", "batch", "rows/s in", "rows/s out", "lag", "batch time"),
    *("watermark", "state rows", "state size"),
)
NUMBERS = ("batch", "rows/s in", "rows/s out", "lag", "batch time", "state rows", "state size")
COLOURS = {State.RUNNING: "green", State.FAILED: "red", State.DIED: "red", State.STOPPING: "yellow"}

Show = Callable[[AppStatus], None]


def cells(query: QueryStatus) -> dict[str, str]:
    """Return a query's figures as text, by heading."""
    return dict(
        zip(
            HEADINGS,
            (
                query.name,
                query.to,
                str(query.state),
                number(query.batch),
                rate(query.rows_in_per_s),
                rate(query.rows_out_per_s),
                number(query.lag),
                duration(query.batch_ms),
                moment(query.watermark),
                number(query.state_rows),
                size(query.state_bytes),
            ),
            strict=True,
        )
    )


def number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"


def duration(value_ms: int | None) -> str:
    if value_ms is None:
        return "-"
    return f"{value_ms} ms" if value_ms < 10_000 else f"{value_ms / 1000:.1f} s"


def size(value_bytes: int | None) -> str:
    if value_bytes is None:
        return "-"
    if value_bytes < 1000:
        return f"{value_bytes} B"
    return f"{value_bytes / 1000:.1f} kB" if value_bytes < 1e6 else f"{value_bytes / 1e6:,.1f} MB"


def moment(value: str | None) -> str:
    """Return one of Spark's times, without the date if it is today."""
    if value is None:
        return "-"
    found = datetime.fromisoformat(value)
    pattern = "%H:%M:%S" if found.date() == datetime.now(UTC).date() else "%Y-%m-%d %H:%M:%S"
    return found.strftime(pattern)


def line(query: QueryStatus) -> str:
    """Return one query as a line."""
    found = cells(query)
    parts = [
        f"batch {found['batch']}",
        f"{found['rows/s in']} rows/s in",
        *([f"{found['rows/s out']} out"] if query.rows_out_per_s is not None else []),
        *([f"lag {found['lag']}"] if query.lag is not None else []),
        found["batch time"],
        *([f"watermark {found['watermark']}"] if query.watermark else []),
        *(
            [f"state {found['state rows']} rows, {found['state size']}"]
            if query.state_rows is not None
            else []
        ),
    ]
    return f"{query.name}: {query.state}, {', '.join(parts)}"


def lines(say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> Show:
    """Return a function that shows a status by printing lines."""
    last: dict[str, tuple[float, str]] = {}
    states: list[State] = []

    def show(status: AppStatus) -> None:
        if states[-1:] != [status.state]:
            states.append(status.state)
            say(f"{status.app}: {status.state}")
        for query in status.queries:
            at, before = last.get(query.name, (-LINE_EVERY_S, ""))
            is_due = clock() - at >= LINE_EVERY_S or query.state is not State.RUNNING
            text = line(query)
            if query.batch is not None and text != before and is_due:
                last[query.name] = (clock(), text)
                say(text)

    return show


@contextmanager
def live() -> Iterator[Show]:
    """Yield a function that shows a status as a live table on stderr."""
    from rich.console import Console
    from rich.live import Live

    # Output of queries goes above the table if stdout is a terminal, and else to its file.
    above = sys.stdout.isatty()
    console = Console(stderr=True)
    with Live(console=console, auto_refresh=False, redirect_stdout=above) as screen:

        def show(status: AppStatus) -> None:
            screen.update(table(status), refresh=True)

        yield show


def table(status: AppStatus) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(title=_title(status), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    # Empty columns are left out, to keep the table narrow.
    used = [heading for heading in HEADINGS if heading in _used(status)]
    for heading in used:
        made.add_column(heading, justify="right" if heading in NUMBERS else "left", no_wrap=True)
    for query in status.queries:
        found: dict[str, Any] = cells(query)
        found["state"] = Text(str(query.state), COLOURS.get(query.state, ""))
        made.add_row(*(found[heading] for heading in used))
    if status.error:
        made.caption = Text(status.error, "red")
        made.caption_justify = "left"
    return made


def _title(status: AppStatus) -> str:
    seconds = (status.updated_ms - status.started_ms) // 1000
    minutes, hours = seconds // 60 % 60, seconds // 3600
    since = f"{hours}:{minutes:02}:{seconds % 60:02}"
    return f"{status.app}  {status.state}  {since}  on {status.master}, brokers {status.brokers}"


def _used(status: AppStatus) -> set[str]:
    filled = {
        heading for query in status.queries for heading, text in cells(query).items() if text != "-"
    }
    return filled | {"query", "to", "state", "batch", "rows/s in", "lag", "batch time"}
