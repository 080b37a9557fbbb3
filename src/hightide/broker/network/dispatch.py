"""From a request's bytes to its handler, and from the handler's result to a response.

`HANDLERS` lists every API of this broker; ApiVersions is computed from it.  A request of an unknown
version cannot be answered, because its layout is not known, so the connection is closed, as Kafka
does.  Only ApiVersions has a response for that case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from struct import Struct
from typing import TYPE_CHECKING, Any

from hightide.broker.handlers import (
    api_versions,
    client_telemetry,
    configs,
    describe_connections,
    describe_events,
    describe_producers,
    describe_replicas,
    elections,
    find_coordinator,
    group_membership,
    group_offsets,
    group_status,
    init_producer_id,
    inter_broker,
    log_dirs,
    log_offsets,
    metadata,
    offset_commit,
    prove_broker,
    reassignments,
    topics,
    transactions,
    write_txn_markers,
)
from hightide.broker.handlers.fetch import fetch
from hightide.broker.handlers.produce import produce
from hightide.broker.handlers.prove_broker import BROKER_REQUESTS, BrokerRequest
from hightide.broker.handlers.request_context import Context
from hightide.broker.metrics.counters import RequestCounts, count_errors
from hightide.broker.network.connection import (
    CLIENT_ID_CHARACTERS,
    COMMITTING,
    SERVING,
    STARTING,
    Connection,
    NotYet,
    Response,
)
from hightide.broker.network.request_names import check_names
from hightide.broker.network.server import log_stall
from hightide.broker.network.turn import Turn, Usage, watched
from hightide.wire.codec import OBJECT_BUDGET, decode
from hightide.wire.encoder import TooLarge
from hightide.wire.errors import ErrorCode, WireError
from hightide.wire.frame import (
    RESPONSE_BUDGET,
    RequestHeader,
    decode_request_header,
    encode_response,
)
from hightide.wire.hot import fetch_codec as hot_fetch
from hightide.wire.hot import produce_codec as hot_produce
from hightide.wire.messages import APIS, REQUESTS

if TYPE_CHECKING:
    from hightide.broker.broker import Broker
    from hightide.broker.network.server import Server

log = logging.getLogger(__name__)

Handler = Callable[["Broker", Any, Context], Any]

PRODUCE, FETCH, OFFSET_COMMIT, API_VERSIONS = 0, 1, 8, 18

HANDLERS: dict[int, Handler] = {
    2: log_offsets.list_offsets,
    3: metadata.metadata,
    7: inter_broker.controlled_shutdown,
    9: group_offsets.offset_fetch,
    10: find_coordinator.find_coordinator,
    11: group_membership.join_group,
    12: group_membership.heartbeat,
    13: group_membership.leave_group,
    14: group_membership.sync_group,
    15: group_membership.describe_groups,
    16: group_membership.list_groups,
    18: api_versions.api_versions,
    19: topics.create_topics,
    20: topics.delete_topics,
    21: log_offsets.delete_records,
    22: init_producer_id.init_producer_id,
    23: log_offsets.offset_for_leader_epoch,
    24: transactions.add_partitions_to_txn,
    25: transactions.add_offsets_to_txn,
    26: transactions.end_txn,
    27: write_txn_markers.write_txn_markers,
    28: group_offsets.txn_offset_commit,
    32: configs.describe_configs,
    33: configs.alter_configs,
    35: log_dirs.describe_log_dirs,
    37: topics.create_partitions,
    42: group_membership.delete_groups,
    43: elections.elect_leaders,
    44: configs.incremental_alter_configs,
    45: reassignments.alter_partition_reassignments,
    46: reassignments.list_partition_reassignments,
    47: group_offsets.offset_delete,
    56: inter_broker.alter_partition,
    60: metadata.describe_cluster,
    61: describe_producers.describe_producers,
    65: transactions.describe_transactions,
    66: transactions.list_transactions,
    68: group_membership.consumer_group_heartbeat,
    69: group_membership.consumer_group_describe,
    71: client_telemetry.get_telemetry_subscriptions,
    72: client_telemetry.push_telemetry,
    74: client_telemetry.list_config_resources,
    75: metadata.describe_topic_partitions,
    30000: elections.resign_controller,
    30001: inter_broker.publish_state,
    30002: describe_replicas.describe_replicas,
    30003: group_status.group_status,
    30004: transactions.open_marker_connection,
    30005: inter_broker.report_failures,
    30006: inter_broker.replica_log_info,
    30007: prove_broker.prove_broker,
    30008: describe_events.describe_events,
    30009: describe_connections.describe_connections,
}

# Requests between brokers. A broker answers them before it knows the cluster.
_AMONG_BROKERS = frozenset({7, 56, 30001, 30005, 30006, 30007})
_EARLY = frozenset({API_VERSIONS, *_AMONG_BROKERS})

# Left out: versions that only brokers use, and versions of a feature that is not offered, the
# second version of transactions, in which the broker adds partitions by itself (KIP-890).
_ADVERTISED = {24: (0, 3)}
_SERVED = {26: (0, 4), 28: (0, 4)}

# Served only where something reads the metrics that clients push.
_TELEMETRY = frozenset({71, 72})

# API keys from here on are Hightide's own. ApiVersions lists neither these nor requests between
# brokers, so that clients do not meet API keys that they do not know.
FIRST_PRIVATE = 30000

# Larger requests are decoded in the pool, larger responses encoded in it.
_LARGE_FRAME_BYTES = 16 * 1024
_SMALL_FRAME_BYTES = 4 * 1024  # a Fetch or OffsetCommit of this size takes less than a millisecond
_LARGE_RESPONSE_ELEMENTS = 1_000
_LARGE_RESPONSE_BYTES = 8 * 1024 * 1024  # an estimate, for the pool's budget

_HEAD = Struct(">hh")  # api key, version
_CORRELATION = Struct(">i")


def advertised(served: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """The APIs and versions in an ApiVersions response."""
    return {
        key: _ADVERTISED.get(key, versions)
        for key, versions in served.items()
        if key < FIRST_PRIVATE and key not in _AMONG_BROKERS
    }


def served_versions(*, has_telemetry: bool = True) -> dict[int, tuple[int, int]]:
    """The APIs and versions that this broker serves.

    Produce is listed from version 0 although 0 to 2 are refused: librdkafka before 2.1 takes a
    higher minimum for a broker without compression.
    """
    versions = {
        PRODUCE: (0, hot_produce.HIGHEST),
        FETCH: (hot_fetch.LOWEST, hot_fetch.HIGHEST),
        OFFSET_COMMIT: (offset_commit.LOWEST, offset_commit.HIGHEST),
    }
    for key in HANDLERS:
        if key in _TELEMETRY and not has_telemetry:
            continue
        versions[key] = _SERVED.get(key, REQUESTS[key].__api__.versions)
    return versions


def _only_brokers(key: int, version: int) -> BrokerRequest | None:
    """Return how to refuse a request that only brokers may send; None if clients may send it."""
    found = BROKER_REQUESTS.get(key)
    return None if found is None or version < found.since else found


def _decode(header: RequestHeader, body: memoryview | bytes, max_names: int) -> Any:
    """Decode a request, and merge the names that it repeats."""
    key = header.api_key
    is_inter_broker = _only_brokers(key, header.api_version) is not None
    budget = RESPONSE_BUDGET if is_inter_broker else OBJECT_BUDGET
    request = decode(REQUESTS[key], body, header.api_version, exact=False, budget=budget)
    if not is_inter_broker:
        check_names(request, key, max_names)
    return request


async def _ready(response: Any) -> Any:
    return response


def _count_and_encode(
    counts: RequestCounts, response: Any, version: int, correlation_id: int, limit: int
) -> bytes:
    """Encode a large response in a thread.  An error that another thread counts at the same time
    may be lost, which is rare enough."""
    count_errors(counts, response)
    return encode_response(response, version, correlation_id, limit)


def is_large(response: Any) -> bool:
    """Whether a response has many elements, so that encoding it takes milliseconds."""
    count = 0
    for name in response.__slots__:
        items = getattr(response, name)
        if isinstance(items, list):
            count += len(items)
            for item in items:
                for inner in getattr(item, "__slots__", ()):
                    elements = getattr(item, inner)
                    if isinstance(elements, list | bytes):
                        count += len(elements) if isinstance(elements, list) else len(elements) >> 7
                if count > _LARGE_RESPONSE_ELEMENTS:
                    return True
    return False


class Dispatch:
    """Serves requests for one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = False
        # By version: the requests that clients send most must not look for their counts.
        self._produce = [broker.requests.of(PRODUCE).at(n) for n in range(hot_produce.HIGHEST + 1)]
        self._fetch = [broker.requests.of(FETCH).at(n) for n in range(hot_fetch.HIGHEST + 1)]

    @property
    def is_open(self) -> bool:
        """Whether clients are served."""
        return self._is_open

    def open(self, server: Server) -> None:
        """Serve clients too, starting with those that have been waiting."""
        self._is_open = True
        server.serve_early()

    def serve(
        self, connection: Connection, buf: bytearray, view: memoryview, start: int, end: int
    ) -> Response | None:
        """Serve the request in buf[start:end], now or later.  WireError if it cannot be decoded."""
        key, version = _HEAD.unpack_from(buf, start)
        if not self._is_open and key not in _EARLY:
            raise NotYet(STARTING)
        if key == PRODUCE and hot_produce.LOWEST <= version <= hot_produce.HIGHEST:
            connection.counts = self._produce[version]
            return produce(self._broker, connection, buf, view, start, end)
        if key != PRODUCE and end - start > _SMALL_FRAME_BYTES:
            connection.check_turn()
        if key == FETCH and hot_fetch.LOWEST <= version <= hot_fetch.HIGHEST:
            connection.counts = self._fetch[version]
            return fetch(self._broker, connection, buf, view, start, end)
        if key == OFFSET_COMMIT and offset_commit.LOWEST <= version <= offset_commit.HIGHEST:
            connection.counts = self._broker.requests.of(key).at(version)
            return offset_commit.offset_commit(self._broker, connection, buf, view, start, end)
        if connection.commits:
            # A request after an OffsetCommit may expect the commit to be done.
            raise NotYet(COMMITTING)
        return self._serve_cold(connection, view[start:end], key, version)

    def _serve_cold(
        self, connection: Connection, frame: memoryview, key: int, version: int
    ) -> Response | None:
        handler = HANDLERS.get(key)
        low, high = self._broker.served.get(key, (0, -1))
        if handler is None or not low <= version <= high:
            if key == API_VERSIONS:
                connection.counts = self._broker.requests.of(key).at(version)
                connection.counts.failed(ErrorCode.UNSUPPORTED_VERSION)
                (correlation_id,) = _CORRELATION.unpack_from(frame, 4)
                return encode_response(api_versions.unsupported(self._broker), 0, correlation_id)
            name = APIS[key][0] if key in APIS else f"API key {key}"
            raise WireError(f"{name} version {version} is not served")
        if len(frame) <= _SMALL_FRAME_BYTES:
            connection.check_turn()
        counts = connection.counts = self._broker.requests.of(key).at(version)
        connection.usage.asked()
        header, at = decode_request_header(frame)
        connection.client_id = (header.client_id or "")[:CLIENT_ID_CHARACTERS]
        only_brokers = _only_brokers(key, version)
        if only_brokers is not None and connection.peer_broker_id < 0:
            refusal = self._refused(connection, header, only_brokers.refusal)
            count_errors(counts, refusal)
            return encode_response(refusal, version, header.correlation_id)
        turn = Turn(connection.turns, connection.usage)
        if len(frame) > _LARGE_FRAME_BYTES:
            body = bytes(frame[at:])
            connection.hold(len(body))
            work = self._large_request(connection, header, body, turn)
            self._serve_later(connection, header, work, turn)
            return None
        request = _decode(header, frame[at:], self._broker.settings.request_max_names)
        try:
            result = self._handle(connection, header, request, turn)
            if asyncio.iscoroutine(result):
                self._serve_later(connection, header, result, turn)
                return None
            if is_large(result):
                self._serve_later(connection, header, _ready(result), turn)
                return None
            count_errors(counts, result)
            encoded = encode_response(result, version, header.correlation_id)
            turn.count()
            return encoded
        except Exception:
            counts.failed(ErrorCode.UNKNOWN_SERVER_ERROR)
            log.exception("%s version %d failed", APIS[key][0], version)
            raise WireError("a request failed inside the broker") from None

    def _handle(
        self, connection: Connection, header: RequestHeader, request: Any, turn: Turn
    ) -> Any:
        """Call the handler; return the response, or a coroutine that returns it."""
        only_brokers = _only_brokers(header.api_key, header.api_version)
        if (
            only_brokers is not None
            and only_brokers.sender is not None
            and getattr(request, only_brokers.sender) != connection.peer_broker_id
        ):
            return self._refused(connection, header, only_brokers.refusal)
        context = Context(connection, header.api_version, header.client_id, turn)
        result = HANDLERS[header.api_key](self._broker, request, context)
        if isinstance(result, Generator):
            value = turn.run(result)
            return turn.finish(result) if value is None else value
        return result

    async def _large_request(
        self, connection: Connection, header: RequestHeader, body: bytes, turn: Turn
    ) -> Any:
        """Decode a large request, which the connection holds, in the pool; call its handler."""
        limit, size = self._broker.settings.request_max_names, len(body)
        try:
            request = await self._broker.work_pool.run(
                connection.usage, size, _decode, header, body, limit
            )
        finally:
            body = b""
            connection.release(size)
        result = self._handle(connection, header, request, turn)
        return await result if asyncio.iscoroutine(result) else result

    async def _encode(self, usage: Usage, response: Any, header: RequestHeader) -> bytes:
        version, correlation_id = header.api_version, header.correlation_id
        limit = self._broker.settings.response_max_bytes
        counts = self._broker.requests.of(header.api_key).at(version)
        if not is_large(response):
            count_errors(counts, response)
            return encode_response(response, version, correlation_id, limit)
        return await self._broker.work_pool.run(
            usage,
            _LARGE_RESPONSE_BYTES,
            _count_and_encode,
            counts,
            response,
            version,
            correlation_id,
            limit,
        )

    def _refused(self, connection: Connection, header: RequestHeader, refusal: Any) -> Any:
        """Return the response to a request that only another broker may send."""
        name = APIS[header.api_key][0]
        self._broker.refusals.note(connection, header.client_id, name)
        return refusal

    def _serve_later(
        self,
        connection: Connection,
        header: RequestHeader,
        result: Awaitable[Any],
        turn: Turn,
    ) -> None:
        """Run a slow handler; the connection serves no other request meanwhile."""
        slot = connection.defer()
        connection.block(SERVING)
        name, version = APIS[header.api_key][0], header.api_version

        async def run() -> None:
            try:
                await turn.enter()
                encoded = await self._encode(connection.usage, await result, header)
            except WireError as error:
                connection.close(str(error))
                return
            except TooLarge:
                limit = self._broker.settings.response_max_bytes
                connection.close(
                    f"the response to {name} of client {header.client_id!r} is larger than"
                    f" response.max.bytes ({limit}); ask for less at a time",
                    logging.WARNING,
                )
                return
            except Exception:
                slot.counts.failed(ErrorCode.UNKNOWN_SERVER_ERROR)
                log.exception("%s version %d failed", name, version)
                connection.close("a request failed inside the broker")
                return
            connection.complete(slot, encoded)
            connection.unblock(SERVING)

        def stalled(took_s: float) -> None:
            log_stall(connection.client_address, header, took_s)

        work = watched(run(), turn, stalled)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Wait for the requests that are being served."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
