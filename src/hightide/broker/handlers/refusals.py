"""What a client is told when the coordinator refuses, or cannot be asked."""

from __future__ import annotations

from hightide.broker.controller.controller_election import NotController
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.zookeeper.errors import ConnectionLoss, SessionLost, ZooKeeperError

REFUSALS = (KafkaError, ZooKeeperError)


def refusal(error: KafkaError | ZooKeeperError) -> KafkaError:
    """Kafka's error for any of the two; what may succeed later gets one that clients try again."""
    match error:
        case KafkaError():
            return error
        case NotController():
            return KafkaError(ErrorCode.NOT_CONTROLLER, "another broker is the controller")
        case ConnectionLoss() | SessionLost():
            return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{error}")
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{error}")
