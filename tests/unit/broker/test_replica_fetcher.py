"""Replica fetchers copy from a leader on a real socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from hightide.broker.replication import replication_throttle
from hightide.core.partition.fetch_session import FetchSessions
from hightide.core.partition.follower import FetchPosition, Follower, Step
from hightide.settings import Topic
from hightide.wire.errors import ErrorCode
from hightide.wire.hot.replica_fetch_codec import ReceivedPartition
from tests.support.eventually import eventually_async
from tests.unit.broker.replica_fetcher_world import (
    FOLLOWER_EPOCH,
    FOLLOWER_ID,
    LeaderBroker,
    World,
    append,
    contents,
    listening,
    partitions,
    requested,
    world,
)


def run(test: Callable[[World], Awaitable[None]], **settings: object) -> None:
    async def all_of_it() -> None:
        async with world(**settings) as made:
            await test(made)

    asyncio.run(asyncio.wait_for(all_of_it(), 30))


# -- copying -----------------------------------------------------------------------------------


def test_a_follower_becomes_a_copy_of_its_leader_and_stays_one() -> None:
    async def test(w: World) -> None:
        replica = w.replica()
        w.write(replica, b"one", b"two")
        w.follow(replica)
        await w.copied(replica)
        for number in range(5):
            w.write(replica, b"%d" % number)
            await w.copied(replica)
        first = w.leader.requests[0]
        assert (first.replica_id, first.replica_epoch) == (FOLLOWER_ID, FOLLOWER_EPOCH)

    run(test)


def test_the_leader_learns_of_records_only_when_they_are_on_disk_if_the_topic_says_so() -> None:
    """Each request is compared with what was on the follower's disk when it was sent."""

    async def test(w: World) -> None:
        w.config = Topic(flush_messages=1)
        replica = w.replica()
        sent: list[tuple[int, int]] = []
        follower_position = Follower.position

        def position(follower: Follower) -> FetchPosition | None:
            found = follower_position(follower)
            if found is not None:
                sent.append((found.offset, replica.log.recovery_point))
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Follower, "position", position)
            w.follow(replica)
            for number in range(5):
                w.write(replica, b"%d" % number)
                await w.copied(replica)
        assert max(offset for offset, _ in sent) >= 4
        assert all(offset <= on_disk for offset, on_disk in sent)

    run(test)


def test_what_is_larger_than_one_answer_is_copied_by_several() -> None:
    async def test(w: World) -> None:
        replicas = [w.replica(number) for number in range(3)]
        for replica in replicas:
            for _ in range(20):
                w.write(replica, b"x" * 10_000)
            w.follow(replica)
        await w.copied(*replicas)

    run(test, replica_fetch_max_bytes=30_000, replica_fetch_response_max_bytes=50_000)


def test_the_leader_is_asked_with_what_the_settings_say() -> None:
    async def test(w: World) -> None:
        w.follow(w.replica())
        first, second = await w.request(1), await w.request(2)
        assert (first.max_wait_ms, second.max_wait_ms) == (0, 123)
        assert (second.min_bytes, second.max_bytes) == (7, 5000)
        assert first.topics[0][1][0].max_bytes == 999

    run(
        test,
        replica_fetch_wait_max_ms=123,
        replica_fetch_min_bytes=7,
        replica_fetch_max_bytes=999,
        replica_fetch_response_max_bytes=5000,
    )


def test_a_log_that_diverges_from_the_leaders_is_truncated_and_copied_again() -> None:
    async def test(w: World) -> None:
        replica = w.replica()
        w.leader.leader_epoch = 2
        append(w.source(replica), b"common", leader_epoch=0)
        append(w.source(replica), b"the leader's", leader_epoch=2)
        append(replica.log, b"common", leader_epoch=0)
        append(replica.log, b"another leader's", b"again", leader_epoch=1)
        w.follow(replica, leader_epoch=2)
        await w.copied(replica)

    run(test)


def test_the_log_start_follows_the_leaders_and_is_sent_back() -> None:
    async def test(w: World) -> None:
        replica = w.replica()
        w.write(replica, b"1")
        w.write(replica, b"2")
        w.follow(replica)
        await w.copied(replica)
        w.source(replica).start_at(1)
        w.write(replica, b"3")
        await eventually_async(lambda: replica.log.start_offset == 1)
        await eventually_async(lambda: w.leader.requests[-1].topics[0][1][0].log_start_offset == 1)

    run(test)


def test_a_log_whose_start_moves_while_a_response_is_in_flight_is_copied_all_the_same() -> None:
    async def test(w: World) -> None:
        replica = w.replica()
        w.write(replica, b"1")
        w.write(replica, b"2")
        w.follow(replica)
        await w.copied(replica)
        await w.pause()
        w.leader.held = asyncio.Event()
        w.write(replica, b"3")
        await w.pause()
        replica.log.start_at(1)
        w.leader.held.set()
        await eventually_async(lambda: replica.log.end_offset == replica.high_watermark == 3)

    run(test)


# -- sessions ----------------------------------------------------------------------------------


def test_idle_partitions_are_named_once() -> None:
    async def test(w: World) -> None:
        replicas = [w.replica(number) for number in range(50)]
        for replica in replicas:
            w.follow(replica)
        await w.request(2)
        for _ in range(3):
            w.write(replicas[7], b"x")
            await w.copied(replicas[7])
        await w.request(5)
        await w.pause()
        first, *others = w.leader.requests
        assert len(requested(first)) == 50
        assert [partitions(request) for request in others] == [[], [7], [7], [7]]
        assert [request.session_epoch for request in others] == [1, 2, 3, 4]

    run(test)


def test_a_leader_that_has_forgotten_the_session_gets_a_full_request_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(w: World) -> None:
        one, other = w.replica(0), w.replica(1)
        w.follow(one)
        w.follow(other)
        await w.request(2)
        await w.pause()
        former = w.leader.requests[1].session_id
        w.leader.sessions = FetchSessions(10, 60_000, w.leader.sessions._random)
        w.write(one, b"x")
        await w.copied(one)
        w.write(other, b"y")
        await w.copied(one, other)
        await w.request(5)
        assert [request.session_epoch for request in w.leader.requests[:5]] == [0, 1, 2, 0, 1]
        assert partitions(w.leader.requests[3]) == [0, 1]
        assert w.leader.requests[4].session_id != former

    run(test)
    assert not caplog.records


def test_a_leader_without_room_for_a_session_gets_full_requests() -> None:
    async def test(w: World) -> None:
        w.leader.sessions = FetchSessions(0, 60_000, w.leader.sessions._random)
        one, other = w.replica(0), w.replica(1)
        w.follow(one)
        w.follow(other)
        await w.request(2)
        w.write(one, b"x")
        await w.copied(one)
        request = await w.request(3)
        assert requested(request) == {(one.topic_id.bytes, 0): 1, (one.topic_id.bytes, 1): 0}
        # While idle, its requests wait as always.
        await w.pause()
        assert len(w.leader.requests) == 3
        assert w.leader.requests[-1].max_wait_ms == 20_000

    run(test)


# -- partitions that are added and removed -----------------------------------------------------


def test_a_newcomer_is_asked_for_while_a_request_waits() -> None:
    async def test(w: World) -> None:
        first = w.replica(0)
        w.follow(first)
        await w.request(2)
        await w.pause()
        newcomers = [w.replica(number) for number in range(1, 10)]
        for replica in newcomers:
            w.write(replica, b"x")
            w.follow(replica)
        await w.copied(*newcomers)
        await w.request(4)
        # All of them are in one request, and the session is the same.
        assert partitions(w.leader.requests[2]) == [*range(1, 10)]
        assert [request.session_epoch for request in w.leader.requests[:4]] == [0, 1, 2, 3]
        assert w.leader.connections == 1

    run(test)


def test_newcomers_are_asked_for_again_and_again() -> None:
    async def test(w: World) -> None:
        replicas = []
        for number in range(20):
            replica = w.replica(number)
            w.write(replica, b"x")
            w.follow(replica)
            replicas.append(replica)
            if number % 3 == 0:
                await asyncio.sleep(0)
            elif number % 3 == 1:
                await w.copied(*replicas)
        await w.copied(*replicas)
        assert sum(request.session_epoch == 0 for request in w.leader.requests) == 1
        assert w.leader.connections == 1

    run(test)


def test_a_leader_that_does_not_end_the_request_before_is_only_late() -> None:
    async def test(w: World) -> None:
        w.leader.ends_polls = False
        first, newcomer = w.replica(0), w.replica(1)
        w.follow(first)
        await w.request(2)
        w.write(newcomer, b"x")
        w.follow(newcomer)
        await w.copied(newcomer)
        assert sum(request.session_epoch == 0 for request in w.leader.requests) == 1

    run(test, replica_fetch_wait_max_ms=200)


def test_records_that_come_twice_because_of_a_newcomer_are_written_once() -> None:
    async def test(w: World) -> None:
        first, newcomer = w.replica(0), w.replica(1)
        w.follow(first)
        await w.request(2)
        # The response with the records and the request for the new partition cross.
        w.leader.held = asyncio.Event()
        w.write(first, b"x")
        await w.pause()
        w.write(newcomer, b"y")
        w.follow(newcomer)
        await w.request(3)
        w.leader.held.set()
        await w.copied(first, newcomer)
        w.write(first, b"z")
        await w.copied(first, newcomer)
        assert sum(request.session_epoch == 0 for request in w.leader.requests) == 1

    run(test)


def test_the_content_of_a_response_that_was_ignored_is_sent_again() -> None:
    async def test(w: World) -> None:
        first, newcomer = w.replica(0), w.replica(1)
        key = first.topic_id.bytes, 0
        w.leader.high_watermarks[key] = 0
        w.follow(first)
        await w.request(2)
        w.leader.held = asyncio.Event()
        w.write(first, b"x")
        await w.pause()
        # Only the second response, whose records have arrived by then, says they are committed.
        w.leader.high_watermarks[key] = 1
        w.follow(newcomer)
        await w.request(3)
        w.leader.held.set()
        await w.copied(first, newcomer)

    run(test, replica_fetch_wait_max_ms=300)


def test_a_partition_that_comes_after_a_newcomer_is_requested_as_well() -> None:
    async def test(w: World) -> None:
        first, newcomer, late = w.replica(0), w.replica(1), w.replica(2)
        w.follow(first)
        await w.request(2)
        w.leader.held = asyncio.Event()
        w.follow(newcomer)
        await w.request(3)
        w.write(late, b"x")
        w.follow(late)
        await w.pause()
        assert len(w.leader.requests) == 3
        w.leader.held.set()
        await w.copied(late)
        assert partitions(w.leader.requests[3]) == [2]

    run(test)


def test_a_partition_that_was_removed_is_not_changed_by_a_response_in_flight() -> None:
    async def test(w: World) -> None:
        stays, leaves = w.replica(0), w.replica(1)
        w.follow(stays)
        w.follow(leaves)
        await w.request(2)
        w.leader.held = asyncio.Event()
        w.write(leaves, b"x")
        w.write(stays, b"y")
        await w.pause()
        leaves.rest(None)
        w.fetchers.leave(leaves)
        w.leader.held.set()
        await w.copied(stays)
        assert leaves.log.end_offset == 0
        request = await w.request(3)
        assert request.forgotten == [(leaves.topic_id.bytes, [1])]
        w.fetchers.leave(leaves)

    run(test)


def test_a_response_for_a_role_that_has_ended_is_ignored_before_the_fetcher_knows() -> None:
    async def test(w: World) -> None:
        replica = w.replica()
        w.follow(replica)
        await w.request(2)
        w.leader.held = asyncio.Event()
        w.write(replica, b"x")
        await w.pause()
        former = replica.follower
        assert replica.state is not None
        replica.follow(replica.state)
        assert replica.follower is not former
        w.leader.held.set()
        await w.pause()
        assert replica.log.end_offset == 0
        w.fetchers.follow(replica, w.leader.endpoint)
        await w.copied(replica)

    run(test)


def test_a_response_to_a_request_of_a_former_leader_epoch_is_ignored() -> None:
    async def test(w: World) -> None:
        replica = w.replica()
        w.follow(replica)
        await w.request(2)
        w.leader.held = asyncio.Event()
        w.write(replica, b"x")
        await w.pause()
        taken: list[FetchPosition] = []
        w.leader.leader_epoch = 1
        w.follow(replica, leader_epoch=1)
        watch(replica, taken)
        w.leader.held.set()
        await w.copied(replica)
        assert {position.leader_epoch for position in taken} == {1}

    run(test)


def watch(replica: object, taken: list[FetchPosition]) -> None:
    """Note the positions of the responses that the replica applies."""
    kind = type(replica)
    original = kind.apply_response  # type: ignore[attr-defined]

    class Watched(kind):  # type: ignore[misc, valid-type]
        __slots__ = ()

        def apply_response(
            self, asked: FetchPosition, received: ReceivedPartition, now_ms: int
        ) -> Step:
            taken.append(asked)
            step: Step = original(self, asked, received, now_ms)
            return step

    replica.__class__ = Watched


def test_after_a_leader_change_the_former_leader_gets_no_requests() -> None:
    async def test(w: World) -> None:
        replica, stays = w.replica(0), w.replica(1)
        w.follow(replica)
        w.follow(stays)
        await w.request(2)
        async with listening(LeaderBroker()) as other:
            other.leader_epoch = 1
            log = other.create("t", 0, replica.topic_id)
            append(log, b"x", leader_epoch=1)
            w.follow(replica, leader_epoch=1, leader_id=3, to=other.endpoint)
            await eventually_async(lambda: replica.log.end_offset == 1)
            assert contents(replica.log) == contents(log)
            w.write(stays, b"y")
            await w.copied(stays)
            request = await w.request(3)
            assert request.forgotten == [(replica.topic_id.bytes, [0])]
            assert w.source(replica).end_offset == 0
            w.fetchers.leave(replica)

    run(test)


def test_no_request_is_sent_while_the_leader_has_no_address() -> None:
    async def test(w: World) -> None:
        replica = w.replica()
        w.follow(replica)
        await w.request(2)
        w.fetchers.follow(replica, None)
        w.write(replica, b"x")
        await w.pause()
        assert len(w.leader.requests) == 2
        assert replica.log.end_offset == 0
        w.follow(replica)
        await w.copied(replica)

    run(test)


def test_the_same_role_published_again_changes_nothing() -> None:
    async def test(w: World) -> None:
        replica = w.replica()
        w.follow(replica)
        await w.request(2)
        for _ in range(3):
            w.fetchers.follow(replica, w.leader.endpoint)
            await w.pause()
        assert len(w.leader.requests) == 2

    run(test)


# -- faults ------------------------------------------------------------------------------------


def test_a_connection_that_breaks_is_opened_again_and_copying_continues() -> None:
    async def test(w: World) -> None:
        replicas = [w.replica(number) for number in range(5)]
        for replica in replicas:
            w.follow(replica)
        await w.request(2)
        w.leader.hang_up()
        for replica in replicas:
            w.write(replica, b"x")
        await w.copied(*replicas)
        full = [request for request in w.leader.requests if request.session_epoch == 0]
        assert [len(requested(request)) for request in full] == [5, 5]
        assert full[1].session_id == w.leader.requests[1].session_id

    run(test)


def test_a_leader_that_is_not_there_yet_is_found_soon(caplog: pytest.LogCaptureFixture) -> None:
    async def test(w: World) -> None:
        replica = w.replica()
        server = await asyncio.start_server(lambda _r, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        to = w.leader.endpoint
        to = type(to)(
            listener=to.listener, host=to.host, port=port, security_protocol=to.security_protocol
        )
        w.follow(replica, to=to)
        await asyncio.sleep(0.5)
        late = await asyncio.start_server(w.leader.serve, "127.0.0.1", port)
        w.write(replica, b"x")
        await w.copied(replica)
        late.close()

    with caplog.at_level(logging.INFO):
        run(test)
    messages = [record.message for record in caplog.records if "fetch" in record.message]
    assert len(messages) == 2, messages
    assert messages[0].startswith("cannot fetch from broker 2: Cannot connect to 127.0.0.1:")
    assert messages[1] == "fetching from broker 2 works again"


def test_a_leader_that_moves_is_asked_in_its_new_place_at_once() -> None:
    async def test(w: World) -> None:
        replica = w.replica()
        w.follow(replica)
        await w.request(2)
        former = w.leader.endpoint
        async with listening(w.leader):
            assert w.leader.endpoint != former
            w.fetchers.follow(replica, w.leader.endpoint)
            await w.request(3)
            w.write(replica, b"x")
            await w.copied(replica)

    run(test)


def test_a_partition_that_is_refused_backs_off_and_the_others_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(w: World) -> None:
        good, bad = w.replica(0), w.replica(1)
        key = bad.topic_id.bytes, 1
        w.leader.refusals[key] = ErrorCode.KAFKA_STORAGE_ERROR
        w.write(bad, b"x")
        loop = asyncio.get_running_loop()
        started = loop.time()
        w.follow(good)
        w.follow(bad)
        for _ in range(10):
            w.write(good, b"x")
            await w.copied(good)
            await asyncio.sleep(0.05)
        tries = [request for request in w.leader.requests if key in requested(request)]
        # After 10, 20, 40, 80, 160, 200 and 200 ms.
        assert 4 <= len(tries) <= 6 + (loop.time() - started) / 0.2
        assert bad.log.end_offset == 0
        del w.leader.refusals[key]
        await w.copied(bad)

    run(test)
    (warning,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warning == ("cannot copy t-1 from broker 2: KAFKA_STORAGE_ERROR; retrying every 200 ms")


def test_after_a_success_the_back_off_starts_again() -> None:
    async def test(w: World) -> None:
        replica = w.replica()
        key = replica.topic_id.bytes, 0
        loop = asyncio.get_running_loop()
        w.follow(replica)
        for _ in range(5):
            w.leader.refusals[key] = ErrorCode.KAFKA_STORAGE_ERROR
            w.write(replica, b"x")
            started = loop.time()
            await asyncio.sleep(0.12)
            del w.leader.refusals[key]
            await w.copied(replica)
            # After 150 ms at the latest; if the pause kept doubling, it would be seconds by now.
            assert loop.time() - started < 1

    run(test, replica_fetch_backoff_ms=5_000)


def test_a_leader_that_does_not_know_yet_that_it_leads_is_asked_again_soon() -> None:
    async def test(w: World) -> None:
        replica = w.replica()
        w.write(replica, b"x")
        w.follow(replica, leader_epoch=1)
        await asyncio.sleep(0.02)
        assert replica.log.end_offset == 0
        w.leader.leader_epoch = 1
        started = asyncio.get_running_loop().time()
        await w.copied(replica)
        assert asyncio.get_running_loop().time() - started < 2

    run(test, replica_fetch_backoff_ms=5_000)


def test_after_a_newer_leader_epoch_was_seen_no_request_is_sent_until_it_is_published() -> None:
    async def test(w: World) -> None:
        replica, other = w.replica(0), w.replica(1, topic="u")
        w.write(replica, b"x")
        w.leader.leader_epoch = 1
        w.follow(replica, leader_epoch=0)
        await eventually_async(lambda: replica.follower is not None and replica.follower.is_waiting)
        asked = len(w.leader.requests)
        await w.pause()
        assert len(w.leader.requests) == asked
        w.follow(replica, leader_epoch=1)
        w.follow(other, leader_epoch=1)
        await w.copied(replica, other)

    run(test)


def test_a_follower_reports_committed_records_that_its_leader_lacks_and_truncates_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(w: World) -> None:
        replica = w.replica(0)
        append(replica.log, b"1", leader_epoch=0)
        append(replica.log, b"2", leader_epoch=1)
        replica.high_watermark = 2
        append(w.source(replica), b"1", leader_epoch=0)
        append(w.source(replica), b"other", leader_epoch=2)
        w.leader.leader_epoch = 2
        w.follow(replica, leader_epoch=2)
        await eventually_async(lambda: replica.lost_records == 1)
        await w.copied(replica)

    run(test)
    (error,) = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert error.startswith("t/0: 1 committed records are lost, at offsets 1 to 1: the leader,")
    assert "no unclean election explains this" in error


def test_a_fault_in_one_partition_does_not_keep_others_from_being_copied(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(w: World) -> None:
        good, bad = w.replica(0), w.replica(1)

        class Faulty(type(bad)):  # type: ignore[misc]
            __slots__ = ()

            def apply_response(
                self, asked: FetchPosition, received: ReceivedPartition, now_ms: int
            ) -> Step:
                raise RuntimeError("a bug")

        plain = type(bad)
        bad.__class__ = Faulty
        w.write(bad, b"x")
        w.follow(good)
        w.follow(bad)
        w.write(good, b"x")
        await w.copied(good)
        bad.__class__ = plain
        await w.copied(bad)

    run(test)
    assert "cannot append records of t-1 from broker 2" in caplog.text


# -- throttling --------------------------------------------------------------------------------


def test_throttled_replicas_are_copied_at_their_rate_and_the_rest_at_once() -> None:
    async def test(w: World) -> None:
        slow = w.replica(0, topic="s")
        slow.log.config = Topic(follower_replication_throttled_replicas=(f"0:{FOLLOWER_ID}",))
        quick = w.replica(0)
        for _ in range(40):
            w.write(slow, b"x" * 1000)
        w.follow(slow)
        w.follow(quick)
        started = asyncio.get_running_loop().time()
        await eventually_async(lambda: slow.log.end_offset >= 5)
        await w.pause()
        assert slow.log.end_offset < 30
        w.write(quick, b"x")
        await w.copied(quick)
        assert slow.log.end_offset < 40
        await w.copied(slow)
        assert asyncio.get_running_loop().time() - started > 1

    run(
        test,
        replica_fetch_max_bytes=2_000,
        follower_replication_throttled_rate=20_000,
        replication_quota_window_num=2,
    )


def test_throttled_replicas_cost_no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication_throttle, "_MOST_DELAY_MS", 20)

    async def test(w: World) -> None:
        slow, quick = w.replica(0, topic="s"), w.replica(0)
        slow.log.config = Topic(follower_replication_throttled_replicas=("*",))
        w.write(slow, b"x")
        w.write(slow, b"y")
        w.follow(slow)
        w.follow(quick)
        await eventually_async(lambda: slow.log.end_offset == 1)
        await w.pause()
        asked = len(w.leader.requests)
        await w.pause()
        assert len(w.leader.requests) == asked
        w.write(quick, b"x")
        await w.copied(quick)
        w.settings = w.settings.replace(follower_replication_throttled_rate=1000)
        await w.copied(slow)

    run(test, replica_fetch_max_bytes=1, follower_replication_throttled_rate=0)


def test_stopping_ends_requests_in_flight() -> None:
    async def test(w: World) -> None:
        first, newcomer = w.replica(0), w.replica(1)
        w.follow(first)
        await w.request(2)
        w.leader.held = asyncio.Event()
        w.follow(newcomer)
        await w.request(3)
        await w.fetchers.stop()
        w.leader.held.set()
        asked = len(w.leader.requests)
        await w.pause()
        assert len(w.leader.requests) == asked

    run(test)
