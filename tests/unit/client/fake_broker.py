"""Fake brokers on real sockets, with the responses that a test gives them."""

from __future__ import annotations

import asyncio
import struct
import uuid
from contextlib import AsyncExitStack, asynccontextmanager

from hightide.client.admin import Admin
from hightide.wire.codec import decode
from hightide.wire.frame import decode_request_header, encode_response
from hightide.wire.messages import REQUESTS
from hightide.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from hightide.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

METADATA, API_VERSIONS, FIRST_PRIVATE = 3, 18, 30000
ID = uuid.UUID(int=7)
TOPICS = [
    MetadataResponseTopic(
        name="orders",
        topic_id=ID,
        partitions=[
            MetadataResponsePartition(
                partition_index=0, leader_id=1, leader_epoch=4, replica_nodes=[1, 2], isr_nodes=[1]
            )
        ],
    )
]


class FakeBroker:
    """A broker that answers from a table: API key → function from a request to its response."""

    def __init__(self, broker_id):
        self.id = broker_id
        self.port = 0
        self.answers = {}
        self.highest = {}
        """The highest versions of some requests, if they differ from the client's."""
        self.asked = []

    async def serve(self, reader, writer):
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                data = memoryview(await reader.readexactly(size))
                header, at = decode_request_header(data)
                answer = self.answers.get(header.api_key)
                if header.api_key == API_VERSIONS:
                    response = self.versions()
                elif answer is None:
                    return
                else:
                    request = decode(REQUESTS[header.api_key], data[at:], header.api_version)
                    self.asked.append(request)
                    response = answer(request)
                if response is not None:
                    writer.write(
                        encode_response(response, header.api_version, header.correlation_id)
                    )
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    def versions(self):
        offered = [key for key in self.answers if key < FIRST_PRIVATE]
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(
                    api_key=key,
                    min_version=REQUESTS[key].__api__.versions[0],
                    max_version=self.highest.get(key, REQUESTS[key].__api__.versions[1]),
                )
                for key in offered
            ]
        )


@asynccontextmanager
async def cluster(*brokers, controller=1, topics=TOPICS):
    """Brokers that know of each other, and an admin client of theirs."""
    async with AsyncExitStack() as stack:
        for broker in brokers:
            server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
            broker.port = server.sockets[0].getsockname()[1]
            stack.callback(server.close)

        def metadata(request):
            return MetadataResponse(
                brokers=[
                    MetadataResponseBroker(node_id=broker.id, host="127.0.0.1", port=broker.port)
                    for broker in brokers
                ],
                controller_id=controller,
                topics=topics,
            )

        for broker in brokers:
            broker.answers.setdefault(METADATA, metadata)
        admin = Admin(f"127.0.0.1:{brokers[0].port}")
        stack.callback(admin.close)
        yield admin
