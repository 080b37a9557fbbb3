"""The members of a group that the harness has play by the classic protocol's rules."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from bench.harness.broker import BrokerFailure
from bench.harness.groups import Committer, is_shared_evenly
from bench.harness.members import (
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    MEMBER_ID_REQUIRED,
    REBALANCE_IN_PROGRESS,
    SYNC_GROUP,
    Group,
    listed,
    sized,
    text,
)

NO_THROTTLE = struct.pack(">i", 0)


class Script:
    """A broker for one connection, which answers each request as the test says."""

    def __init__(self, answers: list[tuple[int, bytes]]) -> None:
        self.answers = answers
        self.asked: list[int] = []
        self.bodies: list[bytes] = []

    def serve(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            for api_key, answer in self.answers:
                head = stream.read(4)
                if len(head) < 4:
                    return
                body = stream.read(int.from_bytes(head))
                self.asked.append(int.from_bytes(body[:2]))
                self.bodies.append(body)
                if self.asked[-1] != api_key:
                    return
                connection.sendall(sized(body[4:8] + answer))

    @contextmanager
    def listening(self) -> Iterator[int]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=self.serve, args=(listener,))
            thread.start()
            yield listener.getsockname()[1]
            thread.join(10)
            assert not thread.is_alive()


def joined(error: int, generation: int, leader: str, own: str, *members: str) -> bytes:
    who = listed(text(each) + struct.pack(">h", -1) + sized(b"") for each in members)
    head = NO_THROTTLE + struct.pack(">hi", error, generation)
    return head + text("range") + text(leader) + text(own) + who


def synced(*partitions: int) -> bytes:
    numbers = listed(struct.pack(">i", each) for each in partitions)
    share = struct.pack(">h", 0) + listed([text("t") + numbers]) + sized(b"")
    return NO_THROTTLE + struct.pack(">h", 0) + sized(share)


def said(error: int) -> bytes:
    return NO_THROTTLE + struct.pack(">h", error)


def test_a_member_takes_its_id_joins_shares_out_and_leaves() -> None:
    script = Script(
        [
            (JOIN_GROUP, joined(MEMBER_ID_REQUIRED, -1, "", "m1")),
            (JOIN_GROUP, joined(0, 1, "m1", "m1", "m1")),
            (SYNC_GROUP, synced(0, 1, 2)),
            (LEAVE_GROUP, said(0)),
        ]
    )
    with script.listening() as port, Group(port, "g", "t", 3) as group:
        group.enter(group.connect(1))
        group.settle()
        assert group.members[0].share == frozenset({0, 1, 2})
    assert script.asked == [JOIN_GROUP, JOIN_GROUP, SYNC_GROUP, LEAVE_GROUP]
    assert text("m1") in script.bodies[1]
    assert struct.pack(">iiii", 3, 0, 1, 2) in script.bodies[2]


def test_a_heartbeat_that_tells_of_a_rebalance_has_a_member_join_again() -> None:
    script = Script(
        [
            (JOIN_GROUP, joined(0, 1, "m1", "m1", "m1")),
            (SYNC_GROUP, synced(0, 1)),
            (HEARTBEAT, said(REBALANCE_IN_PROGRESS)),
            (JOIN_GROUP, joined(0, 2, "m1", "m1", "m1")),
            (SYNC_GROUP, synced(0, 1)),
            (LEAVE_GROUP, said(0)),
        ]
    )
    with script.listening() as port, Group(port, "g", "t", 2) as group:
        group.enter(group.connect(1))
        group.settle()
        while group.members[0].generation == 1:
            group.stay(0.001)
        group.settle()
        assert group.members[0].generation == 2


def test_an_error_is_a_failure_of_the_broker() -> None:
    script = Script([(JOIN_GROUP, joined(15, -1, "", "")), (LEAVE_GROUP, said(0))])
    with script.listening() as port, Group(port, "g", "t", 2) as group:
        group.enter(group.connect(1))
        with pytest.raises(BrokerFailure, match="error code 15"):
            group.settle()


def committed(error: int) -> bytes:
    return NO_THROTTLE + listed([text("shared") + listed([struct.pack(">ih", 0, error)])])


def test_a_refused_commit_is_noticed() -> None:
    script = Script([(8, committed(16))])
    with (
        script.listening() as port,
        closing(Committer(port, "g", 1)) as one,
        pytest.raises(BrokerFailure, match="error code 16"),
    ):
        one.begin()


def test_a_commit_that_is_answered_otherwise_than_the_first_is_noticed() -> None:
    script = Script([(8, committed(0)), (8, committed(16))])
    with script.listening() as port, closing(Committer(port, "g", 1)) as one:
        one.begin()
        with pytest.raises(BrokerFailure, match="not answered as the first"):
            one.go_on()


def test_partitions_are_shared_evenly_when_each_has_one_member_and_none_is_left_out() -> None:
    everything = set(range(60))
    assert is_shared_evenly([everything])
    assert is_shared_evenly([set(range(30)), set(range(30, 60))])
    assert not is_shared_evenly([everything, set()])
    assert not is_shared_evenly([everything, {3}])
