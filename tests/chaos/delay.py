"""Delayed packets: the kernel hands each packet to this process, which releases it later.

This is netfilter's NFQUEUE over a netlink socket.  The kernel's own `netem` is not built into every
kernel.  A process of its own holds the packets, because a busy test run would delay them longer.

    python -m tests.chaos.delay LOW_MS HIGH_MS      inside the namespace; until it is killed
"""

from __future__ import annotations

import heapq
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

NETLINK_NETFILTER = 12
PACKET, VERDICT, CONFIG = 0x300, 0x301, 0x302
REQUEST, ACK = 1, 4
BIND, COPY_PACKET = 1, 2
ACCEPT = 1
# Attributes.
CONFIG_COMMAND, CONFIG_COPY, CONFIG_LENGTH = 1, 2, 3
PACKET_HEADER, VERDICT_HEADER = 1, 2


class Delayer:
    """The process that delays the packets of one namespace."""

    def __init__(self, namespace: str, low_ms: float, high_ms: float) -> None:
        words = [sys.executable, "-m", "tests.chaos.delay", str(low_ms), str(high_ms)]
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, *words],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def message(kind: int, flags: int, *attributes: bytes) -> bytes:
    """Return a netlink message to queue 0."""
    body = struct.pack(">BBH", socket.AF_UNSPEC, 0, 0) + b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 0, 0) + body


def attribute(kind: int, value: bytes) -> bytes:
    size = 4 + len(value)
    return struct.pack("=HH", size, kind) + value + bytes(-size % 4)


def packet_ids(data: bytes) -> Iterator[bytes]:
    """Yield the ids, as the verdict needs them, of the packets in what the kernel has sent."""
    at = 0
    while at + 16 <= len(data):
        size, kind, *_ = struct.unpack_from("=IHHII", data, at)
        inside, end = at + 20, at + size
        while kind == PACKET and inside + 4 <= end:
            length, name = struct.unpack_from("=HH", data, inside)
            if name & 0x7FFF == PACKET_HEADER:
                yield data[inside + 4 : inside + 8]
            inside += length + -length % 4
        at += size + -size % 4


def main(low_ms: float, high_ms: float) -> None:
    queue = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    queue.bind((0, 0))
    queue.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**24)
    bind = attribute(CONFIG_COMMAND, struct.pack(">BBH", BIND, 0, socket.AF_INET))
    queue.send(message(CONFIG, REQUEST | ACK, bind))
    answer = queue.recv(4096)
    (error,) = struct.unpack_from("=i", answer, 16)
    if error:
        raise OSError(-error, "cannot bind the packet queue")
    copy = attribute(CONFIG_COPY, struct.pack(">IB", 40, COPY_PACKET))
    length = attribute(CONFIG_LENGTH, struct.pack(">I", 100_000))
    queue.send(message(CONFIG, REQUEST, copy, length))
    print("ready", flush=True)
    held: list[tuple[float, bytes]] = []
    while True:
        now = time.monotonic()
        while held and held[0][0] <= now:
            verdict = struct.pack(">I", ACCEPT) + heapq.heappop(held)[1]
            queue.send(message(VERDICT, REQUEST, attribute(VERDICT_HEADER, verdict)))
        wait_s = max(0.0, held[0][0] - now) if held else None
        if select.select([queue], [], [], wait_s)[0]:
            with suppress(OSError):  # ENOBUFS: the kernel dropped some, as a network may
                for found in packet_ids(queue.recv(2**20)):
                    due_s = time.monotonic() + random.uniform(low_ms, high_ms) / 1000
                    heapq.heappush(held, (due_s, found))


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
