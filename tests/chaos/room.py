"""A machine room: brokers and ZooKeeper, each on a machine with its own network and its own disk.

The run enters namespaces of its own (`enter`): network, mounts and processes.  When it ends, in
whatever way, the kernel removes everything that it made, except files in its folder; `sweep`
removes the folders of runs that have ended.  Without root's rights, the machines are processes on
one host and in plain folders, and faults of networks, disks and power are left out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from hightide.process import ServiceFailed
from tests.chaos.machine import Disk, Machine, Meddler, missing
from tests.chaos.network import Network, command
from tests.chaos.zookeepers import ZooKeepers
from tests.conformance.replicated import SETTINGS, Replicated

PREFIX = "hightide-room-"
INSIDE = "HIGHTIDE_ROOM"
ATTEMPTS = 3
NETWORK, DISK, MEDDLER = "network", "disk", "meddler"
"""What a room may have, and a fault may need."""

ROOM_SETTINGS: Mapping[str, object] = {
    **SETTINGS,
    "zookeeper.session.timeout.ms": 2000,
    "leader.imbalance.check.interval.seconds": 5,
    "log.segment.bytes": 256 * 1024,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    # Damage is found within seconds, not days.
    "log.scrub.interval.ms": 5000,
    "log.scrub.bytes.per.second": 100 * 2**20,
}


def enter(module: str, arguments: Sequence[str]) -> list[str]:
    """Run this module again in namespaces of its own; return what is missing for that, in words.

    It returns an empty list inside of the namespaces, and else what the machine lacks.
    """
    if os.environ.get(INSIDE):
        if os.environ[INSIDE] == "new":
            command("mount", "--make-rshared", "/")
            command("mount", "-t", "tmpfs", "none", "/run")
            os.environ[INSIDE] = "made"
        return []
    if lacking := missing():
        return lacking
    os.environ[INSIDE] = "new"
    words = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    os.execvp(words[0], [*words, sys.executable, "-m", module, *arguments])


def sweep() -> None:
    """Remove the folders of runs that have ended without removing them, unless they are kept."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (folder / "lock").open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not (folder / "kept").exists():
                shutil.rmtree(folder, ignore_errors=True)


class Room(Replicated):
    """A cluster whose brokers are on machines that can lose power, network and disk."""

    def __init__(
        self,
        *,
        brokers: int = 3,
        zookeeper: str = "embedded",
        settings: Mapping[str, object] | None = None,
        is_whole: bool = True,
        disk_mb: int = 512,
    ) -> None:
        self.place = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock: IO[bytes] = (self.place / "lock").open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._disk_mb = disk_mb
        self.failed_starts: list[str] = []
        self.network = Network() if is_whole else None
        self.has = self.possible(is_whole=is_whole)
        self.machines = {n: self._machine(f"broker-{n}") for n in range(1, brokers + 1)}
        self.zookeepers = ZooKeepers(zookeeper, self._machine, self.place)
        super().__init__(
            brokers,
            settings={**ROOM_SETTINGS, **(settings or {})},
            data=self.place,
            zookeeper_connect=self.zookeepers.connect,
        )

    @staticmethod
    def possible(*, is_whole: bool) -> set[str]:
        """Return what a room on this machine has."""
        found = {NETWORK, DISK} if is_whole else set()
        return found | ({MEDDLER} if shutil.which("cc") is not None else set())

    def _machine(self, name: str) -> Machine:
        path, disk, address = self.place / name, None, "127.0.0.1"
        if self.network is not None:
            address = self.network.add(name)
            disk = Disk(self.place, name, self._disk_mb)
        else:
            path.mkdir()
        meddler = Meddler(self.place / f"{name}.faults", path) if MEDDLER in self.has else None
        return Machine(name, address, path, disk, meddler)

    # -- a cluster on machines -------------------------------------------------------------

    def host(self, broker_id: int = 1) -> str:
        return self.machines[broker_id].address

    def wrapper(self, broker_id: int = 1) -> list[str]:
        return self.machines[broker_id].wrapper()

    def data(self, broker_id: int = 1) -> Path:
        # Not the root of the file system, which has lost+found.
        return self.machines[broker_id].path / "data"

    def start(self) -> Self:
        self.zookeepers.start()
        return super().start()

    def stop(self) -> None:
        """Stop everything; the folder with logs and data stays until `remove`."""
        for broker in self._brokers.values():
            if broker.process.is_running():
                broker.process.kill()
        super().stop()
        self.zookeepers.stop()

    def remove(self, *, keep: bool) -> None:
        """Remove namespaces, mounts and the folder; `keep` leaves the folder, with the data."""
        if keep:
            self._keep()
        for machine in [*self.machines.values(), *self.zookeepers.machines]:
            if machine.disk is not None:
                machine.disk.unmount()
        if self.network is not None:
            self.network.remove()
        self._lock.close()
        if not keep:
            shutil.rmtree(self.place, ignore_errors=True)

    def _keep(self) -> None:
        """Copy what the disks hold into the folder; what cannot be read is left out."""
        (self.place / "kept").touch()
        for machine in self.machines.values():
            if machine.disk is not None:
                with contextlib.suppress(OSError, shutil.Error):
                    shutil.copytree(machine.path / "data", self.place / f"{machine.name}-data")

    # -- faults ----------------------------------------------------------------------------

    def cut_power(self, broker_id: int) -> None:
        """Switch the machine off: no more packets, and what was not synced is lost."""
        machine = self.machines[broker_id]
        assert machine.disk is not None
        assert self.network is not None
        self.pause(broker_id)
        self.network.unplug(machine.name)
        machine.disk.die()
        self.kill(broker_id)
        machine.disk.renew()
        machine.boot()
        self.network.plug(machine.name)

    def launch(self, broker_id: int) -> None:
        """Start a broker without waiting."""
        self._brokers[broker_id].process.launch()

    def start_missing(self) -> None:
        """Start all brokers that do not run, at once; again, if one stops before it serves."""
        for attempt in range(ATTEMPTS):
            for broker in self._brokers.values():
                if not broker.process.is_running():
                    broker.process.wait()  # closes its pipes
                    broker.process.launch()
            failures = []
            for broker in self._brokers.values():
                if not broker.process.address:
                    try:
                        broker.process.wait_until_it_listens()
                    except ServiceFailed as failure:
                        failures.append(failure)
            if not failures:
                return
            self.failed_starts += [str(failure) for failure in failures]
            if attempt == ATTEMPTS - 1:
                raise failures[0]
            time.sleep(0.5)

    def heal_all(self) -> None:
        """End every fault: network, disks, clocks, pauses; start what does not run."""
        if self.network is not None:
            self.network.heal()
        for machine in [*self.machines.values(), *self.zookeepers.machines]:
            if machine.meddler is not None:
                machine.meddler.heal()
            if machine.disk is not None:
                machine.disk.empty()
        self.zookeepers.heal()
        for broker_id, broker in self._brokers.items():
            if broker.process.is_paused:
                self.resume(broker_id)
        self.start_missing()
