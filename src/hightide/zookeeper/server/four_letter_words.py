"""ZooKeeper's four-letter words, as in `echo ruok | nc host 2181`.

The lines that tools parse have ZooKeeper's names and format. Metrics that this server does not have
are left out.
"""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Callable, Iterator
from itertools import islice

import hightide
from hightide.zookeeper.committer import Committer
from hightide.zookeeper.server.options import ServerOptions
from hightide.zookeeper.server.traffic import Peer, Traffic, is_loopback

VERSION = f"3.8.0-hightide-{hightide.__version__}"
"""The ZooKeeper version whose behaviour this server has, and Hightide's version."""


_SHOWN_CONNECTIONS = 1000
"""Connections that `stat` and `cons` list."""


class Words:
    """The four-letter words of one server."""

    def __init__(self, options: ServerOptions, committer: Committer, traffic: Traffic) -> None:
        self._options = options
        self._committer = committer
        self._traffic = traffic
        self.port = options.port
        self._words: dict[str, Callable[[], str]] = {
            "conf": self._conf,
            "cons": self._cons,
            "envi": self._envi,
            "isro": lambda: "rw",
            "mntr": self._mntr,
            "ruok": lambda: "imok",
            "srvr": self._srvr,
            "stat": self._stat,
        }

    def __call__(self, word: str, host: str) -> str | None:
        """Return the answer for a client on this host, or None if the word is unknown."""
        answer = self._words.get(word)
        if answer is None:
            return None
        allowed = self._options.words
        if not (is_loopback(host) or word in allowed or "*" in allowed):
            return f"{word} is not executed because it is not in the whitelist.\n"
        return answer()

    def _latencies_ms(self) -> tuple[float, float, float]:
        """Return the shortest, mean and longest time from a write request to its response."""
        traffic = self._traffic
        mean = traffic.latency_s / max(traffic.answered, 1)
        return traffic.latency_min_s * 1000, mean * 1000, traffic.latency_max_s * 1000

    def _srvr(self) -> str:
        tree, traffic = self._committer.tree, self._traffic
        shortest, mean, longest = self._latencies_ms()
        return (
            f"Zookeeper version: {VERSION}\n"
            f"Latency min/avg/max: {shortest:.0f}/{mean:.4f}/{longest:.0f}\n"
            f"Received: {traffic.received}\n"
            f"Sent: {traffic.sent}\n"
            f"Connections: {len(traffic.connections)}\n"
            f"Outstanding: {self._committer.queued}\n"
            f"Zxid: 0x{tree.zxid:x}\n"
            "Mode: standalone\n"
            f"Node count: {len(tree.nodes)}\n"
        )

    def _stat(self) -> str:
        first, rest = self._srvr().split("\n", 1)
        clients = "".join(f" {_line(peer)})\n" for peer in self._shown())
        return f"{first}\nClients:\n{clients}\n{rest}"

    def _cons(self) -> str:
        lines = [f" {_line(peer)},sid=0x{peer.session_id:x})\n" for peer in self._shown()]
        return "".join(lines) + "\n"

    def _shown(self) -> Iterator[Peer]:
        return islice(self._traffic.connections, _SHOWN_CONNECTIONS)

    def _conf(self) -> str:
        shortest, longest = self._options.session_timeouts_ms
        return (
            f"clientPort={self.port}\n"
            f"tickTime={self._options.tick_ms}\n"
            f"maxClientCnxns={self._options.limits.connections_per_address}\n"
            f"minSessionTimeout={shortest}\n"
            f"maxSessionTimeout={longest}\n"
            "serverId=0\n"
        )

    def _envi(self) -> str:
        host = os.uname()
        return (
            "Environment:\n"
            f"zookeeper.version={VERSION}\n"
            f"host.name={host.nodename}\n"
            f"python.version={platform.python_version()}\n"
            f"os.name={host.sysname}\n"
            f"os.arch={host.machine}\n"
            f"os.version={host.release}\n"
        )

    def _mntr(self) -> str:
        return "".join(f"zk_{name}\t{value}\n" for name, value in self._metrics())

    def _metrics(self) -> Iterator[tuple[str, object]]:
        tree, traffic = self._committer.tree, self._traffic
        shortest, mean, longest = self._latencies_ms()
        yield "version", VERSION
        yield "server_state", "standalone"
        yield "avg_latency", f"{mean:.4f}"
        yield "max_latency", round(longest)
        yield "min_latency", round(shortest)
        yield "packets_received", traffic.received
        yield "packets_sent", traffic.sent
        yield "num_alive_connections", len(traffic.connections)
        yield "outstanding_requests", self._committer.queued
        yield "znode_count", len(tree.nodes)
        yield "watch_count", len(tree.watches)
        yield (
            "ephemerals_count",
            sum(tree.ephemeral_count(session) for session in tree.sessions),
        )
        yield "approximate_data_size", tree.size
        yield "global_sessions", len(tree.sessions)
        yield "local_sessions", 0
        yield "open_file_descriptor_count", len(os.listdir("/dev/fd"))
        yield "max_file_descriptor_count", resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _line(peer: Peer) -> str:
    """Format a connection as ZooKeeper does, without the closing parenthesis."""
    return f"/{peer.address}[1](queued=0,recved={peer.received},sent={peer.sent}"
