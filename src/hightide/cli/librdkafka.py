"""The producer and consumer of the command line, from confluent-kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hightide.cli.options import Failed
from hightide.cli.render import say
from hightide.client import librdkafka
from hightide.client.librdkafka import Say, library, sentence

__all__ = [
    "assign",
    "consumer",
    "is_end_of_partition",
    "is_fatal",
    "producer",
    "sentence",
    "store",
    "subscribe",
]


def producer(bootstrap: str, settings: Mapping[str, Any], say: Say = say) -> Any:
    """A producer; `say` gets the sentence that no broker can be reached."""
    config = {"client.id": "hightide-cli", "message.timeout.ms": 60_000, **settings}
    return _or_fail(lambda: librdkafka.producer(bootstrap, config, say))


def consumer(bootstrap: str, settings: Mapping[str, Any], say: Say = say) -> Any:
    """A consumer for partitions that are assigned explicitly.

    It is a member of no group unless the settings name one.
    """
    config = {
        "client.id": "hightide-cli",
        # librdkafka requires a group id even if the consumer joins no group and commits nothing.
        "group.id": "hightide-cli",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        **settings,
    }
    return _or_fail(lambda: librdkafka.consumer(bootstrap, config, say))


def assign(consumer: Any, topic: str, offsets: Mapping[int, int]) -> None:
    """Assign partitions, each with the offset to read from."""
    kafka = library()
    consumer.assign([kafka.TopicPartition(topic, at, offset) for at, offset in offsets.items()])


def subscribe(
    consumer: Any, topic: str, assigned: Callable[..., None], revoked: Callable[..., None]
) -> None:
    """Subscribe as a member of the group that the settings name."""
    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked)


def store(consumer: Any, message: Any) -> None:
    """Store the offset after a message, for the next automatic commit."""
    kafka = library()
    try:
        consumer.store_offsets(message=message)
    except kafka.KafkaException:
        # The partition now belongs to another member, which reads from the last commit.
        return


def is_end_of_partition(error: Any) -> bool:
    return bool(error.code() == library().KafkaError._PARTITION_EOF)


def is_fatal(error: Any) -> bool:
    """Whether it makes no sense to wait longer."""
    kafka = library().KafkaError
    return bool(
        error.fatal()
        or error.code()
        in {
            kafka.UNKNOWN_TOPIC_OR_PART,
            kafka._UNKNOWN_TOPIC,
            kafka._UNKNOWN_PARTITION,
            kafka.TOPIC_AUTHORIZATION_FAILED,
        }
    )


def _or_fail(create: Callable[[], Any]) -> Any:
    try:
        return create()
    except librdkafka.Unusable as error:
        raise Failed(str(error)) from None
