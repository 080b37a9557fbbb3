"""OffsetCommit (8), versions 2 to 9: the one request of groups that is made all the time.

So it does not hold up its connection while its records are being replicated, and all commits that
come together are appended together.

Answers per partition, besides what the machine of `core.groups` decides:
UNKNOWN_TOPIC_OR_PARTITION    there is no such partition to have an offset in
COORDINATOR_NOT_AVAILABLE     too few replicas have it, so that it may be committed later or not;
                              or the topic that keeps groups is not there, or cannot be read
COORDINATOR_LOAD_IN_PROGRESS  it is being read
NOT_COORDINATOR               another broker coordinates the group
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from hightide.broker.connection import Connection, Slot
from hightide.broker.handlers.group_offsets import merged, unknown_partitions, without
from hightide.core.groups import commits
from hightide.core.groups.offsets import TopicPartition
from hightide.wire.codec import decode
from hightide.wire.errors import ErrorCode, WireError
from hightide.wire.frame import decode_request_header, encode_response
from hightide.wire.messages.offsets import OffsetCommitRequest, OffsetCommitResponse
from hightide.wire.types import api_of

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

LOWEST, HIGHEST = api_of(OffsetCommitRequest).versions


class _Asked:
    """A commit, and where its answer goes."""

    __slots__ = ("_connection", "_correlation_id", "_request", "_slot", "_unknown", "_version")

    def __init__(
        self,
        connection: Connection,
        correlation_id: int,
        version: int,
        request: OffsetCommitRequest,
        unknown: set[TopicPartition],
    ) -> None:
        self._connection = connection
        self._correlation_id = correlation_id
        self._version = version
        self._request = request
        self._unknown = unknown
        self._slot: Slot | None = None

    def wait(self) -> None:
        self._slot = self._connection.defer()

    def reply(self, response: Any) -> None:
        assert self._slot is not None
        self._connection.complete(self._slot, self.encode(response))

    def encode(self, response: Any) -> bytes:
        if self._unknown:
            response = merged(self._request, response, self._unknown)
        return encode_response(response, self._version, self._correlation_id)


def offset_commit(
    broker: Broker, connection: Connection, frame: memoryview, version: int
) -> bytes | None:
    """The answer, or None if it comes later."""
    header, at = decode_request_header(frame)
    request = decode(OffsetCommitRequest, frame[at:], version, exact=False)
    unknown = unknown_partitions(broker, request)
    asked = _Asked(connection, header.correlation_id, version, request, unknown)
    try:
        rest = without(request, unknown) if unknown else request
        response = _commit(broker, rest, asked, version)
        return None if response is None else asked.encode(response)
    except Exception:
        log.exception("OffsetCommit version %d failed", version)
        raise WireError("a request failed inside the broker") from None


def _commit(broker: Broker, request: OffsetCommitRequest, asked: _Asked, version: int) -> Any:
    if not request.topics:
        return OffsetCommitResponse(topics=[])
    found = broker.groups.find(request.group_id)
    if isinstance(found, ErrorCode):
        return commits.commit_response(request, found)
    limit_ms = broker.settings.offsets_commit_timeout_ms
    response = found.commit(request, version, asked.reply, limit_ms)
    if response is None:
        asked.wait()
    return response
