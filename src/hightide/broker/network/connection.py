"""One client's connection: frames in, responses out, in order, with bounded memory.

Requests are read into a scratch buffer that all connections share, because its content is not used
between two reads.  Only a frame that comes in pieces gets its own buffer, which grows as bytes
arrive, not as the frame's length promises.  Hot requests are served straight from the buffer,
within the callback.  Responses leave in the order of their requests: one that must wait takes a
`Slot` in a queue, and the responses behind it wait too, while their requests are already served.

A connection gets a bounded turn (`turn.py`): its further requests wait until other connections have
been served.

Reading stops, so that TCP makes the client slow down, while a slow request is being served, while
the client does not read its responses, while too many responses wait, and while the requests of all
connections together take too much memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from struct import Struct
from typing import TYPE_CHECKING, Any, cast

from hightide.broker.metrics.counters import NO_REQUESTS, RequestCounts
from hightide.broker.network.fetch_sizing import FetchSizing
from hightide.broker.network.turn import STALL_S, TurnQueue, Usage
from hightide.log.disk import DiskFailed
from hightide.log.segment import Slice
from hightide.wire.errors import WireError
from hightide.wire.hot.fetch_codec import Part

if TYPE_CHECKING:
    from uuid import UUID

    from hightide.broker.network.server import Server
    from hightide.broker.replication.replica import Replica
    from hightide.core.transactions.verification import VerificationGuard
    from hightide.log.batch_validation import CheckedBatch
    from hightide.wire.errors import KafkaError

log = logging.getLogger(__name__)

Response = bytes | list[Part]

_SIZE = Struct(">i")
_HEADER_LEAST = 8  # api key, version, correlation id
_FIRST_BUFFER = 64 * 1024
_CHUNKS_PER_TURN = 2  # of the send buffer's size, before other connections get a turn
_WRITE_BUFFER_BYTES = 256 * 1024  # in the transport, before reading of the log stops
_MOST_WAITING = 1_000
_UNKNOWN_CHECK_S = 1.0
_MOST_WAITING_BYTES = 256 * 1024
CLIENT_ID_CHARACTERS = 100  # of what is kept
SWEEP_S = 0.5

# Why a connection does not read: any of these.
SERVING, SENDING, WAITING, STARVED, STOPPING, STARTING, VERIFYING = 1, 2, 4, 8, 16, 32, 64
COMMITTING, RESTING, CHECKING = 128, 256, 512


class NotYet(Exception):
    """A request cannot be served yet; it stays in the buffer until `unblock(why)`."""

    def __init__(self, why: int) -> None:
        self.why = why


class Slot:
    """A place in the order of responses, taken by a request that cannot be answered at once."""

    __slots__ = ("cancel", "counts", "response", "sample", "since_s")

    def __init__(self, counts: RequestCounts = NO_REQUESTS, since_s: float = 0.0) -> None:
        self.response: Response | None = None
        self.cancel: Callable[[], object] | None = None
        self.counts = counts
        self.sample: int | None = None
        """The number of the request among those that are timed; None until it is counted."""
        self.since_s = since_s
        """When the request began to wait, or when its response did."""


def _plain_bytes(response: Response) -> int:
    """The bytes in memory of a response: slices of files have none."""
    if isinstance(response, bytes):
        return len(response)
    return sum(len(part) for part in response if isinstance(part, bytes))


class Connection(asyncio.BufferedProtocol):
    """The protocol that asyncio drives for each client."""

    __slots__ = (
        "_blocked",
        "_fd",
        "_filled",
        "_is_paused",
        "_out",
        "_own",
        "_reading_file",
        "_send_since_s",
        "_server",
        "_slots",
        "_transport",
        "_view",
        "_waiting_bytes",
        "_waits_since_s",
        "accepted_s",
        "checked",
        "client_address",
        "client_id",
        "client_instance_id",
        "client_port",
        "client_software",
        "commits",
        "counts",
        "fetch_next",
        "fetch_sizing",
        "frame_since",
        "idle_checks",
        "is_closed",
        "listener",
        "local_address",
        "number",
        "on_close",
        "peer_broker_epoch",
        "peer_broker_id",
        "peer_nonces",
        "produce_prefix",
        "produced",
        "requests",
        "stuck_since",
        "usage",
        "usage_of_checks",
        "verified",
    )

    def __init__(self, server: Server, listener: str) -> None:
        self._server = server
        self.listener = listener
        self._own: bytearray | None = None
        self._view: memoryview = server.scratch_view
        self._filled = 0
        self._blocked = 0
        self._is_paused = False
        self._slots: deque[Slot] = deque()
        self._waiting_bytes = 0  # in responses behind one that is not ready
        # The counts of the API that is served now or was served last.
        self.counts: RequestCounts = NO_REQUESTS
        self._waits_since_s: float | None = None  # when a request came that cannot be served yet
        self._send_since_s: float | None = None  # when a response began that takes several writes
        self._out: deque[Part] = deque()
        self._fd = -1
        self._reading_file = False
        self.is_closed = False
        self.produce_prefix = 0  # position of the records' length in the last usual Produce
        # The transaction coordinator's verdicts on the Produce that is served next.
        self.verified: Mapping[Replica, VerificationGuard | KafkaError | None] = {}
        # How far a Produce of many partitions came before its turn was over.
        self.produced: Any = None
        # The checked batches of the Produce that is served next, by their position in it.
        self.checked: dict[int, CheckedBatch | KafkaError] = {}
        self.commits = 0  # OffsetCommits without a response yet
        self.fetch_sizing = FetchSizing()
        self.fetch_next: tuple[bytes, int] | None = None  # where the next Fetch starts
        self.idle_checks = 0
        self.frame_since: float | None = None
        self.stuck_since: float | None = None
        self.local_address: tuple[str, int] = ("", 0)
        self.client_address = ""
        self.client_port = 0
        self.client_id = ""  # of the last request that was not a hot one
        self.number = 0  # among the connections of this broker, from 1
        self.accepted_s = 0.0
        self.requests = 0
        self.client_software = ("unknown", "unknown")  # name and version, from ApiVersions
        # The client instance that pushes its metrics here (KIP-714).
        self.client_instance_id: UUID | None = None
        self.on_close: Callable[[], object] | None = None
        # The broker that the other side has proved to be; -1 for every other client.
        self.peer_broker_id = self.peer_broker_epoch = -1
        self.peer_nonces: tuple[bytes, bytes] | None = None  # of a proof that has begun
        self.usage = Usage()
        # A batch may inflate a thousand times: producers of ordinary ones come before unknown ones.
        self.usage_of_checks = Usage(_UNKNOWN_CHECK_S)

    # -- opening and closing ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        transport = self._transport
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        sock = transport.get_extra_info("socket")
        # With TLS the bytes on the socket are not the bytes that we write.
        if sock is not None and transport.get_extra_info("ssl_object") is None:
            self._fd = sock.fileno()
        local, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        if local:
            self.local_address = (local[0], local[1])
        if peer:
            self.client_address, self.client_port = peer[0], peer[1]
        if not self._server.admit(self):
            self.is_closed = True
            transport.abort()

    def connection_lost(self, _exc: Exception | None) -> None:
        self.is_closed = True
        self._server.forget(self)
        if self.on_close is not None:
            self.on_close()
        self._out.clear()
        for slot in self._slots:
            if slot.cancel is not None:
                slot.cancel()
        self._slots.clear()
        self._release()

    def eof_received(self) -> bool:
        return False

    def close(self, why: str, level: int = logging.INFO) -> None:
        """Close the connection; responses that were handed to the transport are still sent."""
        if not self.is_closed:
            log.log(level, "closing the connection from %s: %s", self.client_address, why)
            self.is_closed = True
            self._transport.close()

    def abort(self, why: str) -> None:
        """Close the connection at once: its responses cannot be completed any more."""
        log.warning("dropping the connection from %s: %s", self.client_address, why)
        self.is_closed = True
        self._out.clear()
        self._transport.abort()

    @property
    def is_waiting(self) -> bool:
        return bool(self._slots or self._out)

    @property
    def unsent_bytes(self) -> int:
        """The bytes in memory of responses that the socket does not take."""
        return self._transport.get_write_buffer_size() + _plain_bytes(list(self._out))

    @property
    def age_ms(self) -> int:
        """How long the connection has been open."""
        return int((self._server.now() - self.accepted_s) * 1000)

    @property
    def idle_ms(self) -> int:
        """How long nothing has arrived, in steps of the sweep."""
        return int(self.idle_checks * SWEEP_S * 1000)

    @property
    def is_blocked(self) -> bool:
        return bool(self._blocked)

    # -- requests in -----------------------------------------------------------------------

    def get_buffer(self, _sizehint: int) -> memoryview:
        if self._own is not None:
            return self._view[self._filled :]
        return self._server.receive_view

    def buffer_updated(self, nbytes: int) -> None:
        self.idle_checks = 0
        own = self._own
        if own is None:
            server = self._server
            at = self._frames(server.scratch, server.scratch_view, nbytes)
            if at < nbytes and not self.is_closed:
                self._keep(server.scratch_view, at, nbytes)
        else:
            self._filled += nbytes
            self._frames_of_own(own)
        if self._blocked and not self.is_closed:
            self._transport.pause_reading()
            self._is_paused = True
        self._server.after_responses()

    def _frames_of_own(self, own: bytearray) -> None:
        filled = self._filled
        if filled < 4:
            return
        if filled < 4 + _SIZE.unpack_from(own, 0)[0]:
            if filled == len(own):
                self._grow(own)
            return
        view = self._view
        at = self._frames(own, view, filled)
        if self.is_closed:
            return
        if at < filled:
            if at:
                self._keep(view, at, filled)
                self._server.recycle(own)
                self._server.has_grown(self)
            elif filled == len(own) and not self._blocked:
                self._grow(own)
        else:
            self._release()

    def _frames(self, buf: bytearray, view: memoryview, filled: int) -> int:
        """Serve the whole frames in buf[:filled]; return the end of the last one served."""
        at = 0
        responses: list[Response] = []
        serve, limit, slots = self._server.serve, self._server.frame_limit, self._slots
        clock, turn_s = self._server.clock, self._server.turns.first_turn_s
        began = last = clock()
        arrived = began
        if self._waits_since_s is not None:
            arrived, self._waits_since_s = self._waits_since_s, None
        # Requests of one kind that have responses at once are counted together.
        run, counted, since = self.counts, 0, began
        wrong = ""
        try:
            while filled - at >= 4 and not self._blocked:
                (size,) = _SIZE.unpack_from(buf, at)
                if not _HEADER_LEAST <= size <= limit:
                    raise WireError(f"a request of {size} bytes; 8 to {limit} are allowed")
                end = at + 4 + size
                if end > filled:
                    break
                response = serve(self, buf, view, at + 4, end)
                if self.counts is run and response is not None and not slots:
                    responses.append(response)
                    now = clock()
                else:
                    if counted < len(responses):
                        run.served(len(responses) - counted, since - arrived, last - since)
                        counted = len(responses)
                    run, since, now = self.counts, last, clock()
                    if response is None or slots:
                        since = now
                        self._waits(response, run.waits(last - arrived, now - last), now)
                    else:
                        responses.append(response)
                if now - last > STALL_S:
                    self._server.stalled(self, buf, at + 4, now - last)
                last = now
                at = end
                if now - began > turn_s and at < filled:
                    self.usage.add(now - began)
                    self.usage.continues = True
                    self.rest()
        except WireError as error:
            wrong = str(error)
        except NotYet as not_yet:
            self._waits_since_s = arrived
            self.block(not_yet.why)
        if counted < len(responses):
            run.served(len(responses) - counted, since - arrived, last - since)
        if responses:
            self.requests += len(responses)
            self._send_all(responses)
        if wrong:
            self.close(wrong)
            return filled
        if len(slots) > _MOST_WAITING:
            self.block(WAITING)
        return at

    def _waits(self, response: Response | None, sample: int, now_s: float) -> None:
        """A request has been served whose response waits: for something, or behind others."""
        self.requests += 1
        if response is not None:
            slot = Slot(self.counts, now_s)
            slot.response = response
            self._slots.append(slot)
            self._wait_bytes(response)
        elif not self._slots or (slot := self._slots[-1]).sample is not None:
            return  # it has no response, or has got it already
        slot.sample = sample

    def rest(self) -> int:
        """Let other connections have a turn before the next request is served."""
        self.block(RESTING)
        self.turns.later(self.usage, self._rested)
        return RESTING

    def _rested(self) -> None:
        self.unblock(RESTING)
        if not self._blocked & RESTING:
            self.usage.continues = False

    @property
    def turns(self) -> TurnQueue:
        return self._server.turns

    def check_turn(self) -> None:
        """Raise NotYet if others have used this iteration of the event loop.

        Brokers do not wait: a follower that fetches late leaves the ISR.
        """
        if self.peer_broker_id < 0 and self.turns.is_full:
            raise NotYet(self.rest())

    def _keep(self, view: memoryview, at: int, filled: int) -> None:
        """Move the start of a frame, or frames that cannot be served yet, to an own buffer."""
        left = filled - at
        need = 4 + _SIZE.unpack_from(view, at)[0] if left >= 4 else _FIRST_BUFFER
        if need - 4 > self._server.frame_limit:
            self.close(f"a request of {need - 4} bytes; {self._server.frame_limit} are allowed")
            return
        capacity = max(left + 1, min(need, max(_FIRST_BUFFER, 2 * left)))
        if self._server.is_short_of_memory:
            capacity = left + 1
        own = self._server.buffer(need, capacity)
        self._own, self._view = own, memoryview(own)
        self._view[:left] = view[at:filled]
        self._filled = left
        self.frame_since = self._server.now()

    def _grow(self, own: bytearray) -> None:
        if not self._server.may_grow(self):
            self.block(STARVED)
            return
        need = 4 + _SIZE.unpack_from(own, 0)[0]
        if not _HEADER_LEAST <= need - 4 <= self._server.frame_limit:
            self.close(f"a request of {need - 4} bytes")
            return
        bigger = self._server.buffer(need, min(need, 2 * len(own)))
        bigger_view = memoryview(bigger)
        bigger_view[: self._filled] = self._view[: self._filled]
        self._own, self._view = bigger, bigger_view
        self._server.recycle(own)

    def _release(self) -> None:
        if self._own is not None:
            own, self._own = self._own, None
            self._view, self._filled = self._server.scratch_view, 0
            self.frame_since = None
            self._server.recycle(own)
            self._server.has_grown(self)

    def hold(self, size: int) -> None:
        """Count a request that is copied out of the buffer, until `release`."""
        self._server.hold(size)

    def release(self, size: int) -> None:
        self._server.release(size)

    def block(self, why: int) -> None:
        """Serve no further requests until `unblock` with the same reason.

        Reading from the socket is paused only when more bytes arrive: most clients wait for their
        response anyway, and pausing costs more than many a response.
        """
        self._blocked |= why

    def unblock(self, why: int) -> None:
        if not self._blocked & why:
            return
        self._blocked &= ~why
        if self._blocked or self.is_closed:
            return
        if self._own is not None:
            self.frame_since = self._server.now()
            self._frames_of_own(self._own)
        if self._is_paused and not (self.is_blocked or self.is_closed):
            self._is_paused = False
            self._transport.resume_reading()
        self._server.after_responses()

    # -- responses out ---------------------------------------------------------------------

    def defer(self, cancel: Callable[[], object] | None = None) -> Slot:
        """Take a place in the order of responses; `cancel` is called if the client goes away."""
        slot = Slot(self.counts, self._server.clock())
        slot.cancel = cancel
        self._slots.append(slot)
        return slot

    def complete(self, slot: Slot, response: Response) -> None:
        """Fill a place; send all responses at the head of the queue that are ready."""
        slot.response, slot.cancel = response, None
        if self.is_closed:
            return
        now_s, since_s = self._server.clock(), slot.since_s
        slot.counts.has_waited(slot.sample, now_s - since_s)
        slot.since_s = now_s
        slots = self._slots
        if slots[0] is not slot:
            self._wait_bytes(response)
            return
        slots.popleft()
        ready = [response]
        while slots and (following := slots[0].response) is not None:
            behind = slots.popleft()
            behind.counts.has_queued(behind.sample, now_s - behind.since_s)
            self._waiting_bytes -= _plain_bytes(following)
            ready.append(following)
        self._send_all(ready)
        if (
            self._blocked & WAITING
            and len(slots) < _MOST_WAITING // 2
            and self._waiting_bytes < _MOST_WAITING_BYTES
        ):
            self.unblock(WAITING)

    def _wait_bytes(self, response: Response) -> None:
        """Count a response that waits for one before it; serve no more when they are large."""
        self._waiting_bytes += _plain_bytes(response)
        if self._waiting_bytes > _MOST_WAITING_BYTES:
            self.block(WAITING)

    def _send_all(self, responses: list[Response]) -> None:
        """Send responses: in one write if all are plain bytes, else through the pump."""
        if not responses:
            return
        if not self._out:
            only = responses[0]
            if len(responses) == 1 and isinstance(only, bytes):
                self._transport.write(only)
                return
            plain = [response for response in responses if isinstance(response, bytes)]
            if len(plain) == len(responses):
                self._transport.write(b"".join(plain))
                return
            self._send_since_s = self._server.clock()
        for response in responses:
            if isinstance(response, list):
                self._out.extend(response)
            else:
                self._out.append(response)
        self._pump()

    def _pump(self) -> None:
        """Send while the socket accepts bytes, gathering parts in the shared send buffer."""
        out, turns = self._out, _CHUNKS_PER_TURN
        while out and not self._blocked & SENDING and not self._reading_file:
            if turns == 0:
                self._server.call_soon(self._pump)  # other connections get a turn
                return
            turns -= 1
            filled = self._gather(self._server.send_view)
            if filled:
                self._send(self._server.send_view[:filled])
        if not out and self._send_since_s is not None and not self._blocked & SENDING:
            self.counts.has_sent(self._server.clock() - self._send_since_s)
            self._send_since_s = None

    def _gather(self, view: memoryview) -> int:
        """Move parts into `view` until it is full, or until the disk must be waited for."""
        out, filled, room = self._out, 0, len(view)
        while out and filled < room:
            part = out[0]
            if isinstance(part, Slice):
                if part.segment is not None:
                    if not self._server.checked_reads.covers(part):
                        self._reading_file = True
                        self._server.checked_reads.check(part, self._part_checked)
                        break
                    part = part._replace(segment=None)
                try:
                    count = part.file.read_now_into(
                        view[filled : min(room, filled + part.length)], part.position
                    )
                except DiskFailed as failure:
                    self.read_failed(part, failure)
                    return 0
                if count is None:
                    self._reading_file = True
                    self._server.read_in_thread(self, part, min(part.length, room))
                    break
                if count == 0:
                    self.abort("the log was truncated while a response was sent")
                    return 0
                if self._server.read_ahead:
                    self._server.read_ahead.reached(part.file, part.position)
                rest: Part = Slice(part.file, part.position + count, part.length - count)
                is_done = count == part.length
            else:
                assert isinstance(part, bytes)
                count = min(len(part), room - filled)
                view[filled : filled + count] = part[:count]
                rest = part[count:]
                is_done = not rest
            filled += count
            if is_done:
                out.popleft()
            else:
                out[0] = rest
        return filled

    def _send(self, view: memoryview) -> None:
        """Write to the socket directly while the transport has nothing queued.

        The transport would keep the buffer until it is sent, so each piece would need a new
        buffer, filled with zeros and then with records.
        """
        sent = 0
        if self._fd >= 0 and not self._transport.get_write_buffer_size():
            try:
                sent = os.write(self._fd, view)
            except BlockingIOError:
                pass
            except OSError as error:
                self.abort(f"cannot write to it: {error}")
                return
        if sent < len(view):
            self._transport.write(bytes(view[sent:]))

    def read_failed(self, part: Slice, failure: DiskFailed) -> None:
        """The disk cannot read the rest of a response.

        Other connections are not concerned: this may run while the request of another is served.
        """
        self.abort(f"the log cannot be read: {failure}")
        self._server.call_soon(self._server.on_read_failure, part.file.path, failure)

    def _part_checked(self, verdict: bool | DiskFailed) -> None:
        """A thread has checked the records that are sent next."""
        self._reading_file = False
        if self.is_closed:
            return
        part = self._out[0]
        assert isinstance(part, Slice)
        if isinstance(verdict, DiskFailed):
            self.read_failed(part, verdict)
            return
        if not verdict:
            self.abort("the records that it fetches are damaged")
            return
        self._out[0] = part._replace(segment=None)
        self._pump()

    def chunk_read(self, part: Slice, data: bytes) -> None:
        """A thread has read bytes that were not in memory; `part` is still the first to send."""
        self._reading_file = False
        if self.is_closed:
            return
        if not data:
            self.abort("the log was truncated while a response was sent")
            return
        self._out[0] = data
        if len(data) < part.length:
            rest = Slice(part.file, part.position + len(data), part.length - len(data))
            self._out.insert(1, rest)
        self._pump()

    def pause_writing(self) -> None:
        self.stuck_since = self._server.now()
        self.block(SENDING)

    def resume_writing(self) -> None:
        self.stuck_since = None
        self._blocked &= ~SENDING
        self._pump()
        if not self._blocked & SENDING:
            # Everything is sent: requests may be read again.
            self._blocked |= SENDING
            self.unblock(SENDING)
