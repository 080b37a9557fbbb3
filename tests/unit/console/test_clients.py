"""Clients in the console: counted by software, and read from groups where nothing else is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from starlette.applications import Starlette
from starlette.testclient import TestClient

from hightide.client.admin.group_survey import Surveyed
from hightide.client.model.cluster import (
    ClientConnection,
    ClientConnections,
    ConfigEntry,
    ConfigSource,
    ConfigType,
    ResourceType,
)
from hightide.client.model.groups import GroupDescription, GroupLag, GroupMember
from hightide.console.context import Console, Options
from hightide.console.routes import clients
from hightide.wire.errors import ErrorCode, KafkaError


def connection(number: int, client_id: str, software: str, **changed: Any) -> ClientConnection:
    known: dict[str, Any] = {
        "broker": 1,
        "number": number,
        "client_id": client_id,
        "software": software,
        "version": "2.16.1",
        "address": "10.0.0.7",
        "port": 40_000 + number,
        "listener": "PLAINTEXT",
        "connected_ms": 1,
        "idle_ms": 0,
        "requests": 10,
        "last_api": "Fetch",
        "peer_broker": None,
    }
    return ClientConnection(**{**known, **changed})


CONNECTIONS = [
    connection(1, "a", "librdkafka"),
    connection(2, "a", "librdkafka"),
    connection(3, "b", "librdkafka"),
    connection(4, "c", "hightide", version="0.1"),
    connection(5, "", "hightide", peer_broker=2),
]


class FakeConfigs:
    def __init__(self, error: KafkaError | None = None) -> None:
        self.error = error

    async def resources(self, _kinds: Any) -> list[tuple[ResourceType, str]]:
        if self.error:
            raise self.error
        return [(ResourceType.CLIENT_METRICS, "producers")]

    async def describe(self, _kind: ResourceType, _name: str) -> list[ConfigEntry]:
        source, kind = ConfigSource.CLIENT_METRICS_CONFIG, ConfigType.INT
        return [ConfigEntry("interval.ms", "10000", source, kind, False, False, None)]


def client(found: ClientConnections, configs: FakeConfigs | None = None) -> TestClient:
    async def connections(_limit: int) -> ClientConnections:
        return found

    async def seen() -> None:
        pass

    admin: Any = SimpleNamespace(
        cluster=SimpleNamespace(connections=connections), configs=configs or FakeConfigs()
    )
    member = GroupMember("m-1", None, "reader", "/10.0.0.9", ())
    group = GroupDescription("billing", "Classic", "Stable", 1, "consumer", "range", 1, [member])
    console = Console(admin, None, Options("localhost:9092"))  # type: ignore[arg-type]
    watch: Any = SimpleNamespace(
        seen=seen, surveyed=Surveyed([], {"billing": GroupLag(group, [])}, {})
    )
    console.group_watch = watch
    return TestClient(Starlette(routes=clients.routes(console)))


def test_software_is_counted_without_the_brokers_themselves() -> None:
    found = client(ClientConnections(CONNECTIONS, {1: 5}, [], {})).get("/api/v1/clients").json()
    assert found["software"] == [
        {
            "software": "librdkafka",
            "version": "2.16.1",
            "connections": 3,
            "clients": 2,
            "requests": 30,
        },
        {"software": "hightide", "version": "0.1", "connections": 1, "clients": 1, "requests": 10},
    ]
    assert len(found["connections"]) == 5
    assert (found["open_connections"], found["members"]) == ({"1": 5}, [])
    assert found["command"] == "hightide cluster connections"


def test_of_other_brokers_the_members_of_groups_are_shown() -> None:
    found = client(ClientConnections([], {}, [1, 2], {3: "It is gone."})).get("/api/v1/clients")
    assert found.json()["foreign"] == [1, 2]
    assert found.json()["members"] == [
        {"client_id": "reader", "host": "10.0.0.9", "group": "billing", "id": "m-1"}
    ]
    assert found.json()["notes"] == ["Broker 3 does not answer: It is gone."]


def test_subscriptions_are_listed_with_their_settings() -> None:
    none_at_all = ClientConnections([], {}, [], {})
    found = client(none_at_all).get("/api/v1/client-metrics").json()
    assert found["subscriptions"] == [
        {
            "name": "producers",
            "settings": {"interval.ms": "10000"},
            "command": "hightide config get client-metrics/producers",
        }
    ]


def test_a_cluster_without_client_metrics_is_a_sentence() -> None:
    error = KafkaError(ErrorCode.UNSUPPORTED_VERSION, "Too old.")
    reply = client(ClientConnections([], {}, [], {}), FakeConfigs(error)).get(
        "/api/v1/client-metrics"
    )
    assert reply.status_code == 200
    assert reply.json()["subscriptions"] is None
    assert "Too old." in reply.json()["why"]
