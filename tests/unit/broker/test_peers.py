"""A broker's connections to other brokers, on real sockets."""

from __future__ import annotations

import asyncio
import gc
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from hightide.broker.replication.peers import Peers
from hightide.client.broker_connection import ConnectionFailed
from hightide.wire.frame import RequestHeader, decode_request_header, encode_response
from hightide.wire.messages.api_versions import ApiVersionsResponse
from hightide.wire.messages.replication import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    PublishedEndpoint,
    PublishStateRequest,
    PublishStateResponse,
    RemainingPartition,
)
from tests.support.proving import NoProof

API_VERSIONS, CONTROLLED_SHUTDOWN, PUBLISH_STATE = 18, 7, 30001


class Other:
    """Another broker: the requests it got, and whether it answers."""

    def __init__(self) -> None:
        self.connections = 0
        self.requests: list[tuple[int, int]] = []
        self.client_ids: set[str | None] = set()
        self.greets = True
        self.answers = True
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                header, _ = decode_request_header(memoryview(await reader.readexactly(size)))
                self.client_ids.add(header.client_id)
                if header.api_key == API_VERSIONS:
                    if self.greets:
                        self.answer(writer, header, ApiVersionsResponse(api_keys=[]))
                    continue
                self.requests.append((header.api_key, header.api_version))
                if self.answers:
                    self.answer(writer, header, self.response_to(header.api_key))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @staticmethod
    def response_to(api_key: int) -> object:
        if api_key == PUBLISH_STATE:
            return PublishStateResponse(error_code=11)
        remaining = RemainingPartition(topic_name="t", partition_index=3)
        return ControlledShutdownResponse(remaining_partitions=[remaining])

    @staticmethod
    def answer(writer: asyncio.StreamWriter, header: RequestHeader, response: object) -> None:
        writer.write(encode_response(response, header.api_version, header.correlation_id))

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def other_broker() -> AsyncIterator[tuple[Other, PublishedEndpoint]]:
    other = Other()
    server = await asyncio.start_server(other.serve, "127.0.0.1", 0)
    try:
        yield other, endpoint(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        other.hang_up()
        await server.wait_closed()
        await asyncio.sleep(0.01)


def endpoint(port: int) -> PublishedEndpoint:
    return PublishedEndpoint(
        listener="PLAINTEXT", host="127.0.0.1", port=port, security_protocol="PLAINTEXT"
    )


def run(test: Callable[[Peers, Other, PublishedEndpoint], Awaitable[None]]) -> None:
    async def both() -> None:
        async with other_broker() as (other, there):
            peers = Peers("broker-1", NoProof(), socket_timeout_ms=lambda: 5000)
            try:
                await test(peers, other, there)
            finally:
                await peers.close()

    asyncio.run(asyncio.wait_for(both(), 30))


STOP = ControlledShutdownRequest(broker_id=1, broker_epoch=5)
STATE = PublishStateRequest(
    controller_id=1,
    controller_epoch=1,
    broker_epoch=1,
    sequence=1,
    is_full=True,
    brokers=[],
    topics=[],
)


def test_requests_between_brokers_are_sent_in_the_newest_version() -> None:
    async def test(peers: Peers, other: Other, there: PublishedEndpoint) -> None:
        response = await peers.send(there, STOP, timeout_ms=5000)
        assert response.remaining_partitions[0].partition_index == 3
        assert (await peers.send(there, STATE, timeout_ms=5000)).error_code == 11
        assert other.requests == [(CONTROLLED_SHUTDOWN, 3), (PUBLISH_STATE, 0)]
        assert other.client_ids == {"broker-1"}

    run(test)


def test_a_connection_is_opened_once_for_all_requests_and_kept() -> None:
    async def test(peers: Peers, other: Other, there: PublishedEndpoint) -> None:
        sending = [peers.send(there, STOP, timeout_ms=5000) for _ in range(5)]
        found = await asyncio.gather(*sending, peers.connection(there))
        assert await peers.connection(there) is found[-1]
        assert other.connections == 1

    run(test)


def test_each_purpose_has_its_own_connection() -> None:
    async def test(peers: Peers, other: Other, there: PublishedEndpoint) -> None:
        control = await peers.connection(there)
        assert await peers.connection(there, "fetch") is not control
        assert other.connections == 2

    run(test)


def test_a_broken_connection_is_opened_again_by_the_next_request() -> None:
    async def test(peers: Peers, other: Other, there: PublishedEndpoint) -> None:
        first = await peers.connection(there)
        other.hang_up()
        with pytest.raises(ConnectionFailed):
            await first.send(STOP, version=3)
        await peers.send(there, STOP, timeout_ms=5000)
        assert other.connections == 2

    run(test)


def test_a_connection_with_a_missing_response_is_not_used_again() -> None:
    async def test(peers: Peers, other: Other, there: PublishedEndpoint) -> None:
        other.answers = False
        expected = "did not answer ControlledShutdown within 50 ms"
        with pytest.raises(ConnectionFailed, match=expected):
            await peers.send(there, STOP, timeout_ms=50)
        other.answers = True
        await peers.send(there, STOP, timeout_ms=5000)
        assert other.connections == 2

    run(test)


def test_all_requests_fail_if_no_broker_listens() -> None:
    async def test(peers: Peers, _other: Other, _there: PublishedEndpoint) -> None:
        nowhere = endpoint(1)
        sending = [peers.send(nowhere, STOP, timeout_ms=5000) for _ in range(2)]
        failed = await asyncio.gather(*sending, return_exceptions=True)
        assert all(isinstance(outcome, ConnectionFailed) for outcome in failed)

    run(test)


def test_a_request_that_gives_up_does_not_cancel_the_connection_of_others() -> None:
    async def test(peers: Peers, other: Other, there: PublishedEndpoint) -> None:
        impatient = asyncio.create_task(peers.connection(there))
        patient = asyncio.create_task(peers.connection(there))
        await asyncio.sleep(0)
        impatient.cancel()
        assert (await patient).is_open()
        assert impatient.cancelled()
        assert other.connections == 1

    run(test)


def test_a_connection_that_fails_after_all_requests_gave_up_is_not_reported() -> None:
    async def test(_peers: Peers, other: Other, there: PublishedEndpoint) -> None:
        reports: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: reports.append(context)
        )
        other.greets = False
        peers = Peers("broker-1", NoProof(), socket_timeout_ms=lambda: 60)
        with pytest.raises(ConnectionFailed):
            await peers.send(there, STOP, timeout_ms=20)
        await asyncio.sleep(0.1)
        await peers.close()
        gc.collect()
        assert reports == []

    run(test)


def test_a_request_waits_for_a_connection_no_longer_than_its_timeout() -> None:
    async def test(peers: Peers, other: Other, there: PublishedEndpoint) -> None:
        other.greets = False
        with pytest.raises(ConnectionFailed, match="did not accept a connection in 30 ms"):
            await peers.send(there, STOP, timeout_ms=30)

    run(test)


def test_closing_ends_requests_in_flight_and_refuses_new_ones() -> None:
    async def test(peers: Peers, other: Other, there: PublishedEndpoint) -> None:
        other.answers = False
        await peers.connection(there)
        sending = asyncio.create_task(peers.send(there, STOP, timeout_ms=5000))
        opening = asyncio.create_task(peers.connection(there, "fetch"))
        await asyncio.sleep(0)
        await peers.close()
        for task in (sending, opening):
            with pytest.raises(ConnectionFailed):
                await task
        with pytest.raises(ConnectionFailed):
            await peers.send(there, STOP, timeout_ms=5000)

    run(test)
