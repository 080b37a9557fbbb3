"""One client: its session, its name, its requests, and their answers strictly in order.

    HELLO ──claim──▶ OPENING ──granted──▶ OPEN ──closeSession──▶ LEAVING
      └─ or a four-letter word

A question is answered at once if nothing of this connection waits for the disk, and otherwise in
its turn: whoever writes and then reads, reads what was written. Others need not wait for that
write, not even to be told that we are alive while the disk is slow.
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
from hightide.zookeeper.errors import (
    AuthFailed,
    MalformedRequest,
    MultiFailed,
    NoAuth,
    StorageError,
    ZooKeeperError,
)
from hightide.zookeeper.operation import Request, Result
from hightide.zookeeper.server import jute, requests
from hightide.zookeeper.server.channel import Channel
from hightide.zookeeper.server.jute import Reader
from hightide.zookeeper.server.options import ServerOptions
from hightide.zookeeper.server.sessions import Claim, Grant, Sessions
from hightide.zookeeper.server.traffic import Traffic
from hightide.zookeeper.tree import Tree
from hightide.zookeeper.watch import WatchEvent

log = logging.getLogger("hightide.coordinator")

_REPLY = struct.Struct(">iqi")

Outcome = Result | ZooKeeperError
Words = Callable[[str], str | None]
"""The answer to a four-letter word, or None if it is none."""


class State(Enum):
    HELLO = auto()
    OPENING = auto()
    OPEN = auto()
    LEAVING = auto()


class Connection(Channel):
    """A client, from the moment its socket is accepted."""

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
        self._credentials = [each.encode() for each in options.credentials]
        self._is_trusted = not self._credentials
        self._state = State.HELLO
        self._waiting = 0
        self._waiting_bytes = 0

    @property
    def tree(self) -> Tree:
        return self._committer.tree

    def accepted(self) -> None:
        self.identity = Identity((("ip", self.host),))

    def accepts_requests(self) -> bool:
        return (
            self._state in (State.HELLO, State.OPEN)
            and self._waiting < self._limits.requests
            and self._waiting_bytes < self._limits.request_bytes
        )

    def word_received(self, word: bytes) -> bool:
        answer = self._words(word.decode("latin-1")) if self._state is State.HELLO else None
        if answer is None:
            return False
        self.send_text(answer)
        self.close()
        return True

    def frame_received(self, frame: bytes) -> None:
        body = Reader(frame)
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
            self._leave(xid)
        elif not self._is_trusted and kind != requests.PING:
            self._in_turn(partial(self._refuse, xid, NoAuth(detail="authenticate first")))
        elif kind in requests.READS:
            self._in_turn(
                partial(self._answer, xid, kind, body), after_all_writes=kind == requests.SYNC
            )
        else:
            self._change(xid, kind, body)

    def on_close(self) -> None:
        self._sessions.released(self.session_id, self)

    # The session.

    def _claim(self, body: Reader) -> None:
        body.int32()  # the protocol's version, which is 0
        last_zxid, timeout_ms, session_id = body.int64(), body.int32(), body.int64()
        claim = Claim(last_zxid, timeout_ms, session_id, body.buffer() or b"")
        if session_id == 0 and self._sessions.is_full:
            log.warning("%s is refused: there are too many sessions", self.address)
            self.abort()
            return
        self.abort_after(None)
        self._state = State.OPENING
        self._sessions.grant(claim, self, partial(self._granted, body.remaining > 0))

    def _granted(self, knows_read_only: bool, grant: Grant) -> None:
        if not self.is_open:
            self._sessions.released(grant.session_id, self)
            return
        body = struct.pack(">iiq", 0, grant.timeout_ms, grant.session_id)
        # Old clients know nothing of servers that can only be read, and not this last byte.
        self.send(body + jute.buffer(grant.password) + (b"\0" if knows_read_only else b""))
        if not grant.session_id:
            self.close()
            return
        self.session_id = grant.session_id
        self._state = State.OPEN
        self.resume_reading()

    def _leave(self, xid: int) -> None:
        self._state = State.LEAVING
        self._waiting += 1

        def left(outcome: Outcome) -> None:
            if self._may_answer(outcome):
                self._reply(xid, b"")
                self.close()

        self._sessions.close(self.session_id, left)

    def watch_fired(self, event: WatchEvent, acl: bytes) -> None:
        if self.identity.may(acl, READ):
            self.send(requests.event(event))

    def lost(self) -> None:
        if self._state is not State.LEAVING:
            self.close()

    def replaced(self) -> None:
        self.close()

    # The name.

    def _authenticate(self, xid: int, body: Reader) -> None:
        body.int32()
        scheme, proof = body.optional_string(), body.buffer()
        is_proved = scheme == "digest" and proof is not None and self._prove(proof)
        if is_proved or scheme == "ip":
            self._in_turn(partial(self._reply, xid, b""))
        else:
            log.warning("%s fails to authenticate", self.address)
            self._state = State.LEAVING
            self._in_turn(partial(self._reject_credentials, xid))

    def _prove(self, proof: bytes) -> bool:
        """Whether `user:password` is good for anything here; if so, this client has that name."""
        name = "digest", digest(proof)
        if self._is_credential(proof):
            self.identity = self.identity.with_ids(("super", ""), name)
            self._is_trusted = True
        elif self._is_trusted:
            self.identity = self.identity.with_ids(name)
        return self._is_trusted and len(self.identity.ids) <= self._limits.names

    def _is_credential(self, proof: bytes) -> bool:
        # Every one is compared, so that the time taken tells nothing.
        return sum(hmac.compare_digest(proof, each) for each in self._credentials) > 0

    def _reject_credentials(self, xid: int) -> None:
        self._refuse(xid, AuthFailed())
        self.close()

    # Requests and their answers.

    def _in_turn(self, act: Callable[[], None], *, after_all_writes: bool = False) -> None:
        """Do it after what this connection waits for, or what anybody does; else now."""
        if self._waiting == 0 and not after_all_writes:
            act()
            return

        def turn(outcome: Outcome) -> None:
            if self._may_answer(outcome):
                act()

        self._waiting += 1
        self._committer.after_pending(turn)

    def _may_answer(self, outcome: Outcome) -> bool:
        """Whether there is still somebody to answer, and something true to say."""
        self._waiting -= 1
        if isinstance(outcome, StorageError):
            self.abort()
        self.resume_reading()
        return self.is_open

    def _answer(self, xid: int, kind: int, body: Reader) -> None:
        try:
            answer = requests.READS[kind](self, body)
        except ZooKeeperError as refusal:
            self._refuse(xid, refusal)
        else:
            self._reply(xid, answer)

    def _change(self, xid: int, kind: int, body: Reader) -> None:
        kinds: list[int] = []
        request: Request
        try:
            if kind == requests.MULTI:
                kinds, request = requests.read_multi(body)
            else:
                request = requests.read_change(kind, body)
        except ZooKeeperError as refusal:
            self._in_turn(partial(self._refuse, xid, refusal))
            return
        asked_at = self._loop.time()
        size = body.size

        def changed(outcome: Outcome) -> None:
            self._waiting_bytes -= size
            if not self._may_answer(outcome):
                return
            self._traffic.changed(self._loop.time() - asked_at)
            if isinstance(outcome, MultiFailed) and isinstance(outcome.cause, MalformedRequest):
                outcome = outcome.cause  # What is not understood spoils the whole.
            if kind == requests.MULTI and isinstance(outcome, list | MultiFailed):
                self._reply(xid, requests.multi_result(kinds, outcome))
            elif isinstance(outcome, ZooKeeperError):
                self._refuse(xid, outcome)
            else:
                self._reply(xid, requests.result(kind, outcome))

        self._waiting += 1
        self._waiting_bytes += size
        self._committer.submit(request, self.session_id, changed, self.identity)

    def _reply(self, xid: int, body: bytes) -> None:
        self.send(_REPLY.pack(xid, self.tree.zxid, 0) + body)

    def _refuse(self, xid: int, refusal: ZooKeeperError) -> None:
        self.send(_REPLY.pack(xid, self.tree.zxid, refusal.code))
