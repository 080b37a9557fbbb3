"""Frames over a socket: whole ones in, a list of them out, and neither without bound.

All that is sent goes through one list, so it arrives in the order in which it came about; the list
is written once per turn of the event loop. A client that asks faster than it is answered, or than
it reads the answers, is not read any further until it has caught up; what comes to it unasked and
piles up closes the connection.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import cast

from hightide.zookeeper.errors import MalformedRequest
from hightide.zookeeper.server.options import MAX_FRAME_BYTES, Limits
from hightide.zookeeper.server.traffic import Traffic

log = logging.getLogger("hightide.coordinator")

_LENGTH = struct.Struct(">i")
_PIECE_BYTES = 1024 * 1024
"""Output that may be put together before the client must have read some of it."""
_FAREWELL_S = 2.0
"""How long a closed connection may take to read what it was still sent."""


class Channel(asyncio.Protocol):
    """One socket. What the frames mean is up to the subclass."""

    def __init__(self, limits: Limits, traffic: Traffic) -> None:
        self.host = ""
        self.address = ""
        self.session_id = 0
        self.received = self.sent = 0
        self.is_open = True
        self._limits = limits
        self._traffic = traffic
        self._loop = asyncio.get_running_loop()
        self._input = bytearray()
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._is_stalled = self._is_full = False
        self._timer: asyncio.TimerHandle | None = None

    # For the subclass to say.

    def accepted(self) -> None:
        """The client has been let in."""

    def frame_received(self, frame: bytes) -> None:
        """A whole frame; MalformedRequest closes the connection."""
        raise NotImplementedError

    def word_received(self, word: bytes) -> bool:
        """Four bytes where a frame's length should be. True if that was the whole request."""
        raise NotImplementedError

    def accepts_requests(self) -> bool:
        """Whether the client may be read further."""
        raise NotImplementedError

    def on_close(self) -> None:
        """Nothing comes or goes any more."""

    # For the subclass to use.

    @property
    def is_read_paused(self) -> bool:
        """Whether the client may have spoken, but for our own sake we do not listen."""
        return self._is_stalled and not self._is_full

    def send(self, frame: bytes) -> None:
        """Put a frame, without its length, after all that was sent before."""
        self.sent += 1
        self._traffic.sent += 1
        self._put(_LENGTH.pack(len(frame)) + frame)

    def send_text(self, text: str) -> None:
        self._put(text.encode())

    def _put(self, data: bytes) -> None:
        if not self.is_open:
            return
        if not self._output:
            self._loop.call_soon(self._write)
        self._output.append(data)
        self._output_bytes += len(data)
        if self._output_bytes > self._limits.output_bytes:
            self._is_not_reading()

    def close(self) -> None:
        """Send what is there, then close."""
        if self.is_open:
            self._write()
        if self.is_open:
            self._end()
            self._transport.close()
            self.abort_after(_FAREWELL_S)

    def abort(self) -> None:
        """Close without another word."""
        if self.is_open:
            self._end()
        self._transport.abort()

    def abort_after(self, seconds: float | None) -> None:
        """Cut the connection after this time, unless told otherwise before; None: never."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self.abort)

    def resume_reading(self) -> None:
        """Read the client further, if that had to stop and need not any more."""
        if self._is_stalled and self._may_read():
            self._is_stalled = False
            self._transport.resume_reading()
            self._loop.call_soon(self._read)

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self.address = f"{self.host}:{port}"
        if self._traffic.admit(self):
            self._transport.set_write_buffer_limits(high=_PIECE_BYTES)
            self.abort_after(self._limits.handshake_s)
            self.accepted()
        else:
            log.warning("%s is refused: there are too many connections", self.address)
            self.abort()

    def data_received(self, data: bytes) -> None:
        self._input += data
        self._read()

    def eof_received(self) -> None:
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

    def _read(self) -> None:
        """Take every whole frame, as long as the client may ask more."""
        position = 0
        while self._may_read() and len(self._input) >= position + 4:
            word = bytes(self._input[position : position + 4])
            (length,) = _LENGTH.unpack(word)
            if not 0 <= length <= MAX_FRAME_BYTES:
                if not self.word_received(word):
                    log.warning("%s sends a frame of %d bytes: closed", self.address, length)
                    self.abort()
                return
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
                log.warning("%s does not speak the protocol: %s", self.address, error)
                self.abort()
        if self.is_open:
            del self._input[:position]
            if not self._may_read():
                self._is_stalled = True
                self._transport.pause_reading()

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
            self._is_not_reading()
        else:
            self.resume_reading()

    def _is_not_reading(self) -> None:
        log.warning("%s does not read what it is sent: closed", self.address)
        self.abort()
