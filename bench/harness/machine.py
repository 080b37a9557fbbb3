"""The machine of a run: the facts that a reader needs to judge a figure."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def facts(data: Path) -> dict[str, str]:
    load = " ".join(f"{one:.2f}" for one in os.getloadavg())
    return {
        "machine": f"{len(os.sched_getaffinity(0))} CPUs ({_cpu_model()}), {_memory_gb()} GB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "data": f"{data} on {file_system(data)}",
        "load average": load,
        "commit": _commit(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gb() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9)


def file_system(path: Path) -> str:
    """Return the type of the path's mount: the longest mount point above it."""
    best, kind = -1, "?"
    for line in Path("/proc/mounts").read_text().splitlines():
        _device, mount, this_kind = line.split()[:3]
        if len(mount) > best and path.resolve().is_relative_to(mount):
            best, kind = len(mount), this_kind
    return kind


def _commit() -> str:
    if shutil.which("git") is None:
        return "?"

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    head = git("rev-parse", "--short", "HEAD")
    return f"{head} with changes" if head and git("status", "--porcelain", "src") else head or "?"
