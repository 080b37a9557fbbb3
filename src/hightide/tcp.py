"""TCP options: how soon a connection works again after the network was cut.

While nothing arrives at the other side, TCP sends its data again after pauses that double each
time.  After a cut of eleven seconds the next attempt may be thirteen seconds away, although the
network has healed.  Three options bound that:

* `TCP_RTO_MAX_MS` (Linux 6.15 and later) bounds the pause.  An accepted socket inherits it from the
  listening one.
* `TCP_USER_TIMEOUT` closes a connection whose data is not acknowledged in time, and keepalive
  probes find out on an idle connection.  The program then opens another, which has no pauses yet.
  A process that is paused or busy keeps its connections: the kernel acknowledges for it.

A system without one of these options keeps its default.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import Protocol

RETRANSMIT_MS = 1000
"""The longest pause between two attempts to send the same data."""
SILENCE_MS = 2000
"""How long another broker's host may acknowledge nothing before the connection is closed."""
CONNECT_MS = 2000
"""How long an attempt to connect may take.  The kernel sends its request at once, after one second
and after three; a new attempt after two seconds is sooner than the third."""

# Python does not name the option yet; another system's option 44 would be a different one.
_RTO_MAX_MS = 44 if sys.platform == "linux" else None
_PROBE_S = 1
_CLIENT_IDLE_S, _CLIENT_PROBE_S, _CLIENT_PROBES = 30, 10, 3


class TcpSocket(Protocol):
    """A socket, or what a transport shows of it."""

    def setsockopt(self, level: int, optname: int, value: int, /) -> None: ...


def listen_options(listening: TcpSocket) -> None:
    """Set the options of accepted sockets.

    A client may take its responses slowly, so data that it does not take closes nothing.  A host
    that has vanished without a word is noticed after a minute.
    """
    _bound_retransmission(listening)
    _keepalive(listening, _CLIENT_IDLE_S, _CLIENT_PROBE_S, _CLIENT_PROBES)


def peer_options(connected: TcpSocket, silence_ms: int = SILENCE_MS) -> None:
    """Set the options of a connection to another broker, or to ZooKeeper."""
    _bound_retransmission(connected)
    _keepalive(connected, _PROBE_S, _PROBE_S, max(1, silence_ms // 1000 // _PROBE_S))
    _set(connected, socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", None), silence_ms)


def _bound_retransmission(sock: TcpSocket) -> None:
    _set(sock, socket.IPPROTO_TCP, _RTO_MAX_MS, RETRANSMIT_MS)


def _keepalive(sock: TcpSocket, idle_s: int, probe_s: int, probes: int) -> None:
    _set(sock, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _set(sock, socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE", None), idle_s)
    _set(sock, socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPINTVL", None), probe_s)
    _set(sock, socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPCNT", None), probes)


def _set(sock: TcpSocket, level: int, option: int | None, value: int) -> None:
    if option is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(level, option, value)
