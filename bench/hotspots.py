"""Show where Hightide spends its time, function by function, under the benchmark's loads.

    python -m bench.hotspots                              every load below, about two minutes
    python -m bench.hotspots request-16 consume           some of them
    python -m bench.hotspots produce-64kb --native        C functions and system calls as well
    python -m bench.hotspots produce-64kb --with cprofile
    python -m bench.hotspots --floor                      what the kernel takes for the same work

A load is first put on the broker for one round without a profiler: that gives its CPU time for each
request. Then py-spy samples the broker from outside, 500 times a second, and the shares of its
samples divide that CPU time among the functions. py-spy needs ptrace, so usually root, or
permission for the process. Where it is missing or has no permission, the broker runs under
cProfile, which makes every Python call slower: its call counts are exact, but its times overstate
small functions.

Tables and py-spy's folded stacks, which speedscope.app and flamegraph.pl read, are kept in
bench/.results.
"""

import argparse
import os
import pstats
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from itertools import count as numbers
from mmap import mmap
from pathlib import Path

from bench.harness.broker import BrokerFailure, Candidate, Launch, NotSupported, Place, Settings
from bench.harness.candidates import SOURCE, Hightide, parse
from bench.harness.cluster import Cluster, cluster
from bench.harness.generator import Sample, prepare
from bench.harness.lab import TOPIC, Lab
from bench.harness.process import cpu_s
from bench.harness.standing import SETTINGS, Standing
from bench.harness.throughput import KB, MB, Load, put, ready

SAMPLES_PER_S = 500
RESULTS = Path(__file__).resolve().parent / ".results"
MOST_ROWS = 25
# Where threads rest. py-spy leaves out those that it can see resting, which in some virtual
# machines it cannot.
RESTING = re.compile(r"^(_worker|\S*\bwait|\S*[sS]elect|\S*\bpoll) \(")

ONE_RECORD = ("raw", "produce", "--records", "1", "--record-bytes", "100")
LIBRDKAFKA = ("rdkafka", "produce", "--message-bytes", str(KB), "--batch-bytes")


# The step of a sample, by the text or the place of the line on top of its stack. The first match
# counts. C functions have no lines: their time is their caller's.
STEPS = (
    ("prove the CRC of a batch", r"\bcrc32c\("),
    ("write to the page cache: pwrite", r"\b_pwrite\("),
    ("read from the page cache: preadv", r"\bpreadv?\("),
    ("send: write to the socket", r"\bos\.write\(|_transport\.write\("),
    ("event loop: epoll, recv, timers", r"asyncio/|uvloop"),
    ("frames, buffers and order of answers", r"broker/network/(connection|server|dispatch)\.py"),
    ("what a Produce means, and its answer", r"handlers/produce\.py|hot/produce"),
    (
        "what a Fetch means, and its answer",
        r"handlers/|hot/|fetch_session\.py",
    ),
    (
        "asking the leader, and where followers are",
        r"fetcher|fetch_session_client|follower|client/",
    ),
    ("high watermark and purgatory", r"replica\.py|replica_manager\.py|purgatory\.py|leader\.py"),
    ("checks, stamp, index", r"hightide/(log|wire)/"),
    ("the clock", r"environment\.py"),
    ("everything else", r""),
)


class CannotLook(Exception):
    """py-spy is not installed, or has no permission for the broker; the text says which."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A load, which of its brokers to look at, and what its CPU time is divided by.

    librdkafka does not say how many requests it sends, but for full batches it is their number.
    """

    title: str
    load: Load
    brokers: dict[int, str]
    unit: str = "request"
    unit_bytes: int | None = None

    def units(self, sample: Sample) -> float:
        return sample["bytes"] / self.unit_bytes if self.unit_bytes else sample["requests"]


ALONE = {1: "broker"}
PROFILES = {
    "produce-64kb": Profile(
        "librdkafka produces 1 KB messages in 64 KB batches, 6 partitions, acks=1",
        Load((*LIBRDKAFKA, str(64 * KB), "--acks", "1")),
        ALONE,
        unit_bytes=64 * KB,
    ),
    "produce-1mb": Profile(
        "librdkafka produces 1 KB messages in 1 MB batches, 6 partitions, acks=1",
        Load((*LIBRDKAFKA, str(MB), "--acks", "1")),
        ALONE,
        unit_bytes=MB,
    ),
    "request-1": Profile(
        "one-record Produce requests of 100 B, 1 in flight",
        Load((*ONE_RECORD, "--in-flight", "1"), 1),
        ALONE,
    ),
    "request-16": Profile(
        "one-record Produce requests of 100 B, 16 in flight on one connection",
        Load((*ONE_RECORD, "--in-flight", "16"), 1),
        ALONE,
    ),
    "consume": Profile(
        "librdkafka consumes 1 KB messages, 6 partitions, from the page cache",
        Load(("rdkafka", "consume"), reads_record_bytes=KB),
        ALONE,
        unit="MB",
        unit_bytes=MB,
    ),
    "fetch-64kb": Profile(
        "Fetch requests of up to 64 KB, one partition, 1 in flight",
        Load(("raw", "fetch", "--max-bytes", str(64 * KB)), 1, reads_record_bytes=KB),
        ALONE,
    ),
    "produce-rf3": Profile(
        "librdkafka produces 1 KB messages in 64 KB batches, acks=all, three replicas of which"
        " broker 1 leads all",
        Load((*LIBRDKAFKA, str(64 * KB), "--acks", "all"), replicas=3),
        {1: "leader", 2: "follower"},
        unit="batch",
        unit_bytes=64 * KB,
    ),
}


# ---- py-spy -------------------------------------------------------------------------------------


def find_py_spy() -> str:
    beside = Path(sys.executable).parent / "py-spy"
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise CannotLook("py-spy is not installed (pip install py-spy)")
    return found


@contextmanager
def with_topic(lab: Lab, made: Cluster, load: Load) -> Iterator[None]:
    """Yield the topic of a load. With replicas, one broker leads all, to separate the roles."""
    if load.replicas == 1:
        with ready(lab, made, load):
            yield
        return
    replicas = list(range(1, load.replicas + 1))
    made.create_topic(TOPIC, load.partitions, assignment=[replicas] * load.partitions)
    try:
        yield
    finally:
        made.delete_topic(TOPIC)


@dataclass(frozen=True, slots=True)
class Look:
    """Measure a broker under load: its CPU time per unit without a profiler, and its stacks."""

    name: str
    profile: Profile
    us_per_unit: float
    stacks: list[tuple[list[str], int]]


def look_from_outside(
    lab: Lab, made: Cluster, name: str, seconds: float, native: bool
) -> Iterator[Look]:
    profile = PROFILES[name]
    program = find_py_spy()
    with with_topic(lab, made, profile.load):
        put(lab, made, profile.load)
    with with_topic(lab, made, profile.load):
        pids = {at: made.brokers[at].pids for at in profile.brokers}
        before = {at: cpu_s(pid) for at, pid in pids.items()}
        all_before = cpu_s(made.pids)
        sample = put(lab, made, profile.load)
        whole = cpu_s(made.pids) - all_before
        us_per_unit = sample["broker_cpu_s"] / profile.units(sample) * 1e6
        shares = {at: (cpu_s(pid) - before[at]) / whole for at, pid in pids.items()}
    kept = {at: RESULTS / f"{name}-{who}.folded" for at, who in profile.brokers.items()}
    with with_topic(lab, made, profile.load):
        spies = {at: _spy(program, pids[at][0], path, seconds, native) for at, path in kept.items()}
        while any(spy.poll() is None for spy in spies.values()):
            put(lab, made, profile.load)
    for at, spy in spies.items():
        if spy.returncode != 0 or not kept[at].exists():
            assert spy.stderr is not None
            said = spy.stderr.read().decode(errors="replace").strip()
            raise CannotLook(f"py-spy could not look at the broker: {said}")
        who = profile.brokers[at]
        yield Look(f"{name}, {who}", profile, us_per_unit * shares[at], read_stacks(kept[at]))


def _spy(
    program: str, pid: int, out: Path, seconds: float, native: bool
) -> "subprocess.Popen[bytes]":
    out.unlink(missing_ok=True)
    command = [program, "record", "--pid", str(pid), "--format", "raw"]
    command += ["--rate", str(SAMPLES_PER_S), "--duration", str(round(seconds))]
    command += ["--output", str(out), *(["--native"] if native else [])]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def read_stacks(path: Path) -> list[tuple[list[str], int]]:
    """Return folded stacks: frames from the outermost to the top, and their number of samples."""
    found = []
    for line in path.read_text().splitlines():
        folded, _, count = line.rpartition(" ")
        frames = folded.split(";")
        python = next((frame for frame in reversed(frames) if ".py:" in frame), "")
        if not RESTING.match(python):
            found.append((frames, int(count)))
    return found


def table(look: Look, *, by_line: bool) -> str:
    """Functions by their own time: share of samples, and that share of the CPU time of a unit."""
    own: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for frames, count in look.stacks:
        seen = frames if by_line else [re.sub(r":\d+\)$", ")", frame) for frame in frames]
        own[seen[-1]] += count
        for frame in set(seen):
            within[frame] += count
    total = sum(own.values()) or 1
    unit = look.profile.unit
    lines = [f"\n    own   all  µs/{unit:<9}{'line' if by_line else 'function'}"]
    for frame, count in own.most_common(MOST_ROWS):
        share = count / total
        lines.append(
            f"{share:7.1%}{within[frame] / total:6.0%}{share * look.us_per_unit:9.2f}     {frame}"
        )
    return "\n".join(lines)


def step_of(frames: list[str]) -> str:
    """Return the step of a stack. A frame without source, such as C, counts as its caller."""
    for frame in reversed(frames):
        found = re.search(r"\((\S+\.py):(\d+)\)$", frame)
        if found is None:
            continue
        where = f"{frame} {_line(found[1], int(found[2]))}"
        return next(title for title, pattern in STEPS if re.search(pattern, where))
    return STEPS[-1][0]


@cache
def _line(path: str, number: int) -> str:
    """Return a line of Hightide's source; empty for other files."""
    try:
        return (SOURCE / path).read_text().splitlines()[number - 1].strip()
    except (OSError, IndexError):
        return ""


def steps(look: Look) -> str:
    """Return the table of steps of a unit."""
    own: Counter[str] = Counter()
    for frames, count in look.stacks:
        own[step_of(frames)] += count
    total = sum(own.values()) or 1
    lines = [f"\n  share  µs/{look.profile.unit:<9}step"]
    for title, count in own.most_common():
        lines.append(f"{count / total:7.1%}{count / total * look.us_per_unit:9.2f}     {title}")
    return "\n".join(lines)


def report(look: Look) -> str:
    samples = sum(count for _, count in look.stacks)
    head = f"{look.name}: {look.profile.title}\n"
    head += f"{look.us_per_unit:.1f} µs of CPU for each {look.profile.unit}, {samples} samples"
    tables = (steps(look), table(look, by_line=False), table(look, by_line=True))
    return "\n" + "\n".join([head, *tables]) + "\n"


# ---- cProfile -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnderCProfile:
    """Hightide with its first broker under cProfile, which writes its figures at the end."""

    under: Candidate
    written: Path
    name: str = "profiled"

    @property
    def about(self) -> str:
        return f"{self.under.about} under cProfile"

    def alone(self, place: Place, settings: Settings) -> Launch:
        return self._profiled(self.under.alone(place, settings))

    def together(self, places: list[Place], settings: Settings) -> list[Launch]:
        first, *rest = self.under.together(places, settings)
        return [self._profiled(first), *rest]

    def _profiled(self, launch: Launch) -> Launch:
        words = list(launch.words)
        if "-m" not in words:
            raise NotSupported("only what is started by `python -m` can run under cProfile")
        at = words.index("-m")
        words[at:at] = ["-m", "cProfile", "-o", str(self.written)]
        return replace(launch, words=tuple(words))


def look_from_inside(lab: Lab, candidate: Candidate, name: str) -> str:
    """cProfile's table of the broker that leads."""
    profile = PROFILES[name]
    written = lab.directory / f"{name}.cprofile"
    profiled = UnderCProfile(candidate, written)
    with cluster(profiled, lab.directory, profile.load.replicas, SETTINGS) as made:
        with with_topic(lab, made, profile.load):
            put(lab, made, profile.load)
        made.brokers[1].stop()
    if not written.exists():
        raise BrokerFailure("the broker left no profile when it stopped")
    shutil.copy(written, RESULTS / written.name)
    said = StringIO()
    pstats.Stats(str(written), stream=said).strip_dirs().sort_stats("tottime").print_stats(35)
    return f"\n{name}: {profile.title}, under cProfile\n{said.getvalue()}"


# ---- the floor ----------------------------------------------------------------------------------


def floor() -> str:
    """Measure the kernel's cost of a batch: the best of many, to exclude other processes."""
    lines = [f"\n{'µs, the best of many':38}{'161 B':>9}{'64 KB':>9}{'1 MB':>9}"]
    rows: dict[str, list[float]] = {}
    for size in (161, 64 * KB, MB):
        for step, took_s in _floor_of(size):
            rows.setdefault(step, []).append(took_s * 1e6)
    for step, found in rows.items():
        lines.append(f"{step:38}" + "".join(f"{name:9.1f}" for name in found))
    return "\n".join(lines) + "\n"


def _floor_of(size: int) -> Iterator[tuple[str, float]]:
    # Whole pages: from one page into another 16 bytes behind its beginning, where malloc puts large
    # blocks, some processors copy six times slower, and real data seldom lies so.
    data, into = memoryview(mmap(-1, size)), memoryview(mmap(-1, size))
    with tempfile.TemporaryFile() as file, socket.create_server(("127.0.0.1", 0)) as listener:
        fd = file.fileno()
        places = numbers(0, size)
        yield (
            "append: pwrite at the end of a file",
            _best(lambda: os.pwrite(fd, data, next(places))),
        )
        again = numbers(0, size)
        yield "read again: preadv", _best(lambda: os.preadv(fd, [into], next(again)))
        with (
            socket.create_connection(listener.getsockname()) as one,
            listener.accept()[0] as other,
        ):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def through_the_kernel() -> None:
                sent = got = 0
                while got < size:
                    if sent < size:
                        sent += one.send(data[sent : sent + 64 * KB])
                    got += other.recv_into(into)

            yield "send and receive over loopback", _best(through_the_kernel)


def _best(do: Callable[[], object], times: int = 300) -> float:
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        do()
        best = min(best, time.perf_counter() - began)
    return best


# ---- the command --------------------------------------------------------------------------------


def looks(options: argparse.Namespace, lab: Lab, candidate: Candidate) -> Iterator[str]:
    """Yield one report after the other. Without py-spy, use cProfile from there on."""
    tool = options.tool
    for name in options.load or PROFILES:
        if tool != "cprofile":
            try:
                made = lab.standing.cluster(candidate, PROFILES[name].load.replicas)
                for look in look_from_outside(lab, made, name, options.seconds, options.native):
                    yield report(look)
                continue
            except CannotLook as reason:
                if tool == "py-spy":
                    sys.exit(str(reason))
                print(f"{reason}; cProfile is used instead", file=sys.stderr)
                tool = "cprofile"
        yield look_from_inside(replace(lab, seconds=options.seconds), candidate, name)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Show where Hightide spends its time, function by function.",
        epilog="loads: " + ", ".join(PROFILES),
    )
    add = parser.add_argument
    add("load", nargs="*", metavar="LOAD", help="which to look at; all if none is named")
    add("--with", dest="tool", choices=["py-spy", "cprofile"])
    add("--floor", action="store_true", help="only what the kernel takes for the same work")
    add("--native", action="store_true", help="py-spy: show C functions as well")
    add("--seconds", type=float, default=5.0, help="how long to look at each load")
    add("--override", metavar="K=V", action="append", default=[], help="a setting of the broker")
    add("--broker", metavar="NAME='COMMAND'", help="instead of Hightide")
    options = parser.parse_args()
    for name in options.load:
        if name not in PROFILES:
            parser.error(f"there is no load {name}; there are {', '.join(PROFILES)}")
    return options


def main() -> None:
    options = parse_arguments()
    if options.floor:
        print(floor())
        return
    candidate: Candidate = Hightide(tuple(options.override))
    if options.broker:
        candidate = parse(options.broker)
    RESULTS.mkdir(exist_ok=True)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        generators = prepare()
        standing = stack.enter_context(closing(Standing(generators, directory, 3.0)))
        lab = Lab(generators, directory, standing, seconds=1.0)
        tables = stack.enter_context((RESULTS / "hotspots.txt").open("w"))
        for text in looks(options, lab, candidate):
            print(text, flush=True)
            tables.write(text)
    print(f"kept in {RESULTS}: this, and the stacks of each load")


if __name__ == "__main__":
    main()
