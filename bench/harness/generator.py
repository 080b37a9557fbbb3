"""The load generators: compiled when needed, run as processes, their JSON read.

`raw` needs a C compiler only. `rdkafka` and `latency` need librdkafka's header as well (Debian's
librdkafka-dev) and are linked to the library inside the confluent-kafka wheel when there is one,
because that is newer than a distribution's; its interface has been stable since 1.0, so the older
header serves. Without compiler or header, confluent-kafka's Python client takes the place of
`rdkafka`, with the cost of a Python client on the figures. `latency` has no such stand-in: a Python
client's own pauses would be most of what it measured. Without a compiler there is no `raw` either.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from bench.harness.broker import BUILT, BrokerFailure, NotSupported
from bench.harness.process import cpu_s, machine_busy_s, starting_on

LOAD = Path(__file__).resolve().parents[1] / "load"
Sample = dict[str, float]


class Loaded(Protocol):
    """A target of load: a broker or a cluster."""

    @property
    def port(self) -> int: ...

    @property
    def pids(self) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Generators:
    """The available load generators; each is the beginning of a command line."""

    raw: tuple[str, ...]
    rdkafka: tuple[str, ...]
    rdkafka_is: str
    notes: tuple[str, ...] = ()
    latency: tuple[str, ...] = ()

    def run(self, broker: Loaded, arguments: Sequence[str], cpu: int | None = None) -> Sample:
        """Run one generator (`raw`, `rdkafka` or `latency`, then its arguments) on the broker."""
        with starting_on(cpu):
            done, used = run_and_account(self.command(arguments, broker), broker.pids)
        if done.returncode != 0:
            why = done.stderr.strip().splitlines()[-3:]
            raise BrokerFailure(f"{' '.join(arguments[:2])}: {' / '.join(why)}")
        # The generator's own CPU figures, of the window that counts, go before those of it all.
        measured: Sample = json.loads(done.stdout.splitlines()[-1])
        return used | measured

    def command(self, arguments: Sequence[str], broker: Loaded) -> list[str]:
        programs = {"raw": self.raw, "rdkafka": self.rdkafka, "latency": self.latency}
        program = programs[arguments[0]]
        if not program:
            more = " and librdkafka's header" if arguments[0] == "latency" else ""
            raise NotSupported(f"needs a C compiler{more}")
        watch = [word for pid in broker.pids for word in ("--broker-pid", str(pid))]
        return [*program, *arguments[1:], "--port", str(broker.port), *watch]


def run_and_account(
    command: Sequence[str], pids: Sequence[int], timeout_s: float | None = None
) -> tuple[subprocess.CompletedProcess[str], Sample]:
    """Run a client; return the CPU that it, these processes and all others used meanwhile."""
    busy, used, began = machine_busy_s(), cpu_s(pids), time.perf_counter()
    children = os.times()
    # Its output is parsed, so it must not depend on the user's locale.
    environment = os.environ | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise BrokerFailure(f"{Path(command[0]).name} was not done in {timeout_s} s") from None
    seconds = time.perf_counter() - began
    after = os.times()
    client = after.children_user + after.children_system
    client -= children.children_user + children.children_system
    brokers = cpu_s(pids) - used
    others = (machine_busy_s() - busy - brokers - client) / seconds
    spent = {"client_cpu_s": client, "broker_cpu_s": brokers, "other_cores": max(0.0, others)}
    return done, spent


@dataclass(slots=True)
class _Build:
    compiler: str | None = field(default_factory=lambda: shutil.which("cc"))
    notes: list[str] = field(default_factory=list)

    def compile(self, source: str, *more: str) -> Path | None:
        """Return the program of load/`source`, built again after a change."""
        if self.compiler is None:
            return None
        key = hashlib.sha256("\0".join(more).encode())
        for path in sorted([*LOAD.glob("*.h"), LOAD / source]):
            key.update(path.read_bytes())
        program = BUILT / f"{Path(source).stem}-{key.hexdigest()[:12]}"
        if not program.exists():
            BUILT.mkdir(exist_ok=True)
            command = [self.compiler, "-O2", "-o", str(program), str(LOAD / source), *more]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                first = (done.stderr.splitlines() or ["no reason given"])[0]
                self.notes.append(f"{source} does not compile: {first}")
                return None
        return program

    def compile_on_librdkafka(self, source: str) -> Path | None:
        """Compile with the librdkafka of the wheel, or else of the system."""
        wheel, program = _wheel_library(), None
        if wheel is not None:
            program = self.compile(source, str(wheel), f"-Wl,-rpath,{wheel.parent}", "-pthread")
        return program or self.compile(source, "-lrdkafka", "-pthread")


def _wheel_library() -> Path | None:
    """Return the librdkafka inside the confluent-kafka wheel."""
    spec = find_spec("confluent_kafka")
    if spec is None or spec.origin is None:
        return None
    beside = Path(spec.origin).parent.parent / "confluent_kafka.libs"
    return next(iter(sorted(beside.glob("librdkafka-*.so*"))), None)


def prepare() -> Generators:
    build = _Build()
    if build.compiler is None:
        build.notes.append("no C compiler (cc): raw workloads are left out")
    raw = build.compile("raw.c")
    rdkafka = build.compile_on_librdkafka("rdkafka.c")
    latency = build.compile_on_librdkafka("latency.c") if rdkafka else None
    command = (str(rdkafka),) if rdkafka else (sys.executable, str(LOAD / "rdkafka.py"))
    if not rdkafka:
        build.notes.append(
            "librdkafka from C is not available (needs cc and librdkafka-dev): confluent-kafka's"
            " Python client generates the load, so client figures are much lower than from C, and"
            " end-to-end latency is left out"
        )
    version = subprocess.run([*command, "version"], capture_output=True, text=True, check=False)
    language = "C" if rdkafka else "Python"
    name = version.stdout.strip() or "no librdkafka"
    if not version.stdout.strip():
        build.notes.append("confluent-kafka is not installed: librdkafka workloads will fail")
    return Generators(
        raw=(str(raw),) if raw else (),
        rdkafka=command,
        rdkafka_is=f"{name}, {language}",
        notes=tuple(build.notes),
        latency=(str(latency),) if latency else (),
    )
