"""Fuzz every decoder: `python -m tests.fuzz.run [--seconds N] [--target NAME] [--seed N]`.

Each target runs in its own process for its share of the time, guided by coverage (atheris, which
drives libFuzzer). Where atheris is not installed, a loop of random mutations runs instead. An input
that a target fails on is kept in a temporary folder, and printed with the command that replays it:

    python -m tests.fuzz.run --target NAME --input FILE

    main ── worker ── fork: target a, then b, …
         └─ worker ── fork: target c, then d, …

A worker imports the decoders once, with instrumentation, which takes seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tests.support.seeds import first_seed

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

WORKERS = 2
INPUT_TIMEOUT_S = 10
MEMORY_MB = 2048
MAX_INPUT_BYTES = 4096
# A target ends this long after its share at the latest.
GRACE_S = 60
LONGEST_SHOWN_BYTES = 2000
FOUND = ("crash-", "timeout-", "oom-", "leak-")
STATISTICS = "stat::number_of_executed_units:"
# Targets with hundreds of codecs, which are generated and instrumented first.
SHARES = {"requests": 4, "responses": 4}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one target."""

    name: str
    inputs: list[Path]
    executions: int
    output: str
    code: int

    @property
    def is_good(self) -> bool:
        return self.code == 0 and not self.inputs


def has_atheris() -> bool:
    return importlib.util.find_spec("atheris") is not None


# -- in a worker -----------------------------------------------------------------------------


def work(names: list[str], seconds: float, seed: int, folder: Path) -> int:
    """Fuzz targets one after the other, each in a fork; return 1 if one fails."""
    logging.disable(logging.CRITICAL)
    targets = _imported(names)
    total = sum(SHARES.get(name, 1) for name in names)
    code = 0
    for target in targets:
        share = max(1, round(seconds * SHARES.get(target.name, 1) / total))
        result = _run(target, share, seed, folder / target.name)
        print(report(result), flush=True)
        code |= not result.is_good
    return code


def _imported(names: Iterable[str]) -> list[Any]:
    """Import the targets; with atheris, measure the coverage of everything they import."""
    if not has_atheris():
        return [target_of(name) for name in names]
    import atheris

    # atheris prints a line for each module.
    quiet = contextlib.redirect_stderr(io.StringIO())
    with quiet, atheris.instrument_imports(include=["hightide"]):
        from hightide.wire.source import Source

        _instrument_generated(atheris, Source)
        return [target_of(name) for name in names]


def _instrument_generated(atheris: Any, source: Any) -> None:
    """Measure the coverage of the codecs too that `Source` generates and compiles."""
    compile_plain = source.compile

    def compile_instrumented(self: Any, function: str) -> Any:
        return atheris.instrument_func(compile_plain(self, function))

    source.compile = compile_instrumented


def _run(target: Any, seconds: int, seed: int, folder: Path) -> Result:
    """Fuzz one target in a fork of this process, with its output in a file."""
    folder.mkdir()
    log = folder / "output"
    child = os.fork()
    if child == 0:
        _in_fork(target, seconds, seed, folder, log)
    code = _wait(child, seconds + GRACE_S)
    text = log.read_text(errors="replace")
    inputs = sorted(path for path in folder.iterdir() if path.name.startswith(FOUND))
    return Result(target.name, inputs, _executions(text), text, code)


def _in_fork(target: Any, seconds: int, seed: int, folder: Path, log: Path) -> NoReturn:
    output = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        if has_atheris():
            _fuzz_with_coverage(target, seconds, seed, folder)
        else:
            _fuzz_without_coverage(target, seconds, seed, folder)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    # atheris ends with SystemExit, and libFuzzer writes the input of a failure when Python exits.
    sys.stdout.flush()
    os._exit(0)


def _wait(child: int, seconds: float) -> int:
    """Return the exit code of a child process; kill it if it takes too long."""
    deadline = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            deadline += seconds
        time.sleep(0.02)


def _executions(output: str) -> int:
    lines = [line for line in output.splitlines() if line.startswith(STATISTICS)]
    return int(lines[-1].removeprefix(STATISTICS)) if lines else 0


def _fuzz_with_coverage(target: Any, seconds: int, seed: int, folder: Path) -> None:
    import atheris

    corpus = folder / "corpus"
    corpus.mkdir()
    for number, data in enumerate(target.seeds()):
        (corpus / str(number)).write_bytes(data)
    arguments = {
        "max_total_time": seconds,
        "timeout": INPUT_TIMEOUT_S,
        "rss_limit_mb": MEMORY_MB,
        "max_len": MAX_INPUT_BYTES,
        # 0 means a random seed.
        "seed": seed % 2**32 or 1,
        "artifact_prefix": f"{folder}/",
        "print_final_stats": 1,
    }
    options = [f"-{option}={value}" for option, value in arguments.items()]
    atheris.Setup([sys.argv[0], *options, str(corpus)], target.run)
    atheris.Fuzz()


def _fuzz_without_coverage(target: Any, seconds: int, seed: int, folder: Path) -> None:
    from tests.fuzz.mutation import next_input

    seeds = list(target.seeds())
    chance = random.Random(seed)
    deadline = time.monotonic() + seconds
    executions = 0
    while time.monotonic() < deadline:
        data = seeds[executions] if executions < len(seeds) else next_input(seeds, chance)
        executions += 1
        # A target that hangs or runs out of memory leaves its input too.
        (folder / "current").write_bytes(data)
        try:
            target.run(data)
        except Exception:
            (folder / "current").rename(folder / f"crash-{executions}")
            raise
    print(STATISTICS, executions)


def target_of(name: str) -> Any:
    """Import the module of a target only: Spark's formats take a second to import."""
    from tests.fuzz.targets import every_target, find, modules

    for module in modules():
        if f"def fuzz_{name}(" in (HERE / f"{module.rpartition('.')[2]}.py").read_text():
            return next(target for target in find(module) if target.name == name)
    raise SystemExit(f"No target is called {name!r}. There are: {', '.join(every_target())}.")


def report(result: Result) -> str:
    """Return one line for a good result; for a failure also the traceback and the inputs."""
    word = "ok" if result.is_good else "FAILED"
    line = f"{result.name:<24}{result.executions:>10} inputs  {word}"
    if result.is_good:
        return line
    shown = [line, *result.output.splitlines()[-60:]]
    for path in result.inputs:
        data = path.read_bytes()
        text = repr(data[:LONGEST_SHOWN_BYTES]) + ("…" if len(data) > LONGEST_SHOWN_BYTES else "")
        shown += [
            f"input of {len(data)} bytes: {text}",
            f"replay: python -m tests.fuzz.run --target {result.name} --input {path}",
        ]
    return "\n".join(shown)


# -- the command -----------------------------------------------------------------------------


def run_all(names: list[str], seconds: float, seed: int) -> int:
    """Fuzz the targets in two workers; return 1 if one fails."""
    folder = Path(tempfile.mkdtemp(prefix="hightide-fuzz-"))
    by_share = sorted(names, key=lambda name: -SHARES.get(name, 1))
    groups = [group for group in (by_share[at::WORKERS] for at in range(WORKERS)) if group]
    common = ["--seconds", str(seconds), "--seed", str(seed), "--folder", str(folder)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.run", *common, "--worker", ",".join(group)], cwd=ROOT
        )
        for group in groups
    ]
    try:
        codes = [worker.wait() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    if any(codes):
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("tests.fuzz.run", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together")
    parser.add_argument("--target", help="only this target")
    parser.add_argument("--seed", type=int, help="of the mutations; by default random")
    parser.add_argument("--input", type=Path, help="run the target on this file only")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    seed = first_seed(is_new=True) if given.seed is None else given.seed
    if given.worker is not None:
        return work(given.worker.split(","), given.seconds, seed, given.folder)
    if given.input is not None:
        if given.target is None:
            parser.error("--input needs --target")
        target_of(given.target).run(given.input.read_bytes())
        print(f"{given.target} accepts {given.input}.")
        return 0
    if not has_atheris():
        print("atheris is not installed for this Python: random mutations run without coverage.")
    if given.target is not None:
        names = [target_of(given.target).name]
    else:
        from tests.fuzz.targets import every_target

        names = list(every_target())
    print(f"seed {seed}", flush=True)
    return run_all(names, given.seconds, seed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
