"""OffsetCommit (8), versions 2 to 9: the most frequent request of groups.

So further commits of a connection do not wait while the records of the first are replicated, and
commits that arrive together are appended together.  Any other request of the connection waits until
its commits are done.

Errors per partition, besides the decisions of `core.groups`:
UNKNOWN_TOPIC_OR_PARTITION    there is no such partition
COORDINATOR_NOT_AVAILABLE     too few replicas have the commit, so it may succeed later or not;
                              or __consumer_offsets does not exist, or cannot be read
COORDINATOR_LOAD_IN_PROGRESS  its partition is being read
NOT_COORDINATOR               another broker coordinates the group
"""

from __future__ import annotations

import logging
from struct import Struct
from typing import TYPE_CHECKING, Any

from hightide.broker.handlers.group_offsets import merged, unknown_partitions, without
from hightide.broker.network.connection import COMMITTING, Connection, Slot
from hightide.broker.network.request_names import check_names
from hightide.core.groups import offset_requests
from hightide.core.groups.offsets import TopicPartition
from hightide.wire.codec import decode
from hightide.wire.errors import ErrorCode, WireError
from hightide.wire.frame import encode_response
from hightide.wire.hot.read_cursor import body_at
from hightide.wire.messages.offsets import OffsetCommitRequest, OffsetCommitResponse
from hightide.wire.types import api_of

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

LOWEST, HIGHEST = api_of(OffsetCommitRequest).versions
_FLEXIBLE = api_of(OffsetCommitRequest).flexible
_HEAD = Struct(">hhi")  # api key, version, correlation id
_KEY = 8
_OBJECTS = 4  # at most, of what is decoded for a name


class _PendingCommit:
    """A commit, and the connection and slot of its response."""

    __slots__ = (
        "_connection",
        "_correlation_id",
        "_request",
        "_rest",
        "_slot",
        "_unknown",
        "_version",
    )

    def __init__(
        self,
        connection: Connection,
        correlation_id: int,
        version: int,
        request: OffsetCommitRequest,
        rest: OffsetCommitRequest,
        unknown: set[TopicPartition],
    ) -> None:
        self._connection = connection
        self._correlation_id = correlation_id
        self._version = version
        self._request = request
        self._rest = rest
        self._unknown = unknown
        self._slot: Slot | None = None

    def wait(self) -> None:
        self._slot = self._connection.defer()
        self._connection.commits += 1

    def reply(self, response: Any) -> None:
        assert self._slot is not None
        connection = self._connection
        connection.complete(self._slot, self.encode(response))
        connection.commits -= 1
        if not connection.commits:
            connection.unblock(COMMITTING)

    def refusal(self, error: ErrorCode) -> Any:
        return offset_requests.commit_response(self._rest, error)

    def encode(self, response: Any) -> bytes:
        if self._unknown:
            response = merged(self._request, response, self._unknown)
        return encode_response(response, self._version, self._correlation_id)


def offset_commit(
    broker: Broker, connection: Connection, buf: bytearray, view: memoryview, start: int, end: int
) -> bytes | None:
    """Handle the request in buf[start:end]; return the response, or None if it comes later."""
    _, version, correlation_id = _HEAD.unpack_from(buf, start)
    at = body_at(buf, start, end, version >= _FLEXIBLE)
    limit = broker.settings.request_max_names
    budget = _OBJECTS * limit
    request = decode(OffsetCommitRequest, view[at:end], version, exact=False, budget=budget)
    if end - at > limit:  # a name takes more bytes than one
        check_names(request, _KEY, limit)
    unknown = unknown_partitions(broker, request)
    rest = without(request, unknown) if unknown else request
    pending = _PendingCommit(connection, correlation_id, version, request, rest, unknown)
    try:
        response = _commit(broker, rest, pending, version)
        return None if response is None else pending.encode(response)
    except Exception:
        log.exception("OffsetCommit version %d failed", version)
        raise WireError("a request failed inside the broker") from None


def _commit(
    broker: Broker, request: OffsetCommitRequest, pending: _PendingCommit, version: int
) -> Any:
    if not request.topics:
        return OffsetCommitResponse(topics=[])
    found = broker.groups.find(request.group_id)
    if isinstance(found, ErrorCode):
        return pending.refusal(found)
    timeout_ms = broker.settings.offsets_commit_timeout_ms
    response = found.commit(request, version, pending, timeout_ms)
    if response is None:
        pending.wait()
    return response
