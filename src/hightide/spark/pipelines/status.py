"""The status of an app and its queries: figures from Spark's progress reports, kept in a file.

A running app replaces `<state>/<app>/status.json` after every look at its queries, atomically, so
that `hightide pipeline status` needs neither Spark nor the app's process. The file does not say
whether the app still runs: the process holds a lock. Unlike a process id, a lock cannot outlive its
holder or pass to another process.
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

from hightide import private_files

STATUS_FILE = "status.json"
LOCK_FILE = "lock"
WRITTEN = "written"
"""The name of the metric that counts the rows that a query passes to its sink."""

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
    """Two runs of one app would overwrite each other's progress."""


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """One query; None where a figure is not known."""

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
    """One app, as its process last wrote it."""

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
    """Return the query's status after one more report of Spark; an old report changes nothing."""
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
        # Keep the duration of the last batch that had rows.
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
    """Return the time between the starts of two micro-batches."""
    if not before:
        return 0
    elapsed = datetime.fromisoformat(now) - datetime.fromisoformat(before)
    return elapsed // timedelta(milliseconds=1)


def _rate(rows: int, span_ms: int) -> float | None:
    return rows * 1000 / span_ms if span_ms else None


def _total(operators: list[Mapping[str, Any]], name: str) -> int | None:
    """Return the sum over the state operators; None if the query has none."""
    return sum(_count(operator.get(name)) for operator in operators) if operators else None


def _written(progress: Mapping[str, Any]) -> int | None:
    """Return the rows out: the query's own count, else the sink's."""
    counted = (progress.get("observedMetrics") or {}).get(WRITTEN)
    if isinstance(counted, Mapping) and isinstance(counted.get("rows"), int):
        return int(counted["rows"])
    reported_rows = (progress.get("sink") or {}).get("numOutputRows")
    return reported_rows if isinstance(reported_rows, int) and reported_rows >= 0 else None


def _watermark(progress: Mapping[str, Any]) -> str | None:
    """Return the watermark; None for 1970, which means that it is not known yet."""
    found = (progress.get("eventTime") or {}).get("watermark")
    return None if found is None or found.startswith("1970-") else str(found)


def _positions(sources: list[Mapping[str, Any]], name: str) -> Positions:
    """Return the offsets of all sources whose offsets are by topic and partition.

    For a topic that is read twice, the slower reader counts.
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
    """Return the number of offsets between a query's positions and the ends of the logs."""
    return sum(
        max(0, ends[topic][partition] - offset)
        for topic, partitions in positions.items()
        for partition, offset in partitions.items()
        if partition in ends.get(topic, {})
    )


# -- the file ------------------------------------------------------------------------------------


def write(folder: Path, status: AppStatus) -> None:
    """Replace the status of the app with this folder."""
    private_files.make_directory(folder)
    fresh = folder / f".{STATUS_FILE}.{os.getpid()}"
    fresh.write_text(json.dumps(dataclasses.asdict(status), indent=1), "utf-8")
    fresh.replace(folder / STATUS_FILE)


def read(folder: Path) -> AppStatus | None:
    """Return the last status; an app that claims to run without holding its lock has died."""
    try:
        found = json.loads((folder / STATUS_FILE).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        # Not a file of this module, which replaces the file atomically.
        return None
    status = _made(AppStatus, found)
    queries = tuple(_made(QueryStatus, query) for query in found.get("queries", ()))
    status = dataclasses.replace(
        status,
        state=State(status.state),
        queries=tuple(dataclasses.replace(query, state=State(query.state)) for query in queries),
    )
    return marked_died(status) if status.state in ALIVE and not is_running(folder) else status


def _made(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Make a dataclass of the fields that this version knows."""
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in known})


def marked_died(status: AppStatus) -> AppStatus:
    """Mark an app and its queries as died: the process ended without a final status."""
    queries = tuple(
        dataclasses.replace(query, state=State.DIED) if query.state in ALIVE else query
        for query in status.queries
    )
    return dataclasses.replace(status, state=State.DIED, queries=queries)


def known(state: Path) -> Iterator[AppStatus]:
    """Yield the status of every app that has ever run with this state folder."""
    if state.is_dir():
        for folder in sorted(entry for entry in state.iterdir() if entry.is_dir()):
            if (found := read(folder)) is not None:
                yield found


# -- the lock ------------------------------------------------------------------------------------


@contextlib.contextmanager
def app_lock(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock of an app; raise AlreadyRunning if another process has it."""
    private_files.make_directory(folder)
    descriptor = os.open(
        folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, private_files.FILE_MODE
    )
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
