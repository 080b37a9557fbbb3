"""`hightide up` as one cluster: brokers, and the ZooKeeper that it restarts for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from hightide.process import environment
from hightide.wire.errors import ErrorCode
from tests.support.eventually import eventually
from tests.zookeeper.broker_world import Tree, create, metadata, read, write


class Up:
    """A `hightide up` process, its children, and the addresses of its brokers."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / "up.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hightide", "up", "--port", "0", *arguments],
                env=environment(),
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("bootstrap: "), self.log.read_text()
        self.bootstrap = line.removeprefix("bootstrap: ").strip()
        self.addresses = self.bootstrap.split(",")

    def zookeeper(self) -> str:
        lines = eventually(lambda: [x for x in self.output() if x.startswith("zookeeper: ")])
        return lines[0].removeprefix("zookeeper: ")

    def output(self) -> list[str]:
        return self.log.read_text().splitlines()

    def children(self, what: str = "") -> list[int]:
        pid = self.process.pid
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        words = f"\0{what}\0".encode()
        return [
            int(pid)
            for pid in listed
            if not what or words in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    def controller(self) -> int:
        """Return the controller if all brokers agree on it and know each other; else 0."""
        seen = [metadata(address) for address in self.addresses]
        named = {response.controller_id for response in seen}
        whole = all(len(response.brokers) == len(seen) for response in seen)
        return max(named) if whole and len(named) == 1 and named != {-1} else 0

    def controller_address(self) -> str:
        number = eventually(self.controller)
        (found,) = [b for b in metadata(self.addresses[0]).brokers if b.node_id == number]
        return f"{found.host}:{found.port}"

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@contextmanager
def up(folder: Path, *arguments: str):
    running = Up(folder, *arguments)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.interrupt()
        assert running.process.stdout is not None
        running.process.stdout.close()


def send_and_read(bootstrap: str, topic: str, partitions: int) -> None:
    for partition in range(partitions):
        write(bootstrap, topic, partition, b"%d" % partition)
        assert read(bootstrap, topic, partition) == b"%d" % partition


def test_three_brokers_are_one_cluster_and_stop_at_once(tmp_path):
    with up(tmp_path, "--brokers", "3", "--memory") as cluster:
        assert len(set(cluster.addresses)) == 3
        assert len(cluster.children()) == 4
        assert create(cluster.controller_address(), "t", 6) == ErrorCode.NONE
        leaders = {
            partition.leader_id
            for partition in metadata(cluster.addresses[0], "t").topics[0].partitions
        }
        assert leaders == {1, 2, 3}
        send_and_read(cluster.bootstrap, "t", 6)
        children = cluster.children()
        assert cluster.interrupt() == 0
        assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []
    assert [path.name for path in tmp_path.iterdir()] == ["up.log"]


def test_a_zookeeper_that_was_killed_is_restarted_and_nothing_is_lost(tmp_path):
    with up(tmp_path, "--brokers", "2", "--data", "data") as cluster:
        tree = Tree(cluster.zookeeper())
        try:
            controller = cluster.controller_address()
            assert create(controller, "before", 2) == ErrorCode.NONE
            epochs = [tree.stat(f"/brokers/ids/{broker_id}").czxid for broker_id in (1, 2)]
            (killed,) = cluster.children("zookeeper")
            os.kill(killed, signal.SIGKILL)
            eventually(lambda: [n for n in cluster.children("zookeeper") if n != killed])
            send_and_read(cluster.bootstrap, "before", 2)
            assert [tree.stat(f"/brokers/ids/{broker_id}").czxid for broker_id in (1, 2)] == epochs
            done = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            eventually(lambda: create(controller, "after", 2) in done)
            send_and_read(cluster.bootstrap, "after", 2)
        finally:
            tree.close()
        assert any("the ZooKeeper server is restarted" in line for line in cluster.output())
        assert cluster.interrupt() == 0
