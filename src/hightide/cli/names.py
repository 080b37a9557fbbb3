"""The names of partitions, which all commands read alike.

    orders        all partitions of the topic
    orders/0      one partition
    orders/0,2    several

`orders:0,2` is an earlier form of the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from hightide.cli import completion
from hightide.cli.options import wrong_usage
from hightide.client.admin import Admin
from hightide.client.model.cluster import Partition
from hightide.wire.errors import ErrorCode, KafkaError

Names = list[tuple[str, int | None]]
"""Topics with the index of a partition; None stands for all partitions."""

METAVAR = "TOPIC[/PARTITION]"

PartitionNames = Annotated[
    list[str], typer.Argument(metavar=METAVAR, autocompletion=completion.partitions)
]


def topic_option(help_text: str) -> Any:
    """The option `--topic`, which names partitions."""
    return typer.Option(
        "--topic",
        "-t",
        metavar=METAVAR,
        autocompletion=completion.partitions,
        help=help_text,
    )


def named(texts: Iterable[str] | None) -> Names:
    """The partitions that the texts name."""
    return [name for text in texts or () for name in _parse(text)]


def _parse(text: str) -> Names:
    topic, mark, rest = text.replace(":", "/").partition("/")
    if topic and not mark:
        return [(topic, None)]
    indexes = [index.strip() for index in rest.split(",")]
    if not topic or not all(index.isascii() and index.isdecimal() for index in indexes):
        wrong_usage(
            f"{text!r} is not a partition; it should be like orders, orders/0 or orders/0,2"
        )
    return [(topic, int(index)) for index in indexes]


def topics_of(names: Names) -> list[str]:
    """The topics, each once."""
    return list(dict.fromkeys(topic for topic, _ in names))


def one_topic(text: str, indexes: Iterable[int] | None) -> tuple[str, list[int]]:
    """A topic, and the partitions that its name or an option chooses; none stands for all."""
    names, chosen = named([text]), [*(indexes or ())]
    found = [index for _, index in names if index is not None]
    if found and chosen:
        wrong_usage(f"{text!r} names its partitions: --partition goes without")
    return names[0][0], found or chosen


async def existing(admin: Admin, names: Names) -> list[Partition]:
    """All partitions that are named; one that does not exist raises."""
    topics = await admin.topics.describe(topics_of(names))
    known = {topic.name: [at.partition for at in topic.partitions] for topic in topics}
    found = set()
    for topic, index in names:
        if index is not None and index not in known[topic]:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {topic!r} has no partition {index}."
            )
        found |= {(topic, at) for at in (known[topic] if index is None else [index])}
    return sorted(found)
