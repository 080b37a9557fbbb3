"""The command line's producer and consumer, which are confluent-kafka's.

Everything about that library is here: that it is imported late (it costs 50 ms), that its
log lines are kept off the terminal, and that its errors become one sentence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from hightide.cli.options import Failed
from hightide.cli.render import say


def producer(bootstrap: str, settings: Mapping[str, Any]) -> Any:
    """A producer that puts keys where Java's producer would put them."""
    kafka = _library()
    made = {
        "bootstrap.servers": bootstrap,
        "client.id": "hightide-cli",
        "partitioner": "murmur2_random",
        "message.timeout.ms": 60_000,
        "error_cb": _tell_when_alone(),
        **settings,
    }
    return _make(lambda: kafka.Producer(made, logger=_quiet()))


def consumer(bootstrap: str, settings: Mapping[str, Any]) -> Any:
    """A consumer for partitions that are assigned by hand; it belongs to no group unless the
    settings name one."""
    kafka = _library()
    made = {
        "bootstrap.servers": bootstrap,
        "client.id": "hightide-cli",
        # The library wants a name here even where no group is joined and nothing committed.
        "group.id": "hightide-cli",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "error_cb": _tell_when_alone(),
        **settings,
    }
    return _make(lambda: kafka.Consumer(made, logger=_quiet()))


def assign(consumer: Any, topic: str, offsets: Mapping[int, int]) -> None:
    """Read these partitions from these offsets."""
    kafka = _library()
    consumer.assign([kafka.TopicPartition(topic, at, offset) for at, offset in offsets.items()])


def subscribe(
    consumer: Any, topic: str, given: Callable[..., None], taken: Callable[..., None]
) -> None:
    """Read as a member of the group that the settings name."""
    consumer.subscribe([topic], on_assign=given, on_revoke=taken)


def store(consumer: Any, message: Any) -> None:
    """Have the offset behind a message committed, soon or when the consumer closes."""
    kafka = _library()
    try:
        consumer.store_offsets(message=message)
    except kafka.KafkaException:
        # The partition belongs to another member by now, who reads it from the last commit on.
        return


def is_end_of_partition(error: Any) -> bool:
    return bool(error.code() == _library().KafkaError._PARTITION_EOF)


def is_fatal(error: Any) -> bool:
    """Whether waiting longer is pointless."""
    kafka = _library().KafkaError
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


def sentence(error: Any) -> str:
    """A library error as people read it."""
    text = str(error.str())
    return text if text.endswith(".") else f"{text}."


def _tell_when_alone() -> Callable[[Any], None]:
    """Say once that no broker can be reached; the library goes on trying by itself."""
    told: list[bool] = []

    def on_error(error: Any) -> None:
        if error.code() == _library().KafkaError._ALL_BROKERS_DOWN and not told:
            told.append(True)
            say("No broker can be reached; still trying.")

    return on_error


def _library() -> Any:
    try:
        import confluent_kafka
    except ImportError:
        raise Failed(
            "This command needs the package confluent-kafka: pip install confluent-kafka."
        ) from None
    return confluent_kafka


def _make(create: Callable[[], Any]) -> Any:
    kafka = _library()
    try:
        return create()
    except (ValueError, TypeError, kafka.KafkaException) as error:
        inner = error.args[0] if error.args else error
        reason = inner.str() if isinstance(inner, kafka.KafkaError) else inner
        raise Failed(f"The client library refuses its settings: {reason}.") from None


def _quiet() -> logging.Logger:
    """A logger that says nothing: what matters comes back as an error of a call."""
    logger = logging.getLogger("hightide.cli.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
