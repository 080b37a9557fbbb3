"""Tell the service manager that started this process when it serves, and when it stops.

systemd names a socket in $NOTIFY_SOCKET for units with `Type=notify`. Without the variable, as in a
shell or a container, nothing is sent. With `WatchdogSec=` systemd expects a message from the event
loop at least that often, and restarts a process that is silent.
"""

from __future__ import annotations

import asyncio
import os


def notify(state: str) -> None:
    """Send lines such as `READY=1`; a service manager that does not listen is not an error."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if not name.startswith(("/", "@")):
        return
    import socket  # a process without a service manager starts without it

    # "@" stands for the zero byte of an abstract name.
    address = "\0" + name[1:] if name.startswith("@") else name
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(1.0)  # the event loop must not hang with its service manager
            sender.sendto(state.encode(), address)
    except OSError:
        return


def ready(status: str) -> None:
    """The process serves; called on the event loop, which sends signs of life from now on."""
    notify(f"READY=1\nSTATUS={status}")
    period_s = _watchdog_period_s()
    if period_s:
        _beat(asyncio.get_running_loop(), period_s / 3)


def stopping() -> None:
    """The process stops, and needs up to `TimeoutStopSec=` for that."""
    notify("STOPPING=1\nSTATUS=stopping")


def _beat(loop: asyncio.AbstractEventLoop, interval_s: float) -> None:
    notify("WATCHDOG=1")
    loop.call_later(interval_s, _beat, loop, interval_s)


def _watchdog_period_s() -> float:
    """How long systemd waits for a sign of life; 0 if it does not wait for one."""
    period_us = os.environ.get("WATCHDOG_USEC", "")
    process_id = os.environ.get("WATCHDOG_PID", str(os.getpid()))
    if not period_us.isdecimal() or process_id != str(os.getpid()):
        return 0.0
    return int(period_us) / 1e6
