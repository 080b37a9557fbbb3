"""confluent-kafka's producers and consumers, as commands and collectors use them.

The library is imported when it is used, because the import takes 50 ms.  Its log lines do not reach
the terminal, and its errors become one sentence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

Say = Callable[[str], None]


_RECEIVE_BYTES = 1_000_000_000
"""librdkafka skips no batch that is larger than this after decompression: it asks for it again and
again. Its default of 100 MB is too small for zstd batches of 34 MB, whose buffer it triples."""


class Unusable(Exception):
    """The library is missing or refuses its settings; the text is a sentence for users."""


def library() -> Any:
    try:
        import confluent_kafka
    except ImportError:
        raise Unusable(
            "This command needs the package confluent-kafka: pip install confluent-kafka."
        ) from None
    return confluent_kafka


def producer(bootstrap: str, settings: Mapping[str, Any], say: Say) -> Any:
    """A producer that chooses the same partition for a key as Java's producer."""
    defaults = {"partitioner": "murmur2_random"}
    return _make(library().Producer, bootstrap, {**defaults, **settings}, say)


def consumer(bootstrap: str, settings: Mapping[str, Any], say: Say = lambda _sentence: None) -> Any:
    defaults = {"receive.message.max.bytes": _RECEIVE_BYTES}
    return _make(library().Consumer, bootstrap, {**defaults, **settings}, say)


def sentence(error: Any) -> str:
    """A library error as a sentence."""
    text = str(error.str())
    return text if text.endswith(".") else f"{text}."


def raised(error: BaseException) -> Any:
    """The library's error behind an exception of one of its calls; None if it was lost.

    A fatal error of a producer can arrive while a call runs delivery and log callbacks.  These
    callbacks then run with an exception already set.  They either wrap it, so that the call raises
    a SystemError with the first exception as its cause, or swallow it, so that the interpreter
    raises a SystemError without a cause.
    """
    found: BaseException | None = error
    while isinstance(found, SystemError):
        found = found.__cause__
    if found is None:
        return None
    if not isinstance(found, library().KafkaException):
        raise error
    return found.args[0]


def _make(create: Callable[..., Any], bootstrap: str, settings: Mapping[str, Any], say: Say) -> Any:
    kafka = library()
    config = {"bootstrap.servers": bootstrap, "error_cb": _on_unreachable(say), **settings}
    try:
        return create(config, logger=_quiet())
    except (ValueError, TypeError, kafka.KafkaException) as error:
        inner = error.args[0] if error.args else error
        reason = inner.str() if isinstance(inner, kafka.KafkaError) else inner
        raise Unusable(f"The client library refuses its settings: {reason}.") from None


def _on_unreachable(say: Say) -> Callable[[Any], None]:
    """Say once that no broker can be reached; the library keeps trying."""
    said: list[bool] = []

    def on_error(error: Any) -> None:
        if error.code() == library().KafkaError._ALL_BROKERS_DOWN and not said:
            said.append(True)
            say("No broker can be reached; still trying.")

    return on_error


def _quiet() -> logging.Logger:
    """A logger without output: what matters is returned as an error of a call."""
    logger = logging.getLogger("hightide.client.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
