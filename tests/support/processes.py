"""Child processes that a test can interrupt, even where the test itself ignores SIGINT.

A shell starts background commands with SIGINT ignored, and so does `nohup`.  Children inherit that:
a command that a test started under such a pytest would never see the test's SIGINT.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hightide.process import environment


def module(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module, such as `tests.conformance.copier`, as a program.

    Start it with `checkout_environment()`, so that it finds the packages of the checkout.
    """
    return [sys.executable, "-m", name, *arguments]


def checkout_environment() -> dict[str, str]:
    """Return an environment in which a Python child imports `hightide` and `tests` as we do."""
    return environment("tests")


@contextmanager
def default_interrupt() -> Iterator[None]:
    """Give children that are started inside the default disposition of SIGINT.

    Python sets a signal that has a handler back to its default in a new program.  This is called
    from the main thread only, as `signal.signal` requires.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process that SIGINT interrupts."""
    with default_interrupt():
        return subprocess.Popen(command, **options)


@contextmanager
def hightide(*arguments: str, bootstrap: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a `hightide …` command with pipes for its output; kill it at the end if it still runs."""
    child = start(
        [sys.executable, "-m", "hightide", *arguments],
        env={**environment(), "HIGHTIDE_BOOTSTRAP": bootstrap},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()
