"""Frames over a socket, with bounded input and output.

All output goes through one list, so frames leave in the order in which they were sent; the list is
written once per iteration of the event loop. The server stops reading from a client that has too
many pending requests, or that does not read its responses, until it has caught up. If watch events
for a client exceed the output limit, the connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import cast

from hightide.zookeeper.server.options import MAX_FRAME_BYTES, Limits
from hightide.zookeeper.server.traffic import Traffic
from hightide.zookeeper.zookeeper_errors import MalformedRequest

log = logging.getLogger("hightide.zookeeper")

_LENGTH = struct.Struct(">i")
_PIECE_BYTES = 1024 * 1024
"""Output that may be collected before the client must have read some of it."""
_INPUT_BYTES = 256 * 1024
"""Input past which no more is read until the connection has had a turn."""
_LINGER_S = 2.0
"""How long a client may take to read its last response before the connection is aborted."""


class Channel(asyncio.Protocol):
    """One socket. The subclass interprets the frames."""

    def __init__(self, limits: Limits, traffic: Traffic) -> None:
        self.host = ""
        self.address = ""
        self.session_id = 0
        self.received = self.sent = 0
        self.used_s = 0.0
        self.counted_bytes = 0
        self.pending_bytes = 0
        """The size of the requests that wait."""
        self.is_open = True
        self._limits = limits
        self._traffic = traffic
        self._loop = asyncio.get_running_loop()
        self._input = bytearray()
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._is_paused = self._is_full = self._is_ready = False
        self._timer: asyncio.TimerHandle | None = None

    # Implemented by the subclass.

    def accepted(self) -> None:
        """The connection was accepted."""

    def frame_received(self, frame: bytes) -> None:
        """Handle a complete frame; MalformedRequest closes the connection."""
        raise NotImplementedError

    def word_received(self, word: bytes) -> bool:
        """Handle four bytes that are no valid frame length. Return True if they are a request."""
        raise NotImplementedError

    def accepts_requests(self) -> bool:
        """Return whether the client may send more requests."""
        raise NotImplementedError

    def on_close(self) -> None:
        """The connection is closed for input and output."""

    # Used by the subclass.

    @property
    def is_read_paused(self) -> bool:
        """Whether reading is paused by the server's own load, so that pings may be unread."""
        return (self._is_paused or self._is_ready) and not self._is_full

    def send(self, frame: bytes) -> None:
        """Append a frame, given without its length, to the output."""
        self.sent += 1
        self._traffic.sent += 1
        self._append(_LENGTH.pack(len(frame)) + frame)

    def send_text(self, text: str) -> None:
        self._append(text.encode())

    def _append(self, data: bytes) -> None:
        if not self.is_open:
            return
        if not self._output:
            self._loop.call_soon(self._write)
        self._output.append(data)
        self._output_bytes += len(data)
        if self._output_bytes > self._limits.output_bytes:
            self._close_slow_reader()

    def close(self) -> None:
        """Write the pending output, then close."""
        if self.is_open:
            self._write()
        if self.is_open:
            self._end()
            self._transport.close()
            self.abort_after(_LINGER_S)

    def abort(self) -> None:
        """Close at once and drop the pending output."""
        if self.is_open:
            self._end()
        self._transport.abort()

    def abort_after(self, seconds: float | None) -> None:
        """Abort the connection after this time; replaces the earlier timer. None cancels it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self.abort)

    def resume_reading(self) -> None:
        """Resume reading if it was paused and the reason is gone."""
        if self._is_paused and self._may_read():
            self._resume_transport()
            self._next_turn()

    @property
    def input_bytes(self) -> int:
        return len(self._input)

    @property
    def held_bytes(self) -> int:
        """The memory that this connection's input, requests and output take."""
        if not self.is_open:
            return 0
        unsent = self._output_bytes + self._transport.get_write_buffer_size()
        return len(self._input) + self.pending_bytes + unsent

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self.address = f"{self.host}:{port}"
        if self._traffic.admit(self):
            self._transport.set_write_buffer_limits(high=_PIECE_BYTES)
            self.abort_after(self._limits.handshake_s)
            self.accepted()
        else:
            log.warning("refused a connection from %s: too many connections", self.address)
            self.abort()

    def data_received(self, data: bytes) -> None:
        self._input += data
        if len(self._input) > _INPUT_BYTES:
            self._pause_transport()
        self._traffic.count_bytes(self)
        if self.is_open:
            self._next_turn()

    def eof_received(self) -> None:
        if self._is_ready:
            self.serve()
            self._is_ready = False
        self._write()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        if self.is_open:
            self._end()
        self.abort_after(None)
        self._traffic.leave(self)

    def _end(self) -> None:
        self.abort_after(None)
        self.is_open = False
        self._input.clear()
        self._output.clear()
        self.on_close()

    def _pause_transport(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume_transport(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def _next_turn(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            self._traffic.ready(self)

    def serve(self) -> bool:
        """Handle complete frames while the client may send more requests, for one turn.

        Return whether none is left that could be handled.
        """
        self._is_ready = False
        position = 0
        turn_ends_at = self._loop.time() + self._limits.turn_s
        is_turn_over = False
        while self._may_read() and len(self._input) >= position + 4:
            if position and self._loop.time() > turn_ends_at:
                is_turn_over = True
                break
            word = bytes(self._input[position : position + 4])
            (length,) = _LENGTH.unpack(word)
            if not 0 <= length <= MAX_FRAME_BYTES:
                if not self.word_received(word):
                    log.warning(
                        "closed the connection of %s: invalid frame length %d", self.address, length
                    )
                    self.abort()
                return True
            end = position + 4 + length
            if len(self._input) < end:
                break
            frame = bytes(self._input[position + 4 : end])
            position = end
            self.received += 1
            self._traffic.received += 1
            try:
                self.frame_received(frame)
            except MalformedRequest as error:
                log.warning("closed the connection of %s: %s", self.address, error)
                self.abort()
        if self.is_open:
            del self._input[:position]
            self._is_ready = is_turn_over
            if is_turn_over or not self._may_read():
                self._pause_transport()
            else:
                self._resume_transport()
            self._traffic.count_bytes(self)
        return not is_turn_over

    def _may_read(self) -> bool:
        has_room = self._output_bytes < _PIECE_BYTES and not self._is_full
        return self.is_open and has_room and self.accepts_requests()

    def _write(self) -> None:
        if not self._output:
            return
        data = b"".join(self._output)
        self._output.clear()
        self._output_bytes = 0
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > self._limits.output_bytes:
            self._close_slow_reader()
            return
        self._traffic.count_bytes(self)
        self.resume_reading()

    def _close_slow_reader(self) -> None:
        log.warning("closed the connection of %s: it does not read its responses", self.address)
        self.abort()
