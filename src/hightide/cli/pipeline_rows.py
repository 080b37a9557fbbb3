"""Rows and pages of `hightide pipeline`, made of plans, tests and statuses."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hightide.cli import render

if TYPE_CHECKING:
    from hightide.spark.pipelines.status import AppStatus
    from hightide.spark.streams import Plan


@dataclass(frozen=True, slots=True)
class Column:
    column: str
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True)
class PlanRow:
    query: str
    reads: list[str]
    to: str
    key: list[str]
    mode: str
    every: str
    guarantee: str
    columns: list[Column]
    logical_plan: str


@dataclass(frozen=True, slots=True)
class TrialRow:
    test: str
    result: str
    seconds: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class AppRow:
    app: str
    state: str
    queries: list[str]
    pid: int | None
    file: str
    brokers: str
    master: str


# -- plans ---------------------------------------------------------------------------------------


def planned(plan: Plan) -> PlanRow:
    query = plan.query
    return PlanRow(
        query=query.name,
        reads=[f"{topic} ({kind})" for topic, kind in plan.reads],
        to=str(query.to),
        key=list(query.keys),
        mode=query.mode,
        every=query.every,
        guarantee=query.guarantee,
        columns=[
            Column(column.name, column.dataType.simpleString(), column.nullable)
            for column in plan.columns
        ],
        logical_plan=plan.explained,
    )


def plan_page(row: PlanRow, *, logical: bool) -> str:
    facts = {
        "query": row.query,
        "reads": ", ".join(row.reads),
        "to": row.to,
        "key": ", ".join(row.key) or None,
        "mode": row.mode,
        "every": row.every,
        "guarantee": row.guarantee,
    }
    head = "".join(f"{name:<9}  {render.cell(value)}\n" for name, value in facts.items())
    page = f"{head}\n{render.table(row.columns)}"
    return f"{page}\n{row.logical_plan.rstrip()}\n" if logical else page


# -- tests ---------------------------------------------------------------------------------------


def run_test(name: str, test: Callable[[], Any], file: Path) -> TrialRow:
    """Run one test, and return its result."""
    from hightide.spark import explain

    began = time.monotonic()
    error = None
    try:
        test()
    except AssertionError as wrong:
        frame = traceback.extract_tb(wrong.__traceback__)[-1]
        where = f"{file}:{frame.lineno}" if frame.filename == str(file.absolute()) else str(file)
        error = f"{where}: {wrong}" if str(wrong) else f"{where}: {frame.line}"
    except Exception as failure:
        error = str(explain.explain(failure, file))
    result = "passed" if error is None else "failed"
    return TrialRow(name, result, round(time.monotonic() - began, 2), error)


# -- statuses ------------------------------------------------------------------------------------


def app_row(status: AppStatus) -> AppRow:
    from hightide.spark.pipelines.status import ALIVE

    return AppRow(
        status.app,
        str(status.state),
        [query.name for query in status.queries],
        status.pid if status.state in ALIVE else None,
        status.file,
        status.brokers,
        status.master,
    )


def status_page(status: AppStatus, now_ms: int) -> str:
    """Return one app as text: a line about it, a table of its queries, and its error."""
    from hightide.spark.pipelines import display

    seconds = max(0, now_ms - status.updated_ms) / 1000
    head = (
        f"{status.app}: {status.state}, {status.file} on {status.master}, "
        f"brokers {status.brokers}, seen {seconds:.0f} s ago\n"
    )
    rows = [display.cells(query) for query in status.queries]
    if rows:
        used = [
            heading
            for heading in display.HEADINGS
            if heading in ("query", "lag") or any(row[heading] != "-" for row in rows)
        ]
        lines = [
            [heading.upper() for heading in used],
            *([row[heading] for heading in used] for row in rows),
        ]
        widths = [max(len(line[at]) for line in lines) for at in range(len(used))]
        head += "".join(
            "  ".join(
                text.rjust(width) if name in display.NUMBERS else text.ljust(width)
                for name, text, width in zip(used, line, widths, strict=True)
            ).rstrip()
            + "\n"
            for line in lines
        )
    return head + (f"{status.error}\n" if status.error else "")
