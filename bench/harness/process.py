"""Facts of the kernel about a process: CPU time, memory, children, and CPU affinity."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MB = 1_000_000
QUIET_CORES = 0.2


def with_descendants(pid: int) -> list[int]:
    """Return the process and its descendants, for brokers of more than one process."""
    found = [pid]
    for parent in found:
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(child) for child in path.read_text().split()]
            except OSError:
                continue
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds used so far, with those of threads that have ended.

    This is the process CPU clock, the same nanosecond counter that /proc/PID/task/*/schedstat
    shows for each living thread. Its id follows from the pid (see clock_getcpuclockid(3)).
    """
    total = 0.0
    for pid in pids:
        try:
            total += time.clock_gettime((~pid << 3) | 2)
        except OSError:
            continue
    return total


def _status_bytes(pid: int, name: str) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def rss_mb(pids: Iterable[int]) -> float:
    return sum(_status_bytes(pid, "VmRSS:") for pid in pids) / MB


def forget_peak_rss(pids: Iterable[int]) -> None:
    """Reset the peak. Where the kernel does not allow it, the peak counts from the start."""
    for pid in pids:
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_rss_mb(pids: Iterable[int]) -> float:
    return sum(_status_bytes(pid, "VmHWM:") for pid in pids) / MB


def settled_rss_mb(pids: Iterable[int], within_s: float = 5.0) -> float:
    """Return the RSS when it is stable (two equal looks), or after `within_s`."""
    pids = list(pids)
    give_up_at = time.monotonic() + within_s
    before = rss_mb(pids)
    while True:
        time.sleep(0.3)
        now = rss_mb(pids)
        if abs(now - before) < 0.05 or time.monotonic() > give_up_at:
            return now
        before = now


def machine_busy_s() -> float:
    """Return the CPU seconds of the whole machine, without idle time."""
    with open("/proc/stat") as stat:
        ticks = [int(word) for word in stat.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / TICKS_PER_S


def wait_for_quiet(at_most_s: float) -> None:
    """Wait until the machine is quiet, within a limit. No broker may be under load."""
    give_up_at = time.monotonic() + at_most_s
    while time.monotonic() < give_up_at:
        busy, began = machine_busy_s(), time.monotonic()
        time.sleep(0.2)
        if (machine_busy_s() - busy) / (time.monotonic() - began) < QUIET_CORES:
            return


@contextmanager
def starting_on(cpu: int | None) -> Iterator[None]:
    """Run processes that are started inside the block on this CPU only (None: on any)."""
    if cpu is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
