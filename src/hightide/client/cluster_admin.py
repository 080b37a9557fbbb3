"""The beginning of every admin client: which brokers and topics there are.

Any broker answers this, out of its copy of the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from hightide.client.connection import CLIENT_ID, TIMEOUT_MS, check
from hightide.client.model import ClusterDescription, PartitionDescription, TopicDescription
from hightide.client.routing import Routes
from hightide.client.security import PLAINTEXT, Security
from hightide.wire.errors import ErrorCode, KafkaError


class ClusterAdmin:
    """The way to a cluster, and what it consists of."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = CLIENT_ID,
        timeout_ms: int = TIMEOUT_MS,
        security: Security = PLAINTEXT,
    ) -> None:
        self._routes = Routes(bootstrap, client_id, timeout_ms, security)
        self._timeout_ms = timeout_ms

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._routes.close()

    # -- the cluster -----------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterDescription:
        answer = await self._routes.metadata([])
        return ClusterDescription(
            cluster_id=answer.cluster_id,
            controller=answer.controller_id,
            nodes=sorted(self._routes.nodes.values(), key=lambda node: node.id),
        )

    async def list_topics(self) -> list[TopicDescription]:
        answer = await self._routes.metadata(None)
        return sorted((described(each) for each in answer.topics), key=lambda topic: topic.name)

    async def describe_topics(self, names: Sequence[str]) -> list[TopicDescription]:
        """The topics in the order asked for; one that does not exist raises."""
        answer = await self._routes.metadata(names)
        found = {each.name: each for each in answer.topics}
        for name in names:
            # A topic that is being deleted may be missing from the answer altogether.
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            code = found[name].error_code if name in found else missing
            if code == missing:
                raise KafkaError(missing, f"There is no topic {name!r}.")
            check(code, about=name)
        return [described(found[name]) for name in names]


def described(answer: Any) -> TopicDescription:
    """A topic of a Metadata answer."""
    return TopicDescription(
        name=answer.name,
        topic_id=answer.topic_id,
        internal=answer.is_internal,
        partitions=sorted(
            (
                PartitionDescription(
                    partition=each.partition_index,
                    leader=each.leader_id,
                    leader_epoch=each.leader_epoch,
                    replicas=list(each.replica_nodes),
                    isr=list(each.isr_nodes),
                    offline=list(each.offline_replicas),
                )
                for each in answer.partitions
            ),
            key=lambda partition: partition.partition,
        ),
    )
