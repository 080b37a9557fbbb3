"""A console over a real broker in a thread: what the tests of topics and messages share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.testclient import TestClient

from hightide.client.admin import Admin
from hightide.client.leader_cache import LeaderCache
from hightide.client.producer import PartitionProducer
from hightide.console.app import create_app
from hightide.console.context import Console, Options
from hightide.console.messages import writing
from hightide.wire.batch import Record, build
from tests.support.broker_thread import BrokerThread

ORIGIN = "http://localhost"
SMALL = {
    "offsets_topic_replication_factor": 1,
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_replication_factor": 1,
    "transaction_state_log_min_isr": 1,
    "transaction_state_log_num_partitions": 1,
    "group_initial_rebalance_delay_ms": 0,
}


class StillObserver:
    """An observer that never looks: these routes ask the cluster themselves."""

    frame = None

    async def __aenter__(self) -> StillObserver:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class World:
    """The console's pages as a browser sees them, and a client of the cluster behind it."""

    def __init__(self, broker: BrokerThread, http: TestClient, bootstrap: str) -> None:
        self.broker = broker
        self.http = http
        self.bootstrap = bootstrap
        session = http.get("/api/v1/session").json()
        http.headers["X-Hightide-Token"] = session["token"]

    def get(self, path: str, status: Any = 200, **params: Any) -> Any:
        answer = self.http.get(f"/api/v1/{path}", params={k: str(v) for k, v in params.items()})
        assert answer.status_code == status, answer.text
        return answer.json()

    def post(self, path: str, body: object, status: int = 200) -> Any:
        answer = self.http.post(f"/api/v1/{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def delete(self, path: str, body: object, status: int = 200) -> Any:
        answer = self.http.request("DELETE", f"/api/v1/{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def events(self, topic: str, **params: object) -> list[dict[str, Any]]:
        """All events of a reading that ends by itself."""
        answer = self.http.get(
            f"/api/v1/topics/{topic}/messages/stream",
            params={name: str(value) for name, value in params.items()},
        )
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        return [
            json.loads(line.removeprefix("data: "))
            for line in answer.text.split("\n\n")
            if line.startswith("data: ")
        ]

    def read(self, topic: str, **params: object) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The records of a reading, and its last event."""
        events = self.events(topic, **params)
        records = [
            record for event in events if event["type"] == "records" for record in event["records"]
        ]
        return records, events[-1]

    def create(self, topic: str, partitions: int = 1, **configs: str) -> str:
        """Make a topic; the records of the tests are old, so it keeps them for ever."""
        configs = {"retention_ms": "-1", **configs}

        async def run() -> None:
            async with Admin(self.bootstrap) as admin:
                await admin.topics.create(
                    topic,
                    partitions=partitions,
                    config={key.replace("_", "."): value for key, value in configs.items()},
                )

        self.broker.run(run())
        return topic

    def write(self, topic: str, records: list[Record], partition: int = 0, **options: Any) -> None:
        """Write records as one batch; a `codec` and so on are those of `build`."""

        async def run() -> None:
            async with Admin(self.bootstrap) as admin:
                leaders = LeaderCache(admin.router, retry_ms=10_000)
                writer = await writing.begin_writing(admin, leaders, topic)
                if options:
                    numbered = [one._replace(offset=at) for at, one in enumerate(records)]
                    data = bytes(build(numbered, **options))
                    producer = PartitionProducer(leaders, topic, partition)
                    await producer.append(data, len(records))
                    await producer.flush()
                    producer.close()
                    return
                await writer.append(partition, records)
                await writer.finish()
                writer.close()

        self.broker.run(run())


def record(
    value: bytes | None, key: bytes | None = None, *headers: Any, time_ms: int = 1
) -> Record:
    return Record(0, time_ms, key, value, tuple(headers))


@contextmanager
def world(**options: Any) -> Iterator[World]:
    broker = BrokerThread(**SMALL)
    bootstrap = f"{broker.address[0]}:{broker.address[1]}"
    try:
        admin = Admin(bootstrap, timeout_ms=10_000)
        console = Console(admin, StillObserver(), Options(bootstrap, **options))  # type: ignore[arg-type]
        with TestClient(create_app(console), base_url=ORIGIN) as http:
            yield World(broker, http, bootstrap)
    finally:
        broker.stop()
