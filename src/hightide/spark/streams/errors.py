"""Errors in the declaration or the run of an app, for its author."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class StreamsError(Exception):
    """An app that cannot run as it is written, or a query that has failed; the text says why."""

    # Spark's whole trace, for the log file.
    whole: str | None = None


def listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def unknown(what: str, name: str, known: Iterable[str]) -> StreamsError:
    """Return an error about an unknown name that lists the known ones."""
    known = list(known)
    near = get_close_matches(name, known, 1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return StreamsError(f"There is no {what} {name!r}; expected one of: {listed(known)}.{meant}")
