"""DescribeConnections: pages of what a broker knows of its connections, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hightide.broker.handlers import describe_connections as handler
from hightide.broker.metrics.counters import FOLLOWER_FETCH, NO_REQUESTS, Requests
from hightide.wire.codec import decode, encode
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.connections import (
    DescribeConnectionsRequest,
    DescribeConnectionsResponse,
)
from tests.support.steps import all_steps

REQUESTS = Requests()
PRODUCE, METADATA = 0, 3


def connection(number: int, counts: Any = NO_REQUESTS, **changed: Any) -> Any:
    known: dict[str, Any] = {
        "number": number,
        "client_id": f"client-{number}",
        "client_software": ("librdkafka", "2.16.1"),
        "client_address": "10.0.0.7",
        "client_port": 40_000 + number,
        "listener": "PLAINTEXT",
        "age_ms": 250,
        "idle_ms": 500,
        "requests": 12,
        "counts": counts,
        "peer_broker_id": -1,
        "is_closed": False,
    }
    return SimpleNamespace(**{**known, **changed})


def ask(*connections: Any, **request: int) -> DescribeConnectionsResponse:
    context: Any = None
    broker: Any = SimpleNamespace(
        connections=connections, requests=REQUESTS, now_ms=lambda: 1_000_250
    )
    steps = handler.describe_connections(broker, DescribeConnectionsRequest(**request), context)
    response = all_steps(steps)
    assert decode(DescribeConnectionsResponse, encode(response, 0), 0) == response
    return response


def numbers(response: DescribeConnectionsResponse) -> list[int]:
    assert response.error_code == ErrorCode.NONE
    return [found.number for found in response.connections]


def test_a_connection_has_its_client_and_what_it_sent() -> None:
    (found,) = ask(connection(1, REQUESTS.of(METADATA).at(12))).connections
    assert (found.client_id, found.software_name, found.software_version) == (
        "client-1",
        "librdkafka",
        "2.16.1",
    )
    assert (found.address, found.port, found.listener) == ("10.0.0.7", 40_001, "PLAINTEXT")
    assert (found.connected_ms, found.idle_ms, found.requests) == (1_000_000, 500, 12)
    assert (found.last_api, found.broker_id) == (METADATA, -1)


@pytest.mark.parametrize(
    ("counts", "api"),
    [
        (NO_REQUESTS, -1),
        (REQUESTS.of(PRODUCE).at(9), PRODUCE),
        (REQUESTS.of(FOLLOWER_FETCH).at(12), 1),
    ],
)
def test_the_last_api_is_that_of_the_counts(counts: Any, api: int) -> None:
    (found,) = ask(connection(1, counts)).connections
    assert found.last_api == api


def test_pages_continue_after_a_number() -> None:
    kept = [connection(number) for number in (2, 3, 5, 8)]
    first = ask(*kept, limit=2)
    assert (numbers(first), first.has_more, first.open_connections) == ([2, 3], True, 4)
    second = ask(*kept, after=3, limit=2)
    assert (numbers(second), second.has_more) == ([5, 8], False)
    assert numbers(ask(*kept, after=8)) == []


def test_a_page_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "MOST_CONNECTIONS", 3)
    found = ask(*map(connection, range(1, 300)), limit=2**31 - 1)
    assert (numbers(found), found.has_more) == ([1, 2, 3], True)


def test_a_connection_that_closes_is_left_out() -> None:
    assert numbers(ask(connection(1, is_closed=True), connection(2))) == [2]


def test_no_connections_fit_into_no_limit() -> None:
    found = ask(connection(1), limit=0)
    assert (numbers(found), found.has_more, found.open_connections) == ([], True, 1)


@pytest.mark.parametrize("request_", [{"after": -1}, {"limit": -1}])
def test_negative_numbers_are_refused(request_: dict[str, int]) -> None:
    found = ask(connection(1), **request_)
    assert (found.error_code, found.connections) == (ErrorCode.INVALID_REQUEST, [])
