"""Pauses between attempts: they double, and end after a time or a number of attempts."""

from __future__ import annotations

import asyncio
import time

import pytest

from hightide.client import retry
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.retry import Backoff, is_retriable
from hightide.wire.errors import ErrorCode, KafkaError


class Clock:
    """A time that passes only in pauses."""

    def __init__(self):
        self.now_s = 0.0
        self.pauses = []

    def sleep(self, pause_s):
        self.pauses.append(pause_s)
        self.now_s += pause_s

    async def sleep_async(self, pause_s):
        self.sleep(pause_s)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(retry, "_now_s", lambda: clock.now_s)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    monkeypatch.setattr(asyncio, "sleep", clock.sleep_async)
    return clock


def test_pauses_double_up_to_the_longest(clock):
    backoff = Backoff(0.1, 0.5)
    assert all(backoff.sleep() for _ in range(5))
    assert clock.pauses == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_a_success_starts_over(clock):
    backoff = Backoff(0.1, 1.0, limit_s=0.5)
    while backoff.sleep():
        pass
    backoff.reset()
    assert backoff.sleep()
    assert clock.pauses == [0.1, 0.2, 0.1]


def test_the_limit_counts_from_the_first_failure_or_from_the_start(clock):
    late, started = Backoff.every(1.0, limit_s=3.0), Backoff.every(1.0, limit_s=3.0)
    started.start()
    clock.now_s = 2.5
    assert started.is_over
    assert not started.sleep()
    assert clock.pauses == []
    while late.sleep():
        pass
    assert clock.pauses == [1.0] * 3


def test_attempts_count_the_first_one(clock):
    backoff = Backoff.every(0.1, attempts=3)
    assert [backoff.sleep() for _ in range(3)] == [True, True, False]
    assert Backoff(attempts=1).is_over


def test_it_pauses_in_an_event_loop_too(clock):
    async def run():
        backoff = Backoff.every(0.1, attempts=2)
        return [await backoff.pause(), await backoff.pause()]

    assert asyncio.run(run()) == [True, False]
    assert clock.pauses == [0.1]


@pytest.mark.parametrize(
    ("error", "elapsed_s"),
    [
        (KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER), 60.0),
        (ConnectionFailed("it is closed"), 60.0),
        (KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), 10.0),
        (KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED), 0.0),
    ],
)
def test_an_error_is_raised_when_it_is_final_or_lasts_too_long(clock, error, elapsed_s):
    async def run():
        backoff = Backoff.every(1.0, limit_s=60)
        while True:
            await backoff.after(error)

    with pytest.raises(type(error)):
        asyncio.run(run())
    assert clock.now_s == elapsed_s
    assert is_retriable(error) == (elapsed_s > 0)


def test_what_is_probably_a_mistake_has_the_shorter_limit(clock):
    async def run():
        backoff = Backoff.every(1.0, limit_s=60)
        while True:
            await backoff.after(ConnectionFailed("refused"), doubtful=True)

    with pytest.raises(ConnectionFailed):
        asyncio.run(run())
    assert clock.now_s == retry.DOUBT_S
