"""The command of the CLI that does what a dialog of the console does, ready for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

DEFAULT_BOOTSTRAP = "localhost:9092"


def command(bootstrap: str, *words: object) -> str:
    """`hightide` with these words, and the address of the cluster if it is not the default."""
    given = ["hightide", *map(str, words)]
    if bootstrap != DEFAULT_BOOTSTRAP:
        given += ["--bootstrap", bootstrap]
    return shlex.join(given)


def here(step: str, bootstrap: str) -> str:
    """A command of a diagnosis, with the address of the cluster unless it needs none."""
    is_on_the_host = step.startswith("hightide broker start")
    if bootstrap == DEFAULT_BOOTSTRAP or is_on_the_host or not step.startswith("hightide "):
        return step
    return f"{step} --bootstrap {shlex.quote(bootstrap)}"


def create_topic(
    bootstrap: str, name: str, partitions: int, replicas: int, configs: Mapping[str, str]
) -> str:
    words: list[object] = ["topic", "create", name]
    if partitions > 0:
        words += ["--partitions", partitions]
    if replicas > 0:
        words += ["--replication-factor", replicas]
    return command(bootstrap, *words, *_options("--config", configs))


def alter_topic(
    bootstrap: str, name: str, values: Mapping[str, str], unset: Iterable[str] = ()
) -> str:
    words = [*_options("--config", values)]
    for key in unset:
        words += ["--delete-config", key]
    return command(bootstrap, "topic", "alter", name, *words)


def add_partitions(bootstrap: str, name: str, count: int) -> str:
    return command(bootstrap, "topic", "alter", name, "--partitions", count)


def delete_topic(bootstrap: str, name: str) -> str:
    return command(bootstrap, "topic", "delete", name)


def _options(option: str, values: Mapping[str, str]) -> list[str]:
    words = []
    for key, value in values.items():
        words += [option, f"{key}={value}"]
    return words
