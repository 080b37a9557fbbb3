"""Show where Hightide spends its time under one of the benchmark's loads.

    python bench/hotspots.py request-16
    python bench/hotspots.py produce-1kb-64kb --with cprofile

With py-spy (`pip install py-spy`; it needs ptrace, so usually root) the broker runs untouched and
is looked at from outside 500 times a second. Without it the broker runs under cProfile, which
makes every Python call dearer: its call counts are exact, its times lean towards small functions.

Both print the functions by their own time. py-spy's folded stacks are kept in a file that
speedscope.app and flamegraph.pl read.
"""

import argparse
import pstats
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from harness.broker import Candidate
from harness.candidates import CommandLine, Hightide
from harness.lab import Lab, Workload
from harness.throughput import WORKLOADS, loaded

SAMPLES_PER_S = 500


def find_py_spy() -> str | None:
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy")


def with_py_spy(
    lab: Lab, candidate: Candidate, workload: Workload, seconds: float, stacks: Path, native: bool
) -> None:
    program = find_py_spy()
    if program is None:
        sys.exit("py-spy is not installed: pip install py-spy, or use --with cprofile")
    assert workload.load is not None
    with loaded(lab, candidate, workload.load) as (broker, measure):
        command = [program, "record", "--pid", str(broker.pids[0]), "--format", "raw"]
        command += ["--rate", str(SAMPLES_PER_S), "--duration", str(round(seconds))]
        command += ["--output", str(stacks), *(["--native"] if native else [])]
        profiler = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while profiler.poll() is None:
            measure()
        if profiler.returncode != 0:
            assert profiler.stderr is not None
            sys.exit(profiler.stderr.read().decode(errors="replace").strip())
    print_stacks(stacks)


def print_stacks(stacks: Path) -> None:
    """Functions, then single lines, by the share of samples in which they were on top."""
    samples = []
    for line in stacks.read_text().splitlines():
        folded, _, count = line.rpartition(" ")
        samples.append((folded.split(";"), int(count)))
    _print_top("function", [([_function(f) for f in frames], n) for frames, n in samples], 30)
    _print_top("line", samples, 30)
    print(f"\nfolded stacks: {stacks}")


def _function(frame: str) -> str:
    return re.sub(r":\d+\)$", ")", frame)


def _print_top(what: str, samples: list[tuple[list[str], int]], most: int) -> None:
    own: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for frames, count in samples:
        own[frames[-1]] += count
        for frame in set(frames):
            within[frame] += count
    total = sum(own.values()) or 1
    print(f"\n   own    all   {what} ({total} samples)")
    for frame, count in own.most_common(most):
        print(f"{count / total:6.1%} {within[frame] / total:6.1%}   {frame}")


def with_cprofile(lab: Lab, candidate: Candidate, workload: Workload, seconds: float) -> None:
    assert workload.load is not None
    lab = replace(lab, seconds=seconds)
    written = lab.directory / "cprofile.out"
    command = candidate.command.replace(" -m hightide", f" -m cProfile -o {written} -m hightide", 1)
    profiled = replace(candidate, command=command)
    with loaded(lab, profiled, workload.load) as (broker, measure):
        measure()
        # The profile is written at an orderly end only.
        broker.stop()
    pstats.Stats(str(written)).sort_stats("tottime").print_stats(35)


def main() -> None:
    loads = {one.name: one for one in WORKLOADS}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("workload", choices=loads, metavar="WORKLOAD", help=", ".join(loads))
    parser.add_argument("--with", dest="tool", choices=["py-spy", "cprofile"])
    parser.add_argument("--native", action="store_true", help="py-spy: show C frames as well")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--override", metavar="K=V", action="append", default=[])
    parser.add_argument("--broker", metavar="NAME='COMMAND'", help="instead of Hightide")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "stacks.txt")
    options = parser.parse_args()
    candidate = (
        CommandLine.parse(options.broker) if options.broker else Hightide(tuple(options.override))
    )
    tool = options.tool or ("py-spy" if find_py_spy() else "cprofile")
    workload = loads[options.workload]
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        lab = Lab(
            generators, Path(directory), Standing(generators, Path(directory), 0), seconds=1.0
        )
        if tool == "py-spy":
            with_py_spy(lab, candidate, workload, options.seconds, options.out, options.native)
        else:
            with_cprofile(lab, candidate, workload, options.seconds)


if __name__ == "__main__":
    main()
