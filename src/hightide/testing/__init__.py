"""Real brokers for tests: `with Cluster() as cluster:` and any Kafka client.

    from hightide.testing import Cluster

    with Cluster() as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})

With pytest the fixture `hightide` is such a cluster, and `hightide_cluster` one of three brokers
(see `hightide.testing.plugin`).
`Cluster` is imported on first use, because pytest loads the plugin in this package for every test
suite on the machine, even for those that never use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hightide.testing.cluster import Cluster

__all__ = ["Cluster"]


def __getattr__(name: str) -> Any:
    if name == "Cluster":
        from hightide.testing.cluster import Cluster

        return Cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
