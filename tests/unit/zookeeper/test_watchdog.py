"""The watchdog reports an event loop that hangs, and only that."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

from hightide.zookeeper.watchdog import Watchdog

LIMIT_MS = 200


def test_an_event_loop_that_hangs_is_reported_once_per_hang():
    reports: list[int] = []
    reported = threading.Event()

    def on_hang(silent_ms: int) -> None:
        reports.append(silent_ms)
        reported.set()
        raise ValueError("after a failing handler the next hang is reported too")

    async def main() -> None:
        watchdog = Watchdog(asyncio.get_running_loop(), LIMIT_MS, on_hang)
        watchdog.start()
        for _ in range(2):
            reported.clear()
            started = time.monotonic()
            assert reported.wait(10)
            assert time.monotonic() - started > LIMIT_MS / 1000 * 0.8
            # The same hang is not reported again.
            reported.clear()
            assert not reported.wait(2 * LIMIT_MS / 1000)
            await asyncio.sleep(LIMIT_MS / 1000)
        watchdog.stop()

    asyncio.run(main())
    assert reports == [LIMIT_MS, LIMIT_MS]


def test_an_event_loop_that_runs_is_left_alone():
    reports: list[int] = []

    async def main() -> None:
        watchdog = Watchdog(asyncio.get_running_loop(), LIMIT_MS, reports.append)
        watchdog.start()
        deadline = time.monotonic() + 5 * LIMIT_MS / 1000
        while time.monotonic() < deadline:
            time.sleep(0.01)  # noqa: ASYNC251
            await asyncio.sleep(0)
        watchdog.stop()

    asyncio.run(main())
    assert reports == []


def test_a_stopped_watchdog_reports_nothing():
    reports: list[int] = []

    async def main() -> None:
        watchdog = Watchdog(asyncio.get_running_loop(), LIMIT_MS, reports.append)
        watchdog.start()
        await asyncio.sleep(0)
        watchdog.stop()

    before = threading.active_count()
    asyncio.run(main())
    deadline = time.monotonic() + 10
    while threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert reports == []


WATCHED = f"""
import asyncio, time
from hightide.zookeeper.watchdog import Watchdog

async def main():
    watchdog = Watchdog(asyncio.get_running_loop(), {LIMIT_MS}, lambda _: print("hang", flush=True))
    watchdog.start()
    print("ready", flush=True)
    await asyncio.to_thread(input)
    watchdog.stop()
    print("done", flush=True)

asyncio.run(main())
"""


def test_a_process_that_was_stopped_as_a_whole_is_not_reported():
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(3):
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            time.sleep(3 * LIMIT_MS / 1000)
            os.kill(process.pid, signal.SIGCONT)
            time.sleep(LIMIT_MS / 1000 / 2)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
