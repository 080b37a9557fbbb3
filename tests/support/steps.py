"""Runs handlers that give up the event loop between their steps."""

from __future__ import annotations

from hightide.broker.network.turn import Steps, Value


def all_steps(steps: Steps[Value]) -> Value:
    """Take all steps of a handler, and return its response."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            value: Value = stop.value
            return value
