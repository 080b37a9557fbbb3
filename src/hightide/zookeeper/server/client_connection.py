"""One client connection: its session, its identity, its requests, and responses in order.

    HELLO ──connect request──▶ OPENING ──session granted──▶ OPEN ──closeSession──▶ CLOSING
      └─ or a four-letter word

If the server has credentials, a client gets the id of its new session at once, but the session is
opened when the client has authenticated: before that, a connection leaves no trace on the disk, and
is closed after a short time.

A read is answered at once if no write of this connection waits for the disk, and otherwise after
those writes: a client reads its own writes. Other connections do not wait for that write, so they
get their reads and pings answered while the disk is slow.
"""

from __future__ import annotations

import hmac
import logging
import struct
from collections.abc import Callable
from enum import Enum, auto
from functools import partial

from hightide.zookeeper.acl import READ, Identity, digest
from hightide.zookeeper.committer import Committer
from hightide.zookeeper.operation import Request, Result
from hightide.zookeeper.server import jute, requests
from hightide.zookeeper.server.channel import Channel
from hightide.zookeeper.server.jute import Reader
from hightide.zookeeper.server.options import ServerOptions
from hightide.zookeeper.server.sessions import Claim, Grant, Sessions
from hightide.zookeeper.server.traffic import Traffic, is_loopback
from hightide.zookeeper.tree import Tree
from hightide.zookeeper.watch import WatchEvent
from hightide.zookeeper.zookeeper_errors import (
    AuthFailed,
    MalformedRequest,
    MultiFailed,
    NoAuth,
    StorageError,
    ZooKeeperError,
)

log = logging.getLogger("hightide.zookeeper")

_REPLY = struct.Struct(">iqi")
_OPERATION_BYTES = 256
"""What an operation of a multi takes beside its fields."""

Outcome = Result | ZooKeeperError
Words = Callable[[str, str], str | None]
"""Returns the response to a four-letter word from a host, or None if the word is unknown."""


class State(Enum):
    HELLO = auto()
    OPENING = auto()
    OPEN = auto()
    CLOSING = auto()


class Connection(Channel):
    """A client connection, from accept to close."""

    def __init__(
        self,
        options: ServerOptions,
        committer: Committer,
        sessions: Sessions,
        traffic: Traffic,
        words: Words,
    ) -> None:
        super().__init__(options.limits, traffic)
        self.identity = Identity(())
        self._committer = committer
        self._sessions = sessions
        self._words = words
        self._credentials = [line.encode() for line in options.credentials]
        self._is_authenticated = not self._credentials
        self._is_stranger = True
        """Whether the client is neither on this host nor authenticated."""
        self._quota = options.quota
        self._offer: Grant | None = None
        self._state = State.HELLO
        self._pending = 0

    @property
    def tree(self) -> Tree:
        return self._committer.tree

    @property
    def response_bytes(self) -> int:
        return self._limits.response_bytes

    @property
    def operations(self) -> int:
        return self._limits.operations

    def accepted(self) -> None:
        self._is_stranger = not is_loopback(self.host)
        quota = self._quota.for_strangers() if self._is_stranger else self._quota
        self.identity = Identity((("ip", self.host),), quota)

    def accepts_requests(self) -> bool:
        return (
            self._state in (State.HELLO, State.OPEN)
            and self._pending < self._limits.requests
            and (not self._pending or self._committer.queued < self._limits.outstanding)
            and self.pending_bytes < self._limits.request_bytes
        )

    def word_received(self, word: bytes) -> bool:
        is_first = self._state is State.HELLO
        answer = self._words(word.decode("latin-1"), self.host) if is_first else None
        if answer is None:
            return False
        self.send_text(answer)
        self.close()
        return True

    def frame_received(self, frame: bytes) -> None:
        body = Reader(frame, self._limits.items)
        if self._state is State.HELLO:
            self._claim(body)
            return
        self._sessions.touched(self.session_id)
        xid, kind = body.int32(), body.int32()
        if kind == requests.PING:
            xid = requests.PING_XID
        if kind == requests.AUTH:
            self._authenticate(xid, body)
        elif kind == requests.CLOSE:
            self._close_session(xid)
        elif not self._is_authenticated and kind != requests.PING:
            self._after_writes(
                partial(self._reply_error, xid, NoAuth(detail="authentication required"))
            )
        elif kind in requests.READS:
            self._after_writes(
                partial(self._execute_read, xid, kind, body),
                after_all_writes=kind == requests.SYNC,
                size=body.size,
            )
        else:
            self._submit_write(xid, kind, body)

    def on_close(self) -> None:
        self._sessions.released(self.session_id, self)

    # The session.

    def _claim(self, body: Reader) -> None:
        body.int32()  # the protocol version, which is 0
        last_zxid, timeout_ms, session_id = body.int64(), body.int32(), body.int64()
        claim = Claim(last_zxid, timeout_ms, session_id, body.buffer() or b"")
        if session_id == 0 and self._sessions.is_full(self._is_stranger):
            log.warning("refused a session for %s: too many sessions", self.address)
            self.abort()
            return
        self._state = State.OPENING
        knows_read_only = body.remaining > 0
        if self._is_authenticated:
            self.abort_after(None)
        elif session_id == 0:
            self._offer = self._sessions.offer(claim)
            self._granted(knows_read_only, self._offer)
            return
        self._sessions.grant(claim, self, partial(self._granted, knows_read_only))

    def _granted(self, knows_read_only: bool, grant: Grant) -> None:
        if not self.is_open:
            self._sessions.released(grant.session_id, self)
            return
        body = struct.pack(">iiq", 0, grant.timeout_ms, grant.session_id)
        # Old clients do not know read-only servers, and do not expect this last byte.
        self.send(body + jute.buffer(grant.password) + (b"\0" if knows_read_only else b""))
        if not grant.session_id:
            self.close()
            return
        self.session_id = grant.session_id
        self._state = State.OPEN
        self.resume_reading()

    def _close_session(self, xid: int) -> None:
        self._state = State.CLOSING
        if self._offer is not None:
            self._reply(xid, b"")
            self.close()
            return
        self._pending += 1

        def closed(outcome: Outcome) -> None:
            if self._may_answer(outcome):
                self._reply(xid, b"")
                self.close()

        self._sessions.close(self.session_id, closed)

    def watch_fired(self, event: WatchEvent, acl: bytes) -> None:
        if self.identity.may(acl, READ):
            self.send(requests.event(event))

    def lost(self) -> None:
        if self._state is not State.CLOSING:
            self.close()

    def replaced(self) -> None:
        self.close()

    # Authentication.

    def _authenticate(self, xid: int, body: Reader) -> None:
        body.int32()
        scheme, proof = body.optional_string(), body.buffer()
        is_accepted = scheme == "digest" and proof is not None and self._add_identity(proof)
        if is_accepted and self._offer is not None:
            self._open_offered(xid, self._offer)
        elif is_accepted or scheme == "ip":
            self._after_writes(partial(self._reply, xid, b""))
        else:
            log.warning("authentication of %s failed", self.address)
            self._state = State.CLOSING
            self._after_writes(partial(self._reject_credentials, xid))

    def _open_offered(self, xid: int, offer: Grant) -> None:
        if self._sessions.is_full(self._is_stranger):
            log.warning("refused a session for %s: too many sessions", self.address)
            self.abort()
            return

        def opened(grant: Grant) -> None:
            self._offer = None
            if not self.is_open:
                self._sessions.released(grant.session_id, self)
                return
            self._reply(xid, b"")
            self._state = State.OPEN
            self.resume_reading()

        self._state = State.OPENING
        self._sessions.begin(offer, self, opened)

    def _add_identity(self, proof: bytes) -> bool:
        """Check `user:password` and add it to the identity; return whether it is accepted."""
        digest_id = "digest", digest(proof)
        if len(digest_id[1]) > self._limits.identity_bytes:
            return False
        if self._is_credential(proof):
            self._is_stranger = False
            trusted = self.identity.with_quota(self._quota)
            self.identity = trusted.with_ids(("super", ""), digest_id)
            self._is_authenticated = True
            self.abort_after(None)
        elif self._is_authenticated:
            self.identity = self.identity.with_ids(digest_id)
        return self._is_authenticated and len(self.identity.ids) <= self._limits.identities

    def _is_credential(self, proof: bytes) -> bool:
        # Compare with all of them, so that the time taken reveals nothing.
        return sum(hmac.compare_digest(proof, line) for line in self._credentials) > 0

    def _reject_credentials(self, xid: int) -> None:
        self._reply_error(xid, AuthFailed())
        self.close()

    # Requests and responses.

    def _after_writes(
        self, act: Callable[[], None], *, after_all_writes: bool = False, size: int = 0
    ) -> None:
        """Call `act` after the pending writes of this connection, or of all connections; or now."""
        if self._pending == 0 and not after_all_writes and not self._committer.is_applying:
            act()
            return

        def finished(outcome: Outcome) -> None:
            if self._may_answer(outcome, size):
                act()

        self._pending += 1
        self.pending_bytes += size
        self._committer.after_pending(finished, None if after_all_writes else self.session_id)

    def _may_answer(self, outcome: Outcome, size: int = 0) -> bool:
        """Count a finished request of this size; return whether a response can be sent."""
        self._pending -= 1
        self.pending_bytes -= size
        if isinstance(outcome, StorageError):
            self.abort()
        self.resume_reading()
        return self.is_open

    def _execute_read(self, xid: int, kind: int, body: Reader) -> None:
        try:
            answer = requests.READS[kind](self, body)
        except ZooKeeperError as refusal:
            self._reply_error(xid, refusal)
        else:
            self._reply(xid, answer)

    def _submit_write(self, xid: int, kind: int, body: Reader) -> None:
        kinds: list[int] = []
        request: Request
        try:
            if kind == requests.MULTI:
                kinds, request = requests.decode_multi(body, self._limits.operations)
            else:
                request = requests.decode_write(kind, body)
        except ZooKeeperError as refusal:
            self._after_writes(partial(self._reply_error, xid, refusal))
            return
        received_at = self._loop.time()
        size = body.size + _OPERATION_BYTES * len(kinds)

        def written(outcome: Outcome) -> None:
            if not self._may_answer(outcome, size):
                return
            self._traffic.write_answered(self._loop.time() - received_at)
            if isinstance(outcome, MultiFailed) and isinstance(outcome.cause, MalformedRequest):
                outcome = outcome.cause  # A malformed operation fails the whole request.
            if kind == requests.MULTI and isinstance(outcome, list | MultiFailed):
                self._reply(xid, requests.multi_result(kinds, outcome))
            elif isinstance(outcome, ZooKeeperError):
                self._reply_error(xid, outcome)
            else:
                self._reply(xid, requests.result(kind, outcome))

        self._pending += 1
        self.pending_bytes += size
        self._committer.submit(request, self.session_id, written, self.identity)

    def _reply(self, xid: int, body: bytes) -> None:
        self.send(_REPLY.pack(xid, self.tree.zxid, 0) + body)

    def _reply_error(self, xid: int, refusal: ZooKeeperError) -> None:
        self.send(_REPLY.pack(xid, self.tree.zxid, refusal.code))
