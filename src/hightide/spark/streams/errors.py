"""What is wrong with an app, said to whoever wrote it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class StreamsError(Exception):
    """An app that cannot be run as it is written, or a query that has failed; the text says why."""

    # All that Spark had to say about it, for those who want that.
    whole: str | None = None


def listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def unknown(what: str, name: str, known: Iterable[str]) -> StreamsError:
    """A name that is not there, with those that are."""
    known = list(known)
    near = get_close_matches(name, known, 1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return StreamsError(f"There is no {what} {name!r}; there is: {listed(known)}.{meant}")
