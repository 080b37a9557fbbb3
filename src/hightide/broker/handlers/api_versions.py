"""ApiVersions (18), versions 0 to 4.

UNSUPPORTED_VERSION   the request has a newer version: the body is then in version 0, which every
                      client can read, and lists the versions served (KIP-511)
INVALID_REQUEST       the client's software name or version has invalid characters
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hightide.broker.handlers.request_context import Context
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

_SOFTWARE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?\Z")

_SOFTWARE_LENGTH = 64  # of what is kept


def api_versions(
    broker: Broker, request: ApiVersionsRequest, context: Context
) -> ApiVersionsResponse:
    if context.version >= 3:
        names = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.match(name) for name in names):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        name, version = (name[:_SOFTWARE_LENGTH] for name in names)
        context.connection.client_software = (name, version)
    return ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=served(broker))


def unsupported(broker: Broker) -> ApiVersionsResponse:
    """Respond to an ApiVersions request of an unknown version."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=served(broker))


def served(broker: Broker) -> list[ApiVersion]:
    return [
        ApiVersion(api_key=key, min_version=low, max_version=high)
        for key, (low, high) in sorted(broker.advertised.items())
    ]
