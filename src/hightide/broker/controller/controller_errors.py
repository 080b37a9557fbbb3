"""Errors of the controller, and the Kafka errors that clients get for them."""

from __future__ import annotations

from hightide.wire.errors import ErrorCode, KafkaError
from hightide.zookeeper.zookeeper_errors import ConnectionLoss, SessionLost, ZooKeeperError


class NotController(ZooKeeperError):
    """This broker is not the controller, or is no longer."""

    meaning = "this broker is not the controller"


CONTROLLER_ERRORS = (KafkaError, ZooKeeperError)
"""What a request to the controller or to ZooKeeper may raise."""


def kafka_error(error: KafkaError | ZooKeeperError) -> KafkaError:
    """Translate to an error of the protocol: a retriable one if a retry may succeed."""
    match error:
        case KafkaError():
            return error
        case NotController():
            return not_controller()
        case ConnectionLoss() | SessionLost():
            return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{error}")
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{error}")


def not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "another broker is the controller")
