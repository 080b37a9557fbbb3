"""TCP options of connections between brokers, to ZooKeeper and from clients."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time

import pytest

from hightide import tcp
from hightide.broker.network.server import listening_socket
from hightide.client.broker_connection import Connection, ConnectionFailed
from tests.zookeeper.client_world import switched_off

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these are options of Linux")

RTO_MAX_MS = 44


def knows_the_longest_pause() -> bool:
    """Whether the kernel has TCP_RTO_MAX_MS (Linux 6.15)."""
    with socket.socket() as trial:
        try:
            trial.setsockopt(socket.IPPROTO_TCP, RTO_MAX_MS, 1000)
        except OSError:
            return False
        return True


def option(sock: socket.socket, name: int) -> int:
    return sock.getsockopt(socket.IPPROTO_TCP, name)


def test_an_accepted_connection_is_probed_and_not_closed_while_data_waits() -> None:
    listening = listening_socket("127.0.0.1", 0, 5)
    with listening, socket.create_connection(listening.getsockname()):
        listening.setblocking(True)
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert option(accepted, socket.TCP_KEEPIDLE) == 30
            assert option(accepted, socket.TCP_USER_TIMEOUT) == 0, "a consumer may be slow"
            if knows_the_longest_pause():
                assert option(accepted, RTO_MAX_MS) == tcp.RETRANSMIT_MS


def test_a_connection_to_a_peer_is_closed_when_its_host_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as connected:
        connected.connect(server.getsockname())
        tcp.peer_options(connected)
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert option(connected, socket.TCP_USER_TIMEOUT) == tcp.SILENCE_MS
        assert (
            option(connected, socket.TCP_KEEPIDLE) == option(connected, socket.TCP_KEEPINTVL) == 1
        )
        if knows_the_longest_pause():
            assert option(connected, RTO_MAX_MS) == tcp.RETRANSMIT_MS


def test_an_option_that_the_system_lacks_is_left_out() -> None:
    class Old:
        def setsockopt(self, level: int, optname: int, value: int, /) -> None:
            raise OSError(92, "Protocol not available", level, optname, value)

    tcp.peer_options(Old())
    tcp.listen_options(Old())


def test_an_attempt_to_reach_a_host_that_is_cut_off_ends_soon() -> None:
    async def main() -> float:
        with switched_off() as address:
            host, _, port = address.rpartition(":")
            began = time.monotonic()
            with pytest.raises(ConnectionFailed, match="did not accept a connection within 2000"):
                await Connection.open(host, int(port), timeout_ms=30_000, is_peer=True)
            return time.monotonic() - began

    assert 1.5 < asyncio.run(main()) < 10


def test_a_peer_with_several_addresses_is_reached_at_any_of_them() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as only_one:
            with contextlib.suppress(ConnectionFailed):
                await Connection.open(
                    "localhost", only_one.getsockname()[1], timeout_ms=300, is_peer=True
                )
            only_one.settimeout(5)
            only_one.accept()[0].close()

    asyncio.run(main())
