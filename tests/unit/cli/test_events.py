"""`hightide events`: lines that cannot be forged, brokers of another make, and silent ones."""

from __future__ import annotations

import asyncio
import json

import pytest

from hightide.__main__ import main
from hightide.wire.messages.events import DescribedEvent, DescribeEventsResponse
from hightide.wire.messages.replicas import DepartedBroker
from tests.unit.client.fake_broker import FakeBroker, cluster

EVENTS = 30008
FORGED = 'group x\n2026-01-01T00:00:00.000+00:00 ERROR   [broker 1] lie: \x1b[2K"\u202e'


def answer(*texts, departed=()):
    events = [
        DescribedEvent(
            sequence=number,
            time_ms=1_700_000_000_123 + number,
            monotonic_ms=7,
            kind="group_rebalancing",
            severity=1,
            text=text,
            data=json.dumps({"group": text}),
        )
        for number, text in enumerate(texts, 1)
    ]
    return DescribeEventsResponse(
        start_id="a", position=len(texts), events=events, departed=list(departed)
    )


@pytest.fixture
def run(capfd):
    """Run the command against brokers with these answers; None is a broker of another make."""

    def run(*answers, options=()):
        async def ask():
            brokers = [FakeBroker(number) for number, _ in enumerate(answers, 1)]
            for broker, response in zip(brokers, answers, strict=True):
                if response is not None:
                    broker.answers[EVENTS] = lambda _, response=response: response
            async with cluster(*brokers):
                bootstrap = f"127.0.0.1:{brokers[0].port}"
                return await asyncio.to_thread(main, ["events", "-b", bootstrap, *options])

        code = asyncio.run(ask())
        said = capfd.readouterr()
        return code, said.out, said.err

    return run


def test_a_name_forges_no_line(run) -> None:
    code, out, err = run(answer(FORGED))
    assert (code, err) == (0, "")
    (line,) = out.splitlines()
    assert "INFO    [broker 1] group_rebalancing: group x\\n2026-01-01T" in line
    assert line.endswith('lie: \\x1b[2K"\\u202e')
    _, out, _ = run(answer(FORGED), options=["-o", "json"])
    assert out.count("\n") == 1
    assert "\x1b" not in out
    found = json.loads(out)
    assert (found["message"], found["data"]) == (FORGED, {"group": FORGED})
    assert found["time"][-10:-6] == ".124"
    assert (found["time_ms"], found["monotonic_ms"], found["level"]) == (
        1_700_000_000_124,
        7,
        "INFO",
    )


def test_a_cluster_of_another_make_is_one_sentence(run) -> None:
    code, out, err = run(None, None)
    assert (code, out) == (1, "")
    assert err == (
        "hightide: Broker 1: it keeps no events. Only brokers of Hightide do; other brokers have"
        " lines in their logs.\n"
    )


def test_one_broker_of_another_make_is_named(run) -> None:
    code, out, err = run(answer("x joined"), None)
    assert (code, out.count("\n")) == (0, 1)
    assert err.startswith("Broker 2: it keeps no events.")


def test_a_broker_that_is_gone_is_named(run) -> None:
    gone = DepartedBroker(broker_id=9, host="h9", port=9092, last_seen_ms=1_700_000_000_000)
    code, out, err = run(answer("x joined", departed=[gone]))
    assert (code, out.count("\n")) == (0, 1)
    assert err.startswith("Broker 9 did not report its events. It is gone since 2023-11-1")
    assert err.endswith(" (h9:9092).\n")
