"""Expiry of sessions."""

from hightide.zookeeper.session import Leases


def test_a_silent_session_expires_once_and_a_touched_one_lives_on():
    leases = Leases(check_interval_ms=500, now_ms=0)
    leases.opened(1, timeout_ms=1000, now_ms=0)
    leases.opened(2, timeout_ms=1000, now_ms=0)
    assert leases.expired(500) == []
    leases.touched(2, 600)
    assert leases.expired(1000) == []
    assert leases.expired(1500) == [1]
    assert leases.expired(1601) == [2]
    assert leases.expired(2000) == []


def test_sessions_expire_in_the_order_of_their_deadlines():
    leases = Leases(check_interval_ms=500, now_ms=0)
    leases.opened(1, timeout_ms=900, now_ms=0)
    leases.opened(2, timeout_ms=700, now_ms=0)
    leases.expired(500)
    assert leases.expired(1000) == [2, 1]


def test_a_closed_session_does_not_expire_and_cannot_be_touched():
    leases = Leases(check_interval_ms=500, now_ms=0)
    leases.opened(1, timeout_ms=100, now_ms=0)
    leases.closed(1)
    leases.touched(1, 10)
    leases.closed(1)
    assert leases.expired(500) == []


def test_no_session_expires_because_of_a_pause_of_this_process():
    leases = Leases(check_interval_ms=500, now_ms=0)
    leases.opened(1, timeout_ms=1000, now_ms=0)
    assert leases.expired(500) == []
    assert leases.expired(16_000) == [], "the process was stopped for 15 s"
    assert leases.expired(16_500) == [1], "the lease continued after the pause"
