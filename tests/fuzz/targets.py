"""The fuzz targets by name: `fuzz_x(data)` of the modules `targets_*`, and the seeds of each.

A target takes any bytes and raises only for a defect. `seeds_x()` beside it yields valid inputs, so
that a fuzzer starts with the format instead of having to guess it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
FUZZ, SEEDS = "fuzz_", "seeds_"


class Target(NamedTuple):
    """A decoder under test."""

    name: str
    module: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]


def modules() -> list[str]:
    return sorted(f"tests.fuzz.{path.stem}" for path in HERE.glob("targets_*.py"))


def find(module: str) -> list[Target]:
    """Return the targets that a module defines."""
    loaded = import_module(module)
    return [
        Target(
            name.removeprefix(FUZZ),
            module,
            function,
            getattr(loaded, SEEDS + name.removeprefix(FUZZ), tuple),
        )
        for name, function in vars(loaded).items()
        if name.startswith(FUZZ) and getattr(function, "__module__", "") == module
    ]


def every_target() -> dict[str, Target]:
    return {target.name: target for module in modules() for target in find(module)}
