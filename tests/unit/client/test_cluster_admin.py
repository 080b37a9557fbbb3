"""What the admin client learns about brokers, of Hightide and of others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from hightide.client.admin.cluster import ClusterAdmin
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.routing import Answers
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.cluster import DescribeLogDirsResponse, DescribeLogDirsResult
from hightide.wire.messages.replicas import DescribeReplicasResponse


class Router:
    """Brokers with one prepared response each; an exception is raised."""

    timeout_ms = 1000

    def __init__(self, responses: dict[int, Any]) -> None:
        self.nodes = dict.fromkeys(responses)
        self._responses = responses

    def broker_of(self, connection: Any) -> int:
        return connection.broker

    async def ask_every_broker(self, ask: Any) -> Answers[Any]:
        answers = {}
        for broker, response in self._responses.items():

            async def send(_request, response=response, **_):
                if isinstance(response, Exception):
                    raise response
                return response

            answers[broker] = await ask(SimpleNamespace(broker=broker, send=send))
        return Answers(answers, {})


def admin(responses: dict[int, Any]) -> ClusterAdmin:
    return ClusterAdmin(cast(Any, Router(responses)))


def test_only_brokers_of_hightide_tell_their_version():
    new = DescribeReplicasResponse(topics=[], software_version="0.1.0")
    old = DescribeReplicasResponse(topics=[])
    foreign = ConnectionFailed("The connection to kafka:9092 was closed.")
    found = asyncio.run(admin({1: new, 2: old, 3: foreign}).versions())
    assert found == {1: "0.1.0", 2: None, 3: None}


def test_a_failed_log_directory_is_reported_and_its_space_is_unknown():
    failed = DescribeLogDirsResult(
        error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir="/data", topics=[]
    )
    found = asyncio.run(admin({1: DescribeLogDirsResponse(results=[failed])}).log_dirs())
    (directory,) = found.directories
    assert (directory.broker, directory.log_dir) == (1, "/data")
    assert directory.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert (directory.total_bytes, directory.usable_bytes) == (None, None)
