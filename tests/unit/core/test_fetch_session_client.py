"""The follower's side of a fetch session, against the leader's side."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from hightide.core.partition.fetch_session import FetchSessions
from hightide.core.partition.fetch_session_client import (
    OUT_OF_STEP,
    FetchSessionClient,
    SessionRequest,
)
from hightide.core.partition.follower import FetchPosition
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.hot.fetch_codec import HIGHEST, Fetch, RequestedPartition

A, B = bytes(16), bytes(15) + b"b"
MAX_BYTES = 1000


def at(offset: int, leader_epoch: int = 3) -> FetchPosition:
    return FetchPosition(offset, 2, leader_epoch, 0)


def told(request: SessionRequest | None) -> dict[tuple[bytes, int], int]:
    assert request is not None
    return {
        (topic, partition.partition): partition.fetch_offset
        for topic, w in request.topics
        for partition in w
    }


def test_everything_is_told_once_and_then_what_changed() -> None:
    following = FetchSessionClient()
    first = following.next_request({(A, 0): at(5), (A, 1): at(6), (B, 0): at(7)}, MAX_BYTES)
    assert first is not None
    assert (first.session_id, first.session_epoch) == (0, 0)
    assert first.topics == [
        (
            A,
            [
                RequestedPartition(0, 3, 5, 2, 0, MAX_BYTES),
                RequestedPartition(1, 3, 6, 2, 0, MAX_BYTES),
            ],
        ),
        (B, [RequestedPartition(0, 3, 7, 2, 0, MAX_BYTES)]),
    ]
    following.answered(first, ErrorCode.NONE, 77)
    second = following.next_request({(A, 1): at(8), (B, 0): at(7)}, MAX_BYTES)
    assert second is not None
    assert (second.session_id, second.session_epoch) == (77, 1)
    assert told(second) == {(A, 1): 8}
    following.answered(second, ErrorCode.NONE, 77)
    third = following.next_request({(A, 0): None, (B, 0): None, (B, 1): None}, MAX_BYTES)
    assert third is not None
    assert third.session_epoch == 2
    assert (third.topics, third.forgotten) == ([], [(A, [0]), (B, [0])])


@pytest.mark.parametrize("code", sorted(OUT_OF_STEP))
def test_a_session_that_the_leader_does_not_know_is_started_again(code: ErrorCode) -> None:
    following = FetchSessionClient()
    first = following.next_request({(A, 0): at(5), (A, 1): at(6)}, MAX_BYTES)
    assert first is not None
    following.answered(first, ErrorCode.NONE, 77)
    second = following.next_request({(A, 0): at(9)}, MAX_BYTES)
    assert second is not None
    following.answered(second, code, 0)
    third = following.next_request({}, MAX_BYTES)
    assert third is not None
    assert third.is_full
    assert told(third) == {(A, 0): 9, (A, 1): 6}


def test_a_leader_without_room_for_a_session_is_told_everything_each_time() -> None:
    following = FetchSessionClient()
    for _ in range(2):
        request = following.next_request({(A, 0): at(5)}, MAX_BYTES)
        assert told(request) == {(A, 0): 5}
        assert request is not None
        following.answered(request, ErrorCode.NONE, 0)
        assert following.is_refused
        assert not following.may_pipeline
    request = following.next_request({}, MAX_BYTES)
    assert request is not None
    following.answered(request, ErrorCode.NONE, 9)
    assert not following.is_refused
    assert following.may_pipeline


def test_with_nothing_to_ask_for_nothing_is_asked_and_the_session_ends() -> None:
    following = FetchSessionClient()
    assert following.next_request({(A, 0): None}, MAX_BYTES) is None
    first = following.next_request({(A, 0): at(5)}, MAX_BYTES)
    assert first is not None
    following.answered(first, ErrorCode.NONE, 77)
    assert following.next_request({(A, 0): None}, MAX_BYTES) is None
    again = following.next_request({(A, 1): at(6)}, MAX_BYTES)
    assert again is not None
    # The request names the former session, so that the leader can drop it.
    assert (again.session_id, again.session_epoch) == (77, 0)
    assert told(again) == {(A, 1): 6}


def test_a_session_on_a_connection_that_broke_is_named_so_that_it_can_be_dropped() -> None:
    request = FetchSessionClient(77).next_request({(A, 0): at(5)}, MAX_BYTES)
    assert request is not None
    assert (request.session_id, request.session_epoch) == (77, 0)


def test_an_answer_is_about_what_its_own_request_asked_for() -> None:
    following = FetchSessionClient()
    first = following.next_request({(A, 0): at(5), (A, 1): at(5), (A, 2): at(5)}, MAX_BYTES)
    assert first is not None
    following.answered(first, ErrorCode.NONE, 77)
    second = following.next_request({}, MAX_BYTES)
    assert second is not None
    assert following.may_pipeline
    third = following.next_request({(A, 0): at(8, 4), (A, 1): None, (A, 3): at(0)}, MAX_BYTES)
    assert third is not None
    assert not following.may_pipeline
    asked = [following.requested_position(second, (A, index)) for index in range(5)]
    assert asked == [at(5), at(5), at(5), None, None]
    following.answered(second, ErrorCode.NONE, 77)
    asked = [following.requested_position(third, (A, index)) for index in range(5)]
    assert asked == [at(8, 4), None, at(5), at(0), None]


def test_only_what_is_to_be_fetched_and_is_not_yet_is_wanted() -> None:
    following = FetchSessionClient()
    assert following.has_changes({(A, 0): at(5)})
    following.next_request({(A, 0): at(5)}, MAX_BYTES)
    assert not following.has_changes({(A, 0): at(5), (A, 1): None})
    assert not following.has_changes({(A, 0): None})
    assert following.has_changes({(A, 0): at(6)})


def test_the_epoch_of_a_session_begins_again_at_one() -> None:
    following = FetchSessionClient()
    first = following.next_request({(A, 0): at(5)}, MAX_BYTES)
    assert first is not None
    following.answered(first, ErrorCode.NONE, 77)
    following._epoch = 2**31 - 1
    epochs = []
    for offset in (6, 7):
        request = following.next_request({(A, 0): at(offset)}, MAX_BYTES)
        assert request is not None
        following.answered(request, ErrorCode.NONE, 77)
        epochs.append(request.session_epoch)
    assert epochs == [2**31 - 1, 1]


KEYS = st.tuples(st.sampled_from([A, B]), st.integers(0, 3))
POSITIONS = st.dictionaries(
    KEYS, st.none() | st.builds(at, st.integers(0, 9), st.integers(0, 2)), max_size=4
)


class BothHalves(RuleBasedStateMachine):
    """Requests and responses take any time; the leader drops sessions, and may have no room."""

    def __init__(self) -> None:
        super().__init__()
        self.following = FetchSessionClient()
        self.sessions = FetchSessions(2, 0, Random(1))
        self.wanted: dict[tuple[bytes, int], FetchPosition] = {}
        self.sent: list[SessionRequest] = []
        # The leader's response to each request, and the positions that it is about.
        self.answers: list[tuple[ErrorCode, int, dict[tuple[bytes, int], FetchPosition]]] = []

    @precondition(lambda self: not self.sent or self.following.may_pipeline)
    @rule(positions=POSITIONS)
    def tell(self, positions: dict[tuple[bytes, int], FetchPosition | None]) -> None:
        for key, position in positions.items():
            if position is None:
                self.wanted.pop(key, None)
            else:
                self.wanted[key] = position
        request = self.following.next_request(positions, MAX_BYTES)
        assert (request is None) == (not self.wanted)
        if request is not None:
            self.sent.append(request)

    @precondition(lambda self: len(self.answers) < len(self.sent))
    @rule()
    def reach_the_leader(self) -> None:
        request = self.sent[len(self.answers)]
        fetch = Fetch(
            1,
            0,
            1,
            1,
            0,
            request.session_id,
            request.session_epoch,
            request.topics,
            request.forgotten,
            None,
        )
        try:
            session = self.sessions.begin(fetch, HIGHEST, 0)
        except KafkaError as error:
            self.answers.append((ErrorCode(error.code), 0, {}))
            return
        topics = request.topics if session is None else session.topics()
        about = {
            (topic, partition.partition): FetchPosition(
                partition.fetch_offset,
                partition.last_fetched_epoch,
                partition.current_leader_epoch,
                partition.log_start_offset,
            )
            for topic, wanted in topics
            for partition in wanted
        }
        if request is self.sent[-1] and self.wanted:
            assert about == self.wanted
        session_id = 0 if session is None else session.id
        self.answers.append((ErrorCode.NONE, session_id, about))

    @precondition(lambda self: self.answers)
    @rule()
    def reach_the_follower(self) -> None:
        request = self.sent.pop(0)
        error, session_id, about = self.answers.pop(0)
        self.following.answered(request, error, session_id)
        for key, position in about.items():
            assert self.following.requested_position(request, key) == position

    @rule(keep=st.booleans())
    def forget_sessions(self, keep: bool) -> None:
        self.sessions = FetchSessions(2 if keep else 0, 0, Random(1))

    @rule()
    def reconnect(self) -> None:
        self.following = FetchSessionClient(self.following.session_id)
        self.sent.clear()
        self.answers.clear()
        positions: dict[tuple[bytes, int], FetchPosition | None] = {**self.wanted}
        request = self.following.next_request(positions, MAX_BYTES)
        if request is not None:
            self.sent.append(request)


TestBothHalves = BothHalves.TestCase
TestBothHalves.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
