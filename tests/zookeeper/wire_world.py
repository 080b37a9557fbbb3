"""A server as raw connections see it: takes steps, returns what the server sent.

The server chooses session ids and zxids, so they are replaced: a session by its number, a zxid by
the write that it belongs to. The rest must be equal, frame by frame.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from tests.zookeeper import jute
from tests.zookeeper.histories import ACLS, SESSIONS, USERS, Step
from tests.zookeeper.jute import Reader, Stat, Wire, acl_list, boolean, buffer, int32, text, texts

SECOND_MS = 1000

_MULTI_CODES = {
    "create": jute.CREATE,
    "create2": jute.CREATE2,
    "delete": jute.DELETE,
    "set": jute.SET_DATA,
    "check": jute.CHECK,
    "get": jute.GET_DATA,
    "children": jute.GET_CHILDREN,
}


class WireWorld:
    """Some sessions of one server, below their own root."""

    def __init__(self, hosts: str, root: str) -> None:
        self.hosts = hosts
        self.root = root
        self.began_ms = time.time() * SECOND_MS
        self.writes: list[int] = []
        self.events = 0
        self.owners: dict[int, str] = {0: "none"}
        self.sessions = [self._new(number) for number in range(SESSIONS)]
        self._acts: dict[str, Callable[..., Any]] = {
            "authenticate": self._authenticate,
            "restart": self._restart,
            "drop": self._drop,
            "drop and watch": self._drop,
        }

    def close(self) -> None:
        for session in self.sessions:
            session.disconnect()

    def do(self, step: Step) -> Any:
        """Execute a step; return the events before its response, and the response."""
        session = self.sessions[step.session]
        if step.name in self._acts:
            return self._acts[step.name](step.session, *step.arguments)
        operation, body = self._request(step)
        try:
            reply = session.call(operation, body)
        except jute.HungUp:
            events = self._new_events(session)
            self._reconnect(step.session)
            return events, "closed"
        answer = self._answer(step.name, reply)
        return self._new_events(session), self._moment(reply.zxid), reply.code, answer

    def settle(self) -> Any:
        """Return the events of all sessions since the last call."""
        return [self._receive_events(session) for session in self.sessions]

    def _new(self, number: int) -> Wire:
        session = Wire(self.hosts)
        generation = sum(name.startswith(f"session {number}") for name in self.owners.values())
        self.owners[session.session[0]] = f"session {number}, generation {generation}"
        return session

    # Requests.

    def _request(self, step: Step) -> tuple[int, bytes]:
        name, given = step.name, step.arguments
        if name in ("multi", "multi read"):
            parts = b"".join(self._part(*part) for part in given[0])
            code = jute.MULTI if name == "multi" else jute.MULTI_READ
            return code, parts + int32(-1) + boolean(True) + int32(-1)
        path = self._path(given[0])
        match name:
            case "create" | "create2" | "delete" | "set":
                return _MULTI_CODES[name], self._change(name, *given)
            case "get":
                return jute.GET_DATA, path + boolean(given[1])
            case "exists":
                return jute.EXISTS, path + boolean(given[1])
            case "children":
                return jute.GET_CHILDREN, path + boolean(given[1])
            case "children2":
                return jute.GET_CHILDREN2, path + boolean(given[1])
            case "get acl":
                return jute.GET_ACL, path
            case "set acl":
                return jute.SET_ACL, path + acl_list(ACLS[given[1]]) + int32(given[2])
            case "sync":
                return jute.SYNC, path
        raise AssertionError(name)

    def _part(self, name: str, *given: Any) -> bytes:
        header = int32(_MULTI_CODES[name]) + boolean(False) + int32(-1)
        if name in ("get", "children"):
            return header + self._path(given[0]) + boolean(False)
        return header + self._change(name, *given)

    def _change(self, name: str, path: str | None, *given: Any) -> bytes:
        sent = self._path(path)
        if name in ("create", "create2"):
            data, acl, flags = given
            return sent + buffer(data) + acl_list(ACLS[acl]) + int32(flags)
        if name == "set":
            return sent + buffer(given[0]) + int32(given[1])
        return sent + int32(given[0])

    def _path(self, path: str | None) -> bytes:
        """Prefix a path with the root; an odd path is sent as it is."""
        return text(self.root + path if path and path.startswith("/") else path)

    # Responses.

    def _answer(self, name: str, reply: jute.Reply) -> Any:
        if reply.code:
            return reply.body
        reader = Reader(reply.body)
        answer = self._result(name, reader)
        assert reader.is_at_end(), f"{name}: {len(reader.data) - reader.position} bytes too many"
        if name in _MULTI_CODES or name == "set acl":
            self._wrote(reply.zxid, name in ("create", "create2", "delete", "set", "set acl"))
        elif name == "multi":
            # A multi that only checks changes nothing. ZooKeeper gives it a zxid all the same.
            kinds = {part[0] for part in answer}
            self._wrote(reply.zxid, bool(kinds - {"check"}) and "error" not in kinds)
        return self._named(answer)

    def _wrote(self, zxid: int, has_changed: bool) -> None:
        if has_changed and (not self.writes or zxid > self.writes[-1]):
            self.writes.append(zxid)

    def _result(self, name: str, reader: Reader) -> Any:
        match name:
            case "create" | "sync":
                return self._below(reader.text())
            case "create2":
                return self._below(reader.text()), reader.stat()
            case "set" | "exists" | "set acl":
                return reader.stat()
            case "get":
                return reader.buffer(), reader.stat()
            case "children":
                return sorted(map(str, reader.texts()))
            case "children2":
                return sorted(map(str, reader.texts())), reader.stat()
            case "get acl":
                # The ids of a client with several identities come in any order.
                return sorted(reader.acls()), reader.stat()
            case "multi" | "multi read":
                return self._parts(reader)
        return None

    def _parts(self, reader: Reader) -> list[Any]:
        names = {code: name for name, code in _MULTI_CODES.items()}
        parts: list[Any] = []
        while True:
            kind, is_last, code = reader.unpack(">i?i")
            if is_last:
                return parts
            if kind == -1:
                parts.append(("error", code, reader.int32()))
            else:
                parts.append((names[kind], code, self._result(names[kind], reader)))

    def _below(self, path: str | None) -> str:
        return (path or "").removeprefix(self.root)

    # Names for values that the server chooses.

    def _named(self, value: Any) -> Any:
        if isinstance(value, Stat):
            now_ms = time.time() * SECOND_MS
            earliest, latest = self.began_ms - SECOND_MS, now_ms + SECOND_MS
            return {
                **value._asdict(),
                "owner": self.owners.get(value.owner, value.owner),
                "ctime": earliest <= value.ctime <= latest,
                "mtime": value.ctime <= value.mtime <= latest,
                "czxid": self._exactly(value.czxid),
                "mzxid": self._exactly(value.mzxid),
                "pzxid": self._exactly(value.pzxid),
            }
        if type(value) in (tuple, list):
            return [self._named(item) for item in value]
        return value

    def _exactly(self, zxid: int) -> str:
        position = bisect_right(self.writes, zxid)
        is_known = position and self.writes[position - 1] == zxid
        return f"write {position}" if is_known else f"no write of ours, after {position}"

    def _moment(self, zxid: int) -> str:
        """Return the last write at `zxid`. Refused writes may take a zxid as well."""
        return f"after write {bisect_right(self.writes, zxid)}"

    def _new_events(self, session: Wire) -> list[Any]:
        events, session.events = session.events, []
        self.events += len(events)
        return [(event.kind, event.state, self._below(event.path), event.zxid) for event in events]

    def _receive_events(self, session: Wire) -> list[Any]:
        session.ping()
        return self._new_events(session)

    # Changes of sessions.

    def _authenticate(self, number: int, user: str) -> Any:
        session = self.sessions[number]
        reply = session.authenticate("digest", USERS[user])
        return self._new_events(session), reply.code, reply.body

    def _restart(self, number: int) -> Any:
        """End the session. The order in which its ephemerals are deleted is not defined."""
        before = self.settle()
        reply = self.sessions[number].close()
        own = sorted(self._new_events(self.sessions[number]))
        self._wrote(reply.zxid, True)
        after = [
            sorted(self._receive_events(session))
            for session in self.sessions
            if session is not self.sessions[number]
        ]
        self.sessions[number] = self._new(number)
        return before, reply.code, reply.body, own, after

    def _drop(self, number: int, back: int = 0, watches: Any = ()) -> Any:
        """Break the connection; resume the session, and perhaps its watches."""
        events = self._receive_events(self.sessions[number])
        self._reconnect(number)
        if not watches:
            return events
        session = self.sessions[number]
        seen = self.writes[-1 - back] if back < len(self.writes) else 0
        lists = b"".join(texts([self.root + path for path in paths]) for paths in watches)
        reply = session.call(jute.SET_WATCHES, jute.int64(seen) + lists, xid=jute.SET_WATCHES_XID)
        # Both servers answer in the order in which the client named the watches.
        return events, self._new_events(session), reply.code, reply.body

    def _reconnect(self, number: int) -> None:
        old = self.sessions[number]
        old.disconnect()
        last = self.writes[-1] if self.writes else 0
        new = Wire(self.hosts, old.session, last_zxid=last)
        assert new.session == old.session, "the session was lost with its connection"
        self.sessions[number] = new
