"""The shape of a cluster, as a seed chooses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """The choices of a seed."""

    brokers: int
    replicas: int
    partitions: int
    min_isr: int
    lag_ms: int
    unclean: bool
    power_cuts: bool
    loss: float
    moves: bool
    deletes: bool
    pace_ms: int
    """The longest time that a producer waits between two sends."""
    are_clocks_wrong: bool
    is_reconfigured: bool
    """Whether `min.insync.replicas` changes during the run; then no replica loses data."""
    story: str
    """A scenario of `scenarios.py`; empty for none."""


def shape_of(random: Random, needs: Mapping[str, Mapping[str, Any]]) -> Shape:
    """Choose a shape. `needs` has, by scenario, the shape that it needs."""
    brokers = random.choice((2, 3, 3, 3, 4))
    replicas = min(brokers, random.choice((1, 2, 3, 3, 3)))
    min_isr = random.randint(1, max(1, replicas - random.choice((0, 1, 1))))
    shape = Shape(
        brokers,
        replicas,
        random.choice((1, 1, 2, 3)),
        min_isr,
        random.choice((300, 600, 1500)),
        unclean=random.random() < 0.06,
        power_cuts=random.random() < 0.5,
        loss=random.choice((0.0, 0.0, 0.01, 0.05)),
        moves=random.random() < 0.4,
        deletes=random.random() < 0.3,
        pace_ms=random.choice((30, 30, 30, 500)),
        are_clocks_wrong=random.random() < 0.3,
        is_reconfigured=random.random() < 0.2,
        story="",
    )
    if random.random() < 0.6:
        story = random.choice(list(needs))
        return replace(shape, story=story, is_reconfigured=False, **needs[story])
    return replace(shape, power_cuts=shape.power_cuts and not shape.is_reconfigured)
