"""Members of a consumer group that do not fetch, all in one thread.

They use the classic protocol as clients do: they get an id, join, the leader assigns the
partitions, and a heartbeat response asks them to join again. They do not fetch, because fifty real
clients on a small machine would measure themselves.
"""

import random
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from bench.harness.broker import BrokerFailure
from bench.harness.wire import Answer

JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
# The last versions before flexible ones.
VERSIONS = {JOIN_GROUP: 5, HEARTBEAT: 3, LEAVE_GROUP: 2, SYNC_GROUP: 3}
ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 22, 27, 79
JOIN_AGAIN = (ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS)
SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS = 45_000, 60_000
HEARTBEAT_S = 0.05
NO_INSTANCE = struct.pack(">h", -1)
PATIENCE_S = 30.0

Each = TypeVar("Each")


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def listed(items: Iterable[bytes]) -> bytes:
    made = list(items)
    return struct.pack(">i", len(made)) + b"".join(made)


def read_list(answer: Answer, read: Callable[[], Each]) -> list[Each]:
    return [read() for _ in range(answer.i32())]


def read_sized(answer: Answer) -> bytes:
    length = answer.i32()
    start = answer.skip(length)
    return answer.data[start : answer.at]


@dataclass(slots=True)
class Member:
    """The state machine of one member; the group does the input and output."""

    group: str
    topic: str
    partitions: int
    connection: socket.socket
    id: str = ""
    generation: int = -1
    share: frozenset[int] | None = None
    """Its partitions, while its generation lasts."""
    asked_at: float = 0.0
    """When it last sent JoinGroup."""
    heartbeat_at: float = 0.0
    _asked: int = -1
    """The request in flight, if there is one."""
    _awaited: int = 0
    _unread: bytearray = field(default_factory=bytearray)

    def say(self, api_key: int, body: bytes) -> None:
        self._asked = api_key
        head = struct.pack(">hhi", api_key, VERSIONS[api_key], 0) + text("bench")
        self.connection.sendall(sized(head + body))

    def join(self) -> None:
        self.share = None
        self.asked_at = time.perf_counter()
        subscription = struct.pack(">h", 0) + listed([text(self.topic)]) + sized(b"")
        timeouts = struct.pack(">ii", SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS)
        who = text(self.group) + timeouts + text(self.id) + NO_INSTANCE
        protocols = listed([text("range") + sized(subscription)])
        self.say(JOIN_GROUP, who + text("consumer") + protocols)

    def leave(self) -> None:
        self._awaited = 2 if self._asked >= 0 else 1
        self.say(LEAVE_GROUP, text(self.group) + text(self.id))

    def close(self) -> None:
        """After it has left, read the remaining responses: an early close might undo it."""
        self.connection.settimeout(PATIENCE_S)
        with self.connection, suppress(OSError, BrokerFailure):
            while self._awaited:
                self._receive()
                while self._next_answer() is not None:
                    self._awaited -= 1

    def beat(self, now: float) -> None:
        """Send a heartbeat if one is due and no request is in flight."""
        if self._asked < 0 and now >= self.heartbeat_at:
            self.heartbeat_at = now + HEARTBEAT_S
            self.say(HEARTBEAT, self._as_member() + NO_INSTANCE)

    def hear(self) -> None:
        """Read the available bytes, and handle a complete response."""
        self._receive()
        answer = self._next_answer()
        if answer is None:
            return
        answer.i32(), answer.i32()  # the correlation id and the throttle time
        asked, self._asked = self._asked, -1
        error = answer.i16()
        if error in JOIN_AGAIN:
            self.join()
        elif error == MEMBER_ID_REQUIRED:
            self.generation, _, _, self.id = _joined(answer)
            self.join()
        elif error:
            raise BrokerFailure(f"group request {asked} of a member: error code {error}")
        elif asked == JOIN_GROUP:
            self._sync(answer)
        elif asked == SYNC_GROUP:
            self.share = _partitions(read_sized(answer))
            # Members of a group do not send heartbeats in step.
            self.heartbeat_at = time.perf_counter() + random.uniform(0, HEARTBEAT_S)

    def _receive(self) -> None:
        data = self.connection.recv(1 << 20)
        if not data:
            raise BrokerFailure("the broker closed a member's connection")
        self._unread += data

    def _next_answer(self) -> Answer | None:
        end = 4 + int.from_bytes(self._unread[:4])
        if len(self._unread) < max(end, 8):
            return None
        answer = Answer(bytes(self._unread[4:end]))
        del self._unread[:end]
        return answer

    def _as_member(self) -> bytes:
        return text(self.group) + struct.pack(">i", self.generation) + text(self.id)

    def _sync(self, answer: Answer) -> None:
        """Send SyncGroup; the leader sends the assignment of all members."""
        self.generation, _, leader, self.id = _joined(answer)
        shares = self._shared_out(answer) if leader == self.id else []
        self.say(SYNC_GROUP, self._as_member() + NO_INSTANCE + listed(shares))

    def _shared_out(self, answer: Answer) -> list[bytes]:
        def read_id() -> str:
            member_id, _instance = answer.string(), answer.string()
            read_sized(answer)
            return member_id or ""

        ids = sorted(read_list(answer, read_id))
        return [
            text(member_id) + sized(self._assignment(range(at, self.partitions, len(ids))))
            for at, member_id in enumerate(ids)
        ]

    def _assignment(self, partitions: Iterable[int]) -> bytes:
        numbers = listed(struct.pack(">i", partition) for partition in partitions)
        return struct.pack(">h", 0) + listed([text(self.topic) + numbers]) + sized(b"")


def _joined(answer: Answer) -> tuple[int, str | None, str | None, str]:
    """Return generation, protocol, leader and member id of a JoinGroup response."""
    return answer.i32(), answer.string(), answer.string(), answer.string() or ""


def _partitions(assignment: bytes) -> frozenset[int]:
    answer = Answer(assignment)
    answer.i16()
    found: set[int] = set()
    for _ in range(answer.i32()):
        answer.string()
        found |= set(read_list(answer, answer.i32))
    return frozenset(found)


class Group:
    """Members of one group, each with a connection."""

    def __init__(self, port: int, name: str, topic: str, partitions: int) -> None:
        self._port, self._name = port, name
        self._topic, self._partitions = topic, partitions
        self._selector = selectors.DefaultSelector()
        self.members: list[Member] = []
        self._parted: list[Member] = []

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        """All members leave, so that the broker has no sessions to wait for."""
        with suppress(OSError):
            for peer in [*self.members]:
                self.part_with(peer)
        for partition in self._parted:
            partition.close()
        self._selector.close()

    def connect(self, count: int) -> list[Member]:
        """Return members with a connection and without a request."""
        return [
            Member(
                self._name,
                self._topic,
                self._partitions,
                socket.create_connection(("127.0.0.1", self._port), PATIENCE_S),
            )
            for _ in range(count)
        ]

    def enter(self, members: Iterable[Member]) -> None:
        for member in members:
            self._selector.register(member.connection, selectors.EVENT_READ, member)
            self.members.append(member)
            member.join()

    def part_with(self, member: Member) -> None:
        """Let a member leave, without waiting for the response."""
        self._selector.unregister(member.connection)
        self.members.remove(member)
        self._parted.append(member)
        member.leave()

    def settle(self) -> float:
        """Run until all partitions are assigned; return the time."""
        give_up_at = time.monotonic() + PATIENCE_S
        while not self._is_shared_out():
            if time.monotonic() > give_up_at:
                shares = [None if one.share is None else len(one.share) for one in self.members]
                raise BrokerFailure(f"a group is not shared out after {PATIENCE_S:.0f} s: {shares}")
            self._turn()
        return time.perf_counter()

    def stay(self, seconds: float) -> None:
        """Run a group whose members do not change."""
        end_at = time.perf_counter() + seconds
        while time.perf_counter() < end_at:
            self._turn()

    def _turn(self) -> None:
        for key, _ in self._selector.select(HEARTBEAT_S / 10):
            member: Member = key.data
            member.hear()
        now = time.perf_counter()
        for peer in self.members:
            if peer.share is not None:
                peer.beat(now)

    def _is_shared_out(self) -> bool:
        """Return whether the assignments of one generation cover all partitions."""
        if len({peer.generation for peer in self.members}) != 1:
            return False
        shares = [peer.share for peer in self.members]
        held = [partition for share in shares if share is not None for partition in share]
        return None not in shares and sorted(held) == list(range(self._partitions))
