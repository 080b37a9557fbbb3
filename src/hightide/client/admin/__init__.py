"""An admin client of a cluster, in Kafka's nouns.

    async with Admin("localhost:9092") as admin:
        await admin.topics.create("orders", partitions=3)
        print(await admin.groups.lag("billing"))

Each noun is a small class over one shared `Router`, which sends a request to the broker that can
answer it: topics and elections to the controller, a broker's configs and log directories to that
broker, records to leaders, groups and transactions to their coordinators.  A response that says
that a role has moved is retried a few times.  Every other error is a `KafkaError` with the broker's
message.
"""

from __future__ import annotations

from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hightide.client.broker_connection import CLIENT_ID, TIMEOUT_MS
from hightide.client.routing import Router
from hightide.client.security import PLAINTEXT, Security

if TYPE_CHECKING:
    from hightide.client.admin.cluster import ClusterAdmin
    from hightide.client.admin.configs import ConfigAdmin
    from hightide.client.admin.events import EventAdmin
    from hightide.client.admin.groups import GroupAdmin
    from hightide.client.admin.records import RecordAdmin
    from hightide.client.admin.replicas import ReplicaAdmin
    from hightide.client.admin.topics import TopicAdmin
    from hightide.client.admin.transactions import TransactionAdmin

__all__ = ["Admin"]


class Admin:
    """A client of a whole cluster; use it as an async context manager."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = CLIENT_ID,
        timeout_ms: int = TIMEOUT_MS,
        connect_timeout_ms: int | None = None,
        security: Security = PLAINTEXT,
        long_running: bool = False,
    ) -> None:
        self.router = Router(
            bootstrap,
            client_id=client_id,
            timeout_ms=timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            security=security,
            long_running=long_running,
        )

    # A noun's module has the classes of its messages; it is imported when the noun is first used.

    @cached_property
    def cluster(self) -> ClusterAdmin:
        from hightide.client.admin.cluster import ClusterAdmin

        return ClusterAdmin(self.router)

    @cached_property
    def topics(self) -> TopicAdmin:
        from hightide.client.admin.topics import TopicAdmin

        return TopicAdmin(self.router)

    @cached_property
    def configs(self) -> ConfigAdmin:
        from hightide.client.admin.configs import ConfigAdmin

        return ConfigAdmin(self.router)

    @cached_property
    def records(self) -> RecordAdmin:
        from hightide.client.admin.records import RecordAdmin

        return RecordAdmin(self.router)

    @cached_property
    def groups(self) -> GroupAdmin:
        from hightide.client.admin.groups import GroupAdmin

        return GroupAdmin(self.router, self.records)

    @cached_property
    def replicas(self) -> ReplicaAdmin:
        from hightide.client.admin.replicas import ReplicaAdmin

        return ReplicaAdmin(self.router, self.topics)

    @cached_property
    def events(self) -> EventAdmin:
        from hightide.client.admin.events import EventAdmin

        return EventAdmin(self.router)

    @cached_property
    def transactions(self) -> TransactionAdmin:
        from hightide.client.admin.transactions import TransactionAdmin

        return TransactionAdmin(self.router)

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
        self.router.close()
