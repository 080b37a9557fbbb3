"""Consumers' fetches on a broker."""

from __future__ import annotations

import asyncio
import gc

from hightide.broker.handlers.fetch import ConsumerFetch
from hightide.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.unit.broker.transactional_world import world


def test_a_fetch_that_waited_is_freed_without_the_garbage_collector() -> None:
    """A broker collects garbage seldom, so a reference cycle of each long poll would pile up."""

    async def scenario() -> int:
        async with world() as cluster:
            client = await cluster.client()
            partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
            topic = FetchTopic(topic="t", partitions=[partition])
            request = FetchRequest(max_wait_ms=10, min_bytes=1, max_bytes=1000, topics=[topic])
            gc.collect()
            gc.disable()
            try:
                for _ in range(5):
                    await client.send(request, version=11)
                found = [item for item in gc.get_objects() if isinstance(item, ConsumerFetch)]
            finally:
                gc.enable()
            client.close()
            return len(found)

    assert asyncio.run(scenario()) == 0
