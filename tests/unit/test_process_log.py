"""Clients cannot fill the disk with lines of the log."""

from __future__ import annotations

import logging

import pytest

from hightide.process_log import IN_S, MOST_LINES, Repetition


def record(name: str, line: int, *args: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.INFO, "x.py", line, "closed %s: 100%%", args, None)


@pytest.mark.parametrize("name", ["hightide.broker.network.connection", "hightide.zookeeper"])
def test_lines_that_clients_cause_are_limited_and_counted(name) -> None:
    now_s = 0.0
    limit = Repetition(lambda: now_s)
    kept = [limit.filter(record(name, 1, number)) for number in range(1000)]
    assert kept == [True] * MOST_LINES + [False] * (1000 - MOST_LINES)
    assert limit.filter(record(name, 2, "another kind"))
    now_s = IN_S
    first, second = record(name, 1, "a"), record(name, 1, "b")
    assert limit.filter(first)
    assert limit.filter(second)
    assert first.getMessage() == f"closed a: 100% ({1000 - MOST_LINES} such lines were left out)"
    assert second.getMessage() == "closed b: 100%"


def test_lines_about_removed_data_are_never_left_out() -> None:
    limit = Repetition(lambda: 0.0)
    name = "hightide.broker.handlers.topics"
    assert all(limit.filter(record(name, 1, number)) for number in range(1000))
