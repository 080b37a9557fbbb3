"""A reader of the output that closes the pipe, as `head` does, ends a command; that is no failure.

Libraries treat a broken pipe differently: rich ends the process with code 1, typer too, and Python
reports what it cannot write at exit.  So stdout raises an exception that only this module knows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any


class ReaderGone(Exception):
    """The reader of stdout has closed the pipe."""


class Guarded:
    """A stream whose writes raise `ReaderGone`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> Guarded:
        return Guarded(self._stream.buffer)

    def write(self, data: Any) -> Any:
        try:
            return self._stream.write(data)
        except BrokenPipeError:
            raise ReaderGone from None

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            raise ReaderGone from None


def run(command: Callable[[], int]) -> int:
    """Run a command that prints; return its exit code, or 0 if its reader has gone."""
    stdout, code = sys.stdout, 0
    sys.stdout = Guarded(stdout)
    try:
        code = command()
        sys.stdout.flush()
    except ReaderGone:
        # Python flushes stdout once more when it exits.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stdout.fileno())
        os.close(nowhere)
    finally:
        sys.stdout = stdout
    return code
