"""`hightide cluster connections`: pages of several brokers, and brokers of another make."""

from __future__ import annotations

import asyncio
import json

import pytest

from hightide.__main__ import main
from hightide.wire.messages.connections import DescribeConnectionsResponse, DescribedConnection
from tests.unit.client.fake_broker import FakeBroker, cluster

CONNECTIONS = 30009


def connection(number, client_id="billing"):
    return DescribedConnection(
        number=number,
        client_id=client_id,
        software_name="librdkafka",
        software_version="2.16.1",
        address="10.0.0.7",
        port=40_000,
        listener="PLAINTEXT",
        connected_ms=1_700_000_000_000,
        idle_ms=1500,
        requests=number * 10,
        last_api=3,
        broker_id=-1,
    )


def pages(*connections, size=2):
    """Answer as a broker with these connections and small pages does."""

    def answer(request):
        rest = [one for one in connections if one.number > request.after]
        found = rest[: min(size, request.limit)]
        return DescribeConnectionsResponse(
            open_connections=len(connections),
            has_more=len(rest) > len(found),
            connections=found,
        )

    return answer


@pytest.fixture
def run(capfd):
    """Run the command against brokers with these answers; None is a broker of another make."""

    def run(*answers, options=()):
        async def ask():
            brokers = [FakeBroker(number) for number, _ in enumerate(answers, 1)]
            for broker, answer in zip(brokers, answers, strict=True):
                if answer is not None:
                    broker.answers[CONNECTIONS] = answer
            async with cluster(*brokers):
                bootstrap = f"127.0.0.1:{brokers[0].port}"
                arguments = ["cluster", "connections", "-b", bootstrap, *options]
                return await asyncio.to_thread(main, arguments)

        code = asyncio.run(ask())
        said = capfd.readouterr()
        return code, said.out, said.err

    return run


def test_all_pages_of_all_brokers_are_read(run) -> None:
    one = pages(*map(connection, range(1, 6)))
    code, out, err = run(one, pages(connection(7)), options=["-o", "json"])
    assert (code, err) == (0, "")
    rows = json.loads(out)
    assert [(row["broker"], row["requests"]) for row in rows] == [
        *((1, number * 10) for number in range(1, 6)),
        (2, 70),
    ]
    assert rows[0]["connected"] == "2023-11-14T22:13:20.000Z"
    assert (rows[0]["idle_seconds"], rows[0]["last_api"], rows[0]["peer_broker"]) == (
        1.5,
        "Metadata",
        None,
    )


def test_the_table_is_for_people_and_a_name_forges_no_line(run) -> None:
    code, out, _ = run(pages(connection(1, "evil\nrow \x1b[2K")), options=["--broker", "1"])
    heading, row = out.splitlines()
    assert heading.split()[:5] == ["BROKER", "CLIENT-ID", "SOFTWARE", "VERSION", "ADDRESS"]
    assert code == 0
    assert "\x1b" not in row
    assert "librdkafka" in row


def test_a_broker_that_closes_its_connections_once_is_asked_again(run) -> None:
    answer, closed = pages(connection(1)), []

    def restarting(request):
        if not closed:
            closed.append(request)
            raise ConnectionError
        return answer(request)

    code, out, err = run(restarting)
    assert (code, len(out.splitlines()), err) == (0, 2, "")


def test_a_broker_of_another_make_is_named(run) -> None:
    code, out, err = run(pages(connection(1)), None)
    assert code == 0
    assert len(out.splitlines()) == 2
    assert "Broker 2 does not list its connections." in err
