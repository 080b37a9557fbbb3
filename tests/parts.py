"""Run the parts of `make test` and `make test-all`, and print a table of their times.

    python -m tests.parts quick          what `make test` runs
    python -m tests.parts rest           what `make test-all` runs after it
    python -m tests.parts unit spark     some parts by name

Every part runs in its own process group. A part that takes longer than its limit is killed, and the
run fails. All parts run even if one fails, so one run shows everything that is wrong.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
LIMIT_S = 30 * 60
# Tests of one file share brokers, so they stay on one worker.
BY_FILE = ("--dist", "loadfile")


@dataclass(frozen=True, slots=True)
class Part:
    """One row of the table: commands that run one after the other."""

    name: str
    commands: tuple[tuple[str, ...], ...]


def pytest(*arguments: str) -> tuple[str, ...]:
    workers = os.environ.get("WORKERS", "2")
    return (str(BIN / "pytest"), "-q", "-n", workers, *arguments)


def program(name: str, *arguments: str) -> tuple[str, ...]:
    return (str(BIN / name), *arguments)


LINT = (
    program("ruff", "check", "--quiet", "."),
    program("ruff", "format", "--quiet", "--check", "."),
    program("mypy"),
    program("lint-imports", "--no-logo"),
)
QUICK, REST = ("-m", "not extended"), ("-m", "extended")
ZOOKEEPER = (*BY_FILE, "--no-loadscope-reorder", "tests/zookeeper")
CONFORMANCE = (*BY_FILE, "tests/conformance")
CONSOLE = (*BY_FILE, "tests/console")
# Each worker starts a Spark session, which takes longer than most tests.
SPARK = (*BY_FILE, "tests/spark", "--ignore", "tests/spark/kafka")

PARTS = {
    "quick": (
        Part("lint", LINT),
        Part("unit", (pytest("tests/unit", *QUICK),)),
        Part("simulation", (pytest("tests/simulation"),)),
        Part("zookeeper", (pytest(*ZOOKEEPER, *QUICK),)),
        Part("conformance", (pytest(*CONFORMANCE, *QUICK),)),
        Part("console", (pytest(*CONSOLE, *QUICK),)),
        Part("spark", (pytest(*SPARK, *QUICK),)),
    ),
    "rest": (
        Part("unit, extended", (pytest("tests/unit", *REST),)),
        Part("zookeeper, extended", (pytest(*ZOOKEEPER, *REST),)),
        Part("conformance, extended", (pytest(*CONFORMANCE, *REST),)),
        Part("console, extended", (pytest(*CONSOLE, *REST),)),
        Part("spark, extended", (pytest(*SPARK, *REST),)),
        Part("chaos", (pytest("tests/chaos", *REST),)),
        # In one file, so that the live broker has the machine to itself.
        Part("fuzz", (pytest(*BY_FILE, "tests/fuzz", *REST),)),
    ),
}


def run(part: Part) -> bool:
    """Run the part's commands in order until one fails."""
    for command in part.commands:
        print(f"$ {' '.join(command).replace(f'{BIN}/', '')}", flush=True)
        process = subprocess.Popen(command, cwd=ROOT, process_group=0)
        try:
            code = process.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            print(f"{part.name} took longer than {LIMIT_S // 60} minutes; killed.", flush=True)
            code = -1
        finally:
            _kill_group(process)
        if code != 0:
            return False
    return True


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def table(rows: list[tuple[str, float, str]]) -> str:
    lines = [f"{name:<24}{_clock(seconds):>8}  {result}" for name, seconds, result in rows]
    total = f"{'total':<24}{_clock(sum(seconds for _, seconds, _ in rows)):>8}"
    return "\n".join([f"{'part':<24}{'time':>8}", *lines, total])


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def main(names: list[str]) -> int:
    # A shell that starts a command in the background ignores SIGINT, and children inherit that. A
    # signal that is handled here has its default action again in the children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = [part for name in names for part in PARTS.get(name, ()) or _named(name)]
    rows: list[tuple[str, float, str]] = []
    if began := os.environ.get("STARTED"):  # set by make, before it installs anything
        rows.append(("installation", time.time() - float(began), "ok"))
    for part in chosen:
        print(f"\n== {part.name} {'=' * (60 - len(part.name))}", flush=True)
        start = time.monotonic()
        is_good = run(part)
        rows.append((part.name, time.monotonic() - start, "ok" if is_good else "FAILED"))
    print(f"\n{table(rows)}", flush=True)
    return int(any(result == "FAILED" for _, _, result in rows))


def _named(name: str) -> list[Part]:
    found = [part for parts in PARTS.values() for part in parts if part.name == name]
    if not found:
        known = ", ".join(part.name for parts in PARTS.values() for part in parts)
        raise SystemExit(f"No part is called {name!r}. There are: quick, rest, {known}.")
    return found


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:] or ["quick"]))
