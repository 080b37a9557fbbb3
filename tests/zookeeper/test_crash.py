"""kill -9 under load, again and again: acknowledged writes and sessions survive.

Four writers write all the time. Each has its own session and ephemeral, a znode that counts up, a
list of sequential znodes, and a multi that sets three znodes to the same value. They record only
what the server has acknowledged. After every kill the znodes are compared with these records.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.protocol.states import KazooState

from tests.zookeeper import servers

KILLS = 25
WRITERS = 4
PATIENCE_S = 30.0
SERVING_AGAIN_S = 1.0
"""For most restarts; a busy host may take longer for one of them."""
RETRY = {"max_tries": -1, "delay": 0.01, "max_delay": 0.05}


def client_of(hosts: str) -> KazooClient:
    client = KazooClient(hosts, timeout=20, connection_retry=RETRY)
    client.start(PATIENCE_S)
    return client


class Writer(threading.Thread):
    """One session that writes until it is stopped, and records what was acknowledged."""

    def __init__(self, hosts: str, number: int) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        self.root = f"/writer-{number}"
        self.client = client_of(hosts)
        self.states: list[str] = []
        self.client.add_listener(self.states.append)
        self.session = self.client.client_id
        self.count = 0
        self.listed: set[str] = set()
        self.multis = 0
        self.lost_replies = 0
        self.failure: BaseException | None = None
        self._is_over = threading.Event()
        for name in ("", "/count", "/list", "/x", "/y", "/z"):
            self.client.create(self.root + name, b"0")
        self.client.create(self.root + "/alive", b"", ephemeral=True)

    def run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            number += 1
            try:
                self._write(number)
            except KazooException:
                # The outcome is unknown: the write was not acknowledged.
                self.lost_replies += 1
            except BaseException as failure:
                self.failure = failure
                return

    def _write(self, number: int) -> None:
        value = b"%d" % number
        self.client.set(self.root + "/count", value)
        self.count = number
        self.listed.add(self.client.create(self.root + "/list/n-", value, sequence=True))
        multi = self.client.transaction()
        for name in "xyz":
            multi.set_data(f"{self.root}/{name}", value)
        multi.create(self.root + "/list/m-", value, sequence=True)
        results = multi.commit()
        assert not any(isinstance(result, Exception) for result in results), results
        self.listed.add(results[-1])
        self.multis += 1

    def end(self) -> None:
        self._is_over.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), "a writer hangs"

    def close(self) -> None:
        self.client.stop()
        self.client.close()

    def acknowledged(self) -> tuple[int, set[str], int]:
        return self.count, set(self.listed), self.multis


@contextmanager
def writing(hosts: str) -> Iterator[list[Writer]]:
    writers = [Writer(hosts, number) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        yield writers
    finally:
        for writer in writers:
            writer.end()
        for writer in writers:
            writer.close()


def compare(reader: KazooClient, writer: Writer, noted: tuple[int, set[str], int]) -> None:
    """Check what must hold after a crash, also while other clients write."""
    count, listed, multis = noted
    assert int(reader.get(writer.root + "/count")[0]) >= count, "an acknowledged set is lost"
    there = {f"{writer.root}/list/{name}" for name in reader.get_children(writer.root + "/list")}
    assert listed <= there, f"acknowledged creates are lost: {listed - there}"
    assert sum("/m-" in path for path in there) >= multis
    owner = reader.exists(writer.root + "/alive")
    assert owner is not None, "an ephemeral is lost though its session is alive"
    assert owner.ephemeralOwner == writer.session[0]


def assert_whole(reader: KazooClient, writer: Writer) -> None:
    """Check that every multi was atomic, after all writers have stopped."""
    read = [reader.get(f"{writer.root}/{name}") for name in "xyz"]
    values, stats = zip(*read, strict=True)
    assert len(set(values)) == 1, f"a multi is torn: {values}"
    assert len({stat.version for stat in stats}) == 1
    assert len({stat.mzxid for stat in stats}) == 1
    created = [name for name in reader.get_children(writer.root + "/list") if name.startswith("m-")]
    assert len(created) == stats[0].version, "a multi is torn: a create without its sets"


@pytest.mark.extended
@pytest.mark.timeout(180)
def test_no_kill_loses_or_tears_an_acknowledged_write_or_ends_a_session(tmp_path, capsys):
    server = servers.Embedded(tmp_path)
    server.start()
    chance = random.Random()
    serving_s: list[float] = []
    try:
        with writing(server.hosts) as writers:
            for _ in range(KILLS):
                time.sleep(chance.uniform(0.2, 0.6))  # Time under load before the kill.
                noted = [writer.acknowledged() for writer in writers]
                server.kill()
                began = time.monotonic()
                server.start()
                reader = client_of(server.hosts)
                reader.get("/")
                serving_s.append(time.monotonic() - began)
                for writer, notes in zip(writers, noted, strict=True):
                    compare(reader, writer, notes)
                reader.stop()
                reader.close()
            for writer in writers:
                writer.end()
                assert writer.failure is None
                assert writer.client.client_id == writer.session
                assert KazooState.LOST not in writer.states, "a session did not survive"
            reader = client_of(server.hosts)
            for writer in writers:
                compare(reader, writer, writer.acknowledged())
                assert_whole(reader, writer)
            reader.stop()
            reader.close()
    finally:
        server.kill()
    with capsys.disabled():
        print(
            f"\n{KILLS} kills: {sum(len(writer.listed) for writer in writers)} creates and "
            f"{sum(writer.multis for writer in writers)} multis acknowledged, "
            f"{sum(writer.lost_replies for writer in writers)} replies lost; serving again after "
            f"{median(serving_s) * 1000:.0f} ms (median), {max(serving_s) * 1000:.0f} ms (longest)"
        )
    assert min(writer.multis for writer in writers) > KILLS, "there was no load during the kills"
    assert median(serving_s) < SERVING_AGAIN_S
    assert max(serving_s) < 5 * SERVING_AGAIN_S
