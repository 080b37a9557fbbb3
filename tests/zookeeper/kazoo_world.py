"""A server as kazoo sees it: the same steps as in `wire_world`, through a client library.

Events and responses are recorded in the order in which kazoo's connection reads them. kazoo's two
worker threads, one for events and one for responses, would lose that order.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import _CONNECTION_DROP
from kazoo.protocol.states import Callback, KazooState, WatchedEvent, ZnodeStat
from kazoo.security import ACL, Id

from tests.zookeeper.histories import ACLS, SESSIONS, USERS, Step

PATIENCE_S = 30.0


class InOrder(SequentialThreadingHandler):
    """A handler that calls watches in the thread that reads them."""

    def dispatch_callback(self, callback: Callback) -> None:
        callback.func(*callback.args)


def acls(name: str) -> list[ACL]:
    return [ACL(one.permissions, Id(one.scheme, one.identity)) for one in ACLS[name] or ()]


class KazooWorld:
    """Some clients of one server, below their own chroot."""

    def __init__(self, hosts: str, chroot: str) -> None:
        self.hosts = hosts + chroot
        self.events = 0
        self.writes: list[int] = []
        self.owners: dict[int, str] = {0: "none"}
        self._events: list[list[Any]] = [[] for _ in range(SESSIONS)]
        self._watches = [self._watch(seen) for seen in self._events]
        self.sessions = [self._new(number) for number in range(SESSIONS)]
        self._acts: dict[str, Callable[..., Any]] = {
            "authenticate": self._authenticate,
            "restart": self._restart,
            "drop": self._drop,
        }

    def close(self) -> None:
        for client in self.sessions:
            client.stop()
            client.close()

    def do(self, step: Step) -> Any:
        if step.name in self._acts:
            return self._acts[step.name](step.session, *step.arguments)
        client = self.sessions[step.session]
        try:
            answer = self._request(client, step)
        except KazooException as refusal:
            return self._new_events(step.session), type(refusal).__name__
        if step.name == "multi":
            # A multi that only checks changes nothing. ZooKeeper gives it a zxid all the same.
            is_refused = any(isinstance(part, Exception) for part in answer)
            is_change = not is_refused and any(part[0] != "check" for part in step.arguments[0])
        else:
            is_change = step.name in ("create", "create2", "delete", "set", "set acl")
        if is_change:
            self._wrote(client)
        return self._new_events(step.session), self._named(answer)

    def settle(self) -> Any:
        for client in self.sessions:
            client.sync("/")
        return [self._new_events(number) for number in range(SESSIONS)]

    def _request(self, client: KazooClient, step: Step) -> Any:
        given = step.arguments
        if step.name == "multi":
            return self._multi(client, given[0])
        path, watch = given[0], self._watches[step.session]
        match step.name:
            case "create" | "create2":
                return client.create(
                    path,
                    given[1],
                    acls(given[2]),
                    ephemeral=bool(given[3] & 1),
                    sequence=bool(given[3] & 2),
                    include_data=step.name == "create2",
                )
            case "delete":
                return client.delete(path, given[1])
            case "set":
                return client.set(path, given[1], given[2])
            case "get":
                return client.get(path, watch if given[1] else None)
            case "exists":
                return client.exists(path, watch if given[1] else None)
            case "children" | "children2":
                with_stat = step.name == "children2"
                found = client.get_children(path, watch if given[1] else None, with_stat)
                return (sorted(found[0]), found[1]) if with_stat else sorted(found)
            case "get acl":
                # The ids of a client with several identities come in any order.
                entries, stat = client.get_acls(path)
                return sorted(entries), stat
            case "set acl":
                return client.set_acls(path, acls(given[1]), given[2])
            case "sync":
                return client.sync(path)
        raise AssertionError(step.name)

    def _multi(self, client: KazooClient, parts: Any) -> list[Any]:
        request = client.transaction()
        for name, path, *given in parts:
            match name:
                case "create" | "create2":
                    data, acl, flags = given
                    ephemeral, sequence = bool(flags & 1), bool(flags & 2)
                    request.create(path, data or b"", acls(acl), ephemeral, sequence)
                case "delete":
                    request.delete(path, given[0])
                case "set":
                    request.set_data(path, given[0] or b"", given[1])
                case "check":
                    request.check(path, given[0])
        return list(request.commit())

    # Names for values that the server chooses.

    def _named(self, value: Any) -> Any:
        if isinstance(value, ZnodeStat):
            fields = value._asdict()
            del fields["ctime"], fields["mtime"]
            zxids = {name: self._exactly(fields[name]) for name in ("czxid", "mzxid", "pzxid")}
            owner = self.owners.get(value.ephemeralOwner, "unknown")
            return {**fields, **zxids, "ephemeralOwner": owner}
        if isinstance(value, Exception):
            return type(value).__name__
        if isinstance(value, (list, tuple)):
            return [self._named(item) for item in value]
        return value

    def _wrote(self, client: KazooClient) -> None:
        if not self.writes or client.last_zxid > self.writes[-1]:
            self.writes.append(client.last_zxid)

    def _exactly(self, zxid: int) -> str:
        position = bisect_right(self.writes, zxid)
        is_known = position and self.writes[position - 1] == zxid
        return f"write {position}" if is_known else f"no write of ours, after {position}"

    def _watch(self, seen: list[Any]) -> Callable[[WatchedEvent], None]:
        return lambda event: seen.append((event.type, event.state, event.path))

    def _new_events(self, number: int) -> list[Any]:
        seen = self._events[number]
        events = list(seen)
        del seen[: len(events)]
        self.events += len(events)
        return events

    # Changes of sessions.

    def _new(self, number: int) -> KazooClient:
        retry = {"max_tries": -1, "delay": 0.01, "max_delay": 0.1}
        client = KazooClient(self.hosts, timeout=20, handler=InOrder(), connection_retry=retry)
        client.start(PATIENCE_S)
        self._name(number, client)
        return client

    def _name(self, number: int, client: KazooClient) -> None:
        generation = sum(name.startswith(f"session {number}") for name in self.owners.values())
        session_id, _ = client.client_id
        self.owners[session_id] = f"session {number}, generation {generation}"

    def _authenticate(self, number: int, user: str) -> Any:
        self.sessions[number].add_auth("digest", USERS[user].decode())
        return self._new_events(number)

    def _restart(self, number: int) -> Any:
        """End the session. The order in which its ephemerals are deleted is not defined."""
        before = self.settle()
        client = self.sessions[number]
        client.stop()
        client.close()
        self.sessions[number] = self._new(number)
        after = [sorted(map(str, events)) for events in self.settle()]
        return before, after

    def _drop(self, number: int) -> Any:
        """Break the connection. kazoo calls its watches for that, and drops them."""
        client, before = self.sessions[number], self.settle()
        is_away, is_back = threading.Event(), threading.Event()

        def listen(state: str) -> None:
            if state == KazooState.SUSPENDED:
                is_away.set()
            elif is_away.is_set():
                is_back.set()

        session = client.client_id
        client.add_listener(listen)
        client._call(_CONNECTION_DROP, client.handler.async_result())
        assert is_away.wait(PATIENCE_S)
        assert is_back.wait(PATIENCE_S)
        client.remove_listener(listen)
        assert client.client_id == session, "the session was lost with its connection"
        return before, sorted(map(str, self._new_events(number)))
