"""Brokers, the controller, and log directories."""

from __future__ import annotations

from hightide.client.broker_connection import ConnectionFailed, check
from hightide.client.model.cluster import ClusterDescription, ReplicaSize
from hightide.client.routing import Router
from hightide.wire.messages.cluster import DescribeLogDirsRequest
from hightide.wire.messages.controller import ResignControllerRequest


class ClusterAdmin:
    """Requests about the cluster as a whole."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def describe(self) -> ClusterDescription:
        """The live brokers and the controller, from any broker's metadata."""
        answer = await self._router.metadata([])
        return ClusterDescription(
            cluster_id=answer.cluster_id,
            controller=answer.controller_id,
            nodes=sorted(self._router.nodes.values(), key=lambda node: node.id),
        )

    async def resign_controller(self) -> tuple[int, int]:
        """Make the controller resign; return the ids of the old and the new controller.

        Only Hightide's brokers know this request, and they do not advertise it.
        """
        before = (await self.describe()).controller
        connection = await self._router.controller()
        try:
            answer = await connection.send(
                ResignControllerRequest(), version=0, timeout_ms=self._router.timeout_ms
            )
        except ConnectionFailed as failed:
            raise ConnectionFailed(f"{failed} Is it a broker of Hightide?") from failed
        check(answer.error_code, answer.error_message)
        return before, answer.controller_id

    async def log_dirs(self) -> list[ReplicaSize]:
        """The size of every replica on every broker."""
        if not self._router.nodes:
            await self._router.metadata([])
        found = []
        for broker_id in sorted(self._router.nodes):
            connection = await self._router.broker(broker_id)
            answer = await connection.send(
                DescribeLogDirsRequest(topics=None), timeout_ms=self._router.timeout_ms
            )
            check(answer.error_code, about=f"broker {broker_id}")
            for directory in answer.results:
                check(directory.error_code, about=directory.log_dir)
                found += [
                    ReplicaSize(
                        broker=broker_id,
                        log_dir=directory.log_dir,
                        topic=topic.name,
                        partition=partition.partition_index,
                        size_bytes=partition.partition_size,
                        offset_lag=partition.offset_lag,
                    )
                    for topic in directory.topics
                    for partition in topic.partitions
                ]
        return found
