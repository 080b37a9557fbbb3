"""The cluster of the chaos tests: brokers, and a ZooKeeper that can be killed like them.

ZooKeeper is the embedded server, or Apache ZooKeeper as a single server or an ensemble of three.
All of them have the same methods to kill, start, pause and resume them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tests.conformance.replicated import SETTINGS, Replicated
from tests.zookeeper import servers

ZOOKEEPERS = ("embedded", "apache", "ensemble")


class ZooKeeper(Protocol):
    def kill(self) -> None: ...
    def start(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Embedded:
    """The embedded ZooKeeper of the cluster."""

    def __init__(self, cluster: Replicated) -> None:
        self._cluster = cluster

    def kill(self) -> None:
        self._cluster.kill_zookeeper()

    def start(self) -> None:
        self._cluster.restart_zookeeper()

    def pause(self) -> None:
        self._cluster.pause_zookeeper()

    def resume(self) -> None:
        self._cluster.resume_zookeeper()


class World:
    """Running brokers and their ZooKeeper, in a folder that is kept after a failure."""

    def __init__(
        self,
        folder: Path,
        brokers: int,
        zookeeper: str,
        session_timeout_ms: int,
        *,
        memory: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.is_forgetful = memory
        settings = {
            **SETTINGS,
            "zookeeper.session.timeout.ms": session_timeout_ms,
            "leader.imbalance.check.interval.seconds": 5,
            "log.segment.bytes": 256 * 1024,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
            "transaction.state.log.num.partitions": 5,
            "offsets.topic.num.partitions": 5,
            **(settings or {}),
        }
        self._server: Any = None
        if zookeeper != "embedded":
            if reason := servers.missing():
                raise SystemExit(reason)
            kind = servers.Ensemble if zookeeper == "ensemble" else servers.ZooKeeper
            self._server = kind(folder / "zookeeper")
            self._server.start()
        self.cluster = Replicated(
            brokers,
            settings=settings,
            data=folder,
            memory=memory,
            zookeeper_connect=self._server.hosts if self._server is not None else None,
        )
        self.zookeeper: ZooKeeper = self._server or Embedded(self.cluster)

    def start(self) -> None:
        self.cluster.start()

    def stop(self) -> None:
        self.cluster.stop()
        if self._server is not None:
            self._server.heal()
            self._server.stop()
