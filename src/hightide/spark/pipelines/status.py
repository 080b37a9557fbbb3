"""How an app and its queries are doing: figures made of Spark's progress reports, kept in a file.

A running app writes `<state>/<app>/status.json` anew after every look at its queries, whole or not
at all, so that `hightide pipeline status` needs neither Spark nor the app's own process to answer.
Whether the app still runs is not in the file: it holds a lock for as long as its process lives, and
a lock, unlike a process id, cannot outlive its holder or be given to somebody else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

STATUS_FILE = "status.json"
LOCK_FILE = "lock"
WRITTEN = "written"
"""The name under which a query counts the rows that it hands to its sink."""

Positions = dict[str, dict[str, int]]
"""The next offset to read, by topic and partition."""


class State(StrEnum):
    """What an app or a query is doing."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"
    DIED = "died"


ALIVE = (State.STARTING, State.RUNNING, State.STOPPING)


class AlreadyRunning(Exception):
    """Two runs of one app would take each other's progress away."""


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """One query; what is not known yet, or not known at all, is None."""

    name: str
    to: str = ""
    state: State = State.STARTING
    batch: int | None = None
    rows_in: int = 0
    rows_out: int | None = None
    rows_in_per_s: float | None = None
    rows_out_per_s: float | None = None
    lag: int | None = None
    batch_ms: int | None = None
    watermark: str | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    late_rows: int | None = None
    error: str | None = None
    reported: str = ""
    positions: Positions = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AppStatus:
    """One app, as its process last wrote it down."""

    app: str
    file: str
    brokers: str
    master: str
    pid: int
    state: State
    started_ms: int
    updated_ms: int
    error: str | None = None
    queries: tuple[QueryStatus, ...] = ()


# -- figures -------------------------------------------------------------------------------------


def advanced(query: QueryStatus, progress: Mapping[str, Any]) -> QueryStatus:
    """The query after one more report of Spark; one that is known already changes nothing."""
    if progress["timestamp"] <= query.reported:
        return query
    sources = progress.get("sources") or []
    operators = progress.get("stateOperators") or []
    duration_ms = (progress.get("durationMs") or {}).get("triggerExecution")
    span_ms = max(duration_ms or 0, _between_ms(query.reported, progress["timestamp"]))
    rows = _count(progress.get("numInputRows"))
    written = _written(progress)
    return dataclasses.replace(
        query,
        state=State.RUNNING if query.state is State.STARTING else query.state,
        batch=progress["batchId"],
        rows_in=query.rows_in + rows,
        rows_out=query.rows_out if written is None else (query.rows_out or 0) + written,
        rows_in_per_s=_rate(rows, span_ms),
        rows_out_per_s=None if written is None else _rate(written, span_ms),
        lag=_lag(sources),
        # A report that nothing came has no batch; the last one that did something is of interest.
        batch_ms=duration_ms if rows or query.batch_ms is None else query.batch_ms,
        watermark=_watermark(progress) or query.watermark,
        state_rows=_total(operators, "numRowsTotal"),
        state_bytes=_total(operators, "memoryUsedBytes"),
        late_rows=_added(query.late_rows, _total(operators, "numRowsDroppedByWatermark")),
        reported=progress["timestamp"],
        positions=_positions(sources, "endOffset"),
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _added(before: int | None, now: int | None) -> int | None:
    return before if now is None else (before or 0) + now


def _between_ms(before: str, now: str) -> int:
    """From the start of the last micro-batch to that of this one, while its rows came in."""
    if not before:
        return 0
    elapsed = datetime.fromisoformat(now) - datetime.fromisoformat(before)
    return elapsed // timedelta(milliseconds=1)


def _rate(rows: int, span_ms: int) -> float | None:
    return rows * 1000 / span_ms if span_ms else None


def _total(operators: list[Mapping[str, Any]], name: str) -> int | None:
    """The sum over what a query remembers; None if it remembers nothing."""
    return sum(_count(operator.get(name)) for operator in operators) if operators else None


def _written(progress: Mapping[str, Any]) -> int | None:
    """Rows out: what the query counted itself, else what the sink tells, if it does."""
    counted = (progress.get("observedMetrics") or {}).get(WRITTEN)
    if isinstance(counted, Mapping) and isinstance(counted.get("rows"), int):
        return int(counted["rows"])
    told = (progress.get("sink") or {}).get("numOutputRows")
    return told if isinstance(told, int) and told >= 0 else None


def _watermark(progress: Mapping[str, Any]) -> str | None:
    """The watermark; Spark calls 1970 what is not known yet."""
    found = (progress.get("eventTime") or {}).get("watermark")
    return None if found is None or found.startswith("1970-") else str(found)


def _positions(sources: list[Mapping[str, Any]], name: str) -> Positions:
    """Offsets of all sources whose offsets are by topic and partition.

    A topic that is read twice counts where the slower reader is.
    """
    found: Positions = {}
    for source in sources:
        for topic, partitions in _offsets(source.get(name)).items():
            mine = found.setdefault(topic, {})
            for partition, offset in partitions.items():
                mine[partition] = min(offset, mine.get(partition, offset))
    return found


def _offsets(value: Any) -> Positions:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    if not isinstance(value, Mapping):
        return {}
    if not all(isinstance(partitions, Mapping) for partitions in value.values()):
        return {}
    return {
        topic: {str(number): offset for number, offset in partitions.items()}
        for topic, partitions in value.items()
        if all(isinstance(partition, int) for partition in partitions.values())
    }


def _lag(sources: list[Mapping[str, Any]]) -> int | None:
    latest = _positions(sources, "latestOffset")
    return lag(_positions(sources, "endOffset"), latest) if latest else None


def lag(positions: Positions, ends: Positions) -> int:
    """How many offsets lie between where a query is and the ends of the logs."""
    return sum(
        max(0, ends[topic][partition] - offset)
        for topic, partitions in positions.items()
        for partition, offset in partitions.items()
        if partition in ends.get(topic, {})
    )


# -- the file ------------------------------------------------------------------------------------


def write(folder: Path, status: AppStatus) -> None:
    """Replace the status of the app whose folder this is."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".{STATUS_FILE}.{os.getpid()}"
    fresh.write_text(json.dumps(dataclasses.asdict(status), indent=1), "utf-8")
    fresh.replace(folder / STATUS_FILE)


def read(folder: Path) -> AppStatus | None:
    """What was last written; an app that says it runs while nobody holds its lock has died."""
    try:
        found = json.loads((folder / STATUS_FILE).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        # Some other file of this name: nothing that we wrote is ever half there.
        return None
    status = _made(AppStatus, found)
    queries = tuple(_made(QueryStatus, query) for query in found.get("queries", ()))
    status = dataclasses.replace(
        status,
        state=State(status.state),
        queries=tuple(dataclasses.replace(query, state=State(query.state)) for query in queries),
    )
    return buried(status) if status.state in ALIVE and not is_running(folder) else status


def _made(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """A dataclass of the fields that this version knows."""
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in known})


def buried(status: AppStatus) -> AppStatus:
    """An app whose process ended without a word, and its queries with it."""
    queries = tuple(
        dataclasses.replace(query, state=State.DIED) if query.state in ALIVE else query
        for query in status.queries
    )
    return dataclasses.replace(status, state=State.DIED, queries=queries)


def known(state: Path) -> Iterator[AppStatus]:
    """Every app that has ever run with this state folder."""
    if state.is_dir():
        for folder in sorted(entry for entry in state.iterdir() if entry.is_dir()):
            if (found := read(folder)) is not None:
                yield found


# -- the lock ------------------------------------------------------------------------------------


@contextlib.contextmanager
def app_lock(folder: Path, name: str) -> Iterator[None]:
    """Be the one process that runs this app, for as long as the block lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = read(folder)
            who = f" (process {holder.pid})" if holder else ""
            raise AlreadyRunning(
                f"App {name!r} is already running{who} with its state in {folder}. "
                "Stop that one first, or run this one with another --state."
            ) from None
        yield
    finally:
        os.close(descriptor)


def is_running(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
