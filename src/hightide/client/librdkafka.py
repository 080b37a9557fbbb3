"""confluent-kafka's producers and consumers, as commands and collectors use them.

The library is imported late, because that costs 50 ms, its log lines are kept off the terminal,
and its errors become one sentence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

Say = Callable[[str], None]


class Unusable(Exception):
    """The library is missing or refuses its settings; the text is a sentence for a person."""


def library() -> Any:
    try:
        import confluent_kafka
    except ImportError:
        raise Unusable(
            "This command needs the package confluent-kafka: pip install confluent-kafka."
        ) from None
    return confluent_kafka


def producer(bootstrap: str, settings: Mapping[str, Any], say: Say) -> Any:
    """A producer that puts keys where Java's producer would put them."""
    made = {"partitioner": "murmur2_random", **settings}
    return _make(library().Producer, bootstrap, made, say)


def consumer(bootstrap: str, settings: Mapping[str, Any], say: Say = lambda _sentence: None) -> Any:
    return _make(library().Consumer, bootstrap, settings, say)


def sentence(error: Any) -> str:
    """A library error as people read it."""
    text = str(error.str())
    return text if text.endswith(".") else f"{text}."


def raised(error: BaseException) -> Any:
    """The library's own error in what a call of it raised; None where that has been lost.

    A call learns of an error that ends a producer while it makes calls about single records and
    log lines.  These run with an exception already set, and either wrap it, so that an error of the
    interpreter comes out with the first one as its cause, or swallow it, so that the interpreter
    complains of a failure without a reason.
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
    made = {"bootstrap.servers": bootstrap, "error_cb": _tell_when_alone(say), **settings}
    try:
        return create(made, logger=_quiet())
    except (ValueError, TypeError, kafka.KafkaException) as error:
        inner = error.args[0] if error.args else error
        reason = inner.str() if isinstance(inner, kafka.KafkaError) else inner
        raise Unusable(f"The client library refuses its settings: {reason}.") from None


def _tell_when_alone(say: Say) -> Callable[[Any], None]:
    """Say once that no broker can be reached; the library goes on trying by itself."""
    told: list[bool] = []

    def on_error(error: Any) -> None:
        if error.code() == library().KafkaError._ALL_BROKERS_DOWN and not told:
            told.append(True)
            say("No broker can be reached; still trying.")

    return on_error


def _quiet() -> logging.Logger:
    """A logger that says nothing: what matters comes back as an error of a call."""
    logger = logging.getLogger("hightide.client.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
