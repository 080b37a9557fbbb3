"""What a request of the console's pages says, checked: a flag, a number, a JSON object."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

MOST_BODY_BYTES = 16 * 1024 * 1024
TRUE = ("1", "true", "yes")


def flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() in TRUE


def number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A whole number of the query, within limits."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{name} should be a whole number, not {text!r}.") from None
    return min(max(value, least), most)


async def json_body(request: Request) -> dict[str, Any]:
    """The JSON object of a request; no body is an empty object."""
    received = bytearray()
    async for part in request.stream():
        received += part
        if len(received) > MOST_BODY_BYTES:
            raise ValueError(f"The request is larger than {MOST_BODY_BYTES} bytes.")
    if not received:
        return {}
    try:
        found = json.loads(received)
    except ValueError as error:
        raise ValueError(f"The request is not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise ValueError("The request should be a JSON object.")
    return found


def texts(value: Any, name: str) -> dict[str, str]:
    """An object whose values are texts."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError(f"{name} should be an object of texts.")
    return value
