"""The cluster that chaos is done to: brokers, and a coordinator that can be killed like them.

The coordinator is ours, or Debian's ZooKeeper alone or as an ensemble of three; whichever it is, it
is killed, started, paused and resumed by the same words.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tests.conformance.replicated import SETTINGS, Replicated
from tests.zookeeper import servers

COORDINATORS = ("own", "zookeeper", "ensemble")


class Coordinator(Protocol):
    def kill(self) -> None: ...
    def start(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Own:
    """The coordinator that is part of the cluster."""

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
    """Running brokers and their coordinator, in a folder that is kept if something goes wrong."""

    def __init__(
        self,
        folder: Path,
        brokers: int,
        coordinator: str,
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
        if coordinator != "own":
            if reason := servers.missing():
                raise SystemExit(reason)
            kind = servers.Ensemble if coordinator == "ensemble" else servers.ZooKeeper
            self._server = kind(folder / "zookeeper")
            self._server.start()
        self.cluster = Replicated(
            brokers,
            settings=settings,
            data=folder,
            memory=memory,
            zookeeper_connect=self._server.hosts if self._server is not None else None,
        )
        self.coordinator: Coordinator = self._server or Own(self.cluster)

    def start(self) -> None:
        self.cluster.start()

    def stop(self) -> None:
        self.cluster.stop()
        if self._server is not None:
            self._server.heal()
            self._server.stop()
