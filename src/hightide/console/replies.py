"""JSON replies, and the sentences that failures become.

KafkaError          404 unknown things, 403 authorization, 503 what may work later, else 409
ConnectionFailed    503
Refused, NotRunning 409 (`hightide up` does not do what it was told)
ValueError          400: what was asked for is not valid
TimeoutError        504
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Mapping, Set
from enum import Enum
from pathlib import PurePath
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hightide import control
from hightide.client.broker_connection import ConnectionFailed
from hightide.wire.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

UNKNOWN = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.RESOURCE_NOT_FOUND,
    ErrorCode.BROKER_ID_NOT_REGISTERED,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.OFFSET_OUT_OF_RANGE,
}
FORBIDDEN = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
INVALID = {
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.INVALID_PARTITIONS,
    ErrorCode.INVALID_REPLICATION_FACTOR,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ErrorCode.INVALID_CONFIG,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_GROUP_ID,
}


def ok(data: Any, status: int = 200) -> Response:
    return Response(as_json(data), status, media_type="application/json")


def failed(status: int, sentence: str, **more: Any) -> Response:
    """A failure that the page shows; `more` are fields for programs."""
    return ok({"error": sentence, **more}, status)


def as_json(data: Any) -> str:
    """JSON without NaN and infinities, which browsers cannot read: they become null."""
    try:
        return _dump(data)
    except ValueError:
        return _dump(_finite(data))


def _dump(data: Any) -> str:
    return json.dumps(
        data, default=_plain, allow_nan=False, ensure_ascii=False, separators=(",", ":")
    )


def _plain(value: Any) -> Any:
    """What JSON has no word for, as what it has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    match value:
        case Enum():
            return value.value
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case Set():
            return sorted(value)
        case Mapping():
            return dict(value)
        case PurePath():
            return str(value)
        case _:
            raise TypeError(f"{type(value).__name__} has no form in JSON")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(child) for child in value]
    if isinstance(value, str | int | None):
        return value
    return _finite(_plain(value))


# -- failures --------------------------------------------------------------------------------


def status_of(code: ErrorCode) -> int:
    if code in UNKNOWN:
        return 404
    if code in FORBIDDEN:
        return 403
    if code in INVALID:
        return 400
    return 503 if code.retriable else 409


def of_failure(error: BaseException) -> Response:
    """The reply to a request that raised this."""
    match error:
        case KafkaError():
            return failed(status_of(error.code), error.detail, code=error.code.name)
        case ConnectionFailed():
            return failed(503, str(error))
        case control.Refused() | control.NotRunning():
            return failed(409, str(error))
        case TimeoutError():
            return failed(504, "The brokers did not answer in time.")
        case HTTPException():
            return failed(error.status_code, sentence_of(error))
        case ValueError():
            log.debug("a request is refused", exc_info=error)
            return failed(400, str(error) or "The request is not valid.")
        case OSError():
            return failed(503, f"{error.strerror or error}.")
        case _:
            log.error("a request has failed", exc_info=error)
            return failed(500, f"The console has failed: {type(error).__name__}. See its log.")


def sentence_of(error: HTTPException) -> str:
    return "There is nothing here." if error.status_code == 404 else f"{error.detail}."


async def on_failure(_: Request, error: Exception) -> Response:
    """The handler of every exception, for Starlette."""
    return of_failure(error)
