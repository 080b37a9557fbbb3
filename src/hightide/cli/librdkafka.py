"""The command line's producer and consumer, which are confluent-kafka's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hightide.cli.options import Failed
from hightide.cli.render import say
from hightide.client import librdkafka
from hightide.client.librdkafka import library, sentence

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


def producer(bootstrap: str, settings: Mapping[str, Any]) -> Any:
    made = {"client.id": "hightide-cli", "message.timeout.ms": 60_000, **settings}
    return _in_words(lambda: librdkafka.producer(bootstrap, made, say))


def consumer(bootstrap: str, settings: Mapping[str, Any]) -> Any:
    """A consumer for partitions that are assigned by hand; it belongs to no group unless the
    settings name one."""
    made = {
        "client.id": "hightide-cli",
        # The library wants a name here even where no group is joined and nothing committed.
        "group.id": "hightide-cli",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        **settings,
    }
    return _in_words(lambda: librdkafka.consumer(bootstrap, made, say))


def assign(consumer: Any, topic: str, offsets: Mapping[int, int]) -> None:
    """Read these partitions from these offsets."""
    kafka = library()
    consumer.assign([kafka.TopicPartition(topic, at, offset) for at, offset in offsets.items()])


def subscribe(
    consumer: Any, topic: str, given: Callable[..., None], taken: Callable[..., None]
) -> None:
    """Read as a member of the group that the settings name."""
    consumer.subscribe([topic], on_assign=given, on_revoke=taken)


def store(consumer: Any, message: Any) -> None:
    """Have the offset behind a message committed, soon or when the consumer closes."""
    kafka = library()
    try:
        consumer.store_offsets(message=message)
    except kafka.KafkaException:
        # The partition belongs to another member by now, who reads it from the last commit on.
        return


def is_end_of_partition(error: Any) -> bool:
    return bool(error.code() == library().KafkaError._PARTITION_EOF)


def is_fatal(error: Any) -> bool:
    """Whether waiting longer is pointless."""
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


def _in_words(create: Callable[[], Any]) -> Any:
    try:
        return create()
    except librdkafka.Unusable as error:
        raise Failed(str(error)) from None
