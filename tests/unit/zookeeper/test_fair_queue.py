"""The queue of the committer: shares of sessions, and the order within one."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from hightide.zookeeper.fair_queue import FairQueue


def drained(queue):
    return [queue.pop() for _ in range(len(queue))]


def test_a_small_request_does_not_wait_for_large_ones_of_others():
    queue: FairQueue[str] = FairQueue()
    for session_id in range(1, 101):
        queue.put(f"multi of {session_id}", session_id, 2000)
    queue.pop()
    queue.put("small", 200, 1)
    assert queue.pop() == "small"


def test_a_session_with_many_requests_waits_for_itself():
    queue: FairQueue[int] = FairQueue()
    for number in range(1000):
        queue.put(number, 1, 1)
    queue.put(-1, 2, 1)
    assert drained(queue).index(-1) <= 2


def test_a_large_request_is_served_though_small_ones_keep_coming():
    queue: FairQueue[str] = FairQueue()
    queue.put("large", 1, 100)
    for number in count(1):
        queue.put("small", 2, 1)
        if queue.pop() == "large":
            break
        assert number <= 100


def test_a_request_after_all_is_the_last_of_those_before_it():
    queue: FairQueue[str] = FairQueue()
    queue.put("a", 1, 50)
    queue.put("b", 2, 10)
    queue.put("sync", 3, 0, after_all=True)
    queue.put("later", 3, 1)
    queue.put("new", 4, 1)
    order = drained(queue)
    assert order.index("sync") > max(order.index("a"), order.index("b"))
    assert order.index("later") > order.index("sync")


def test_a_large_request_is_served_though_new_sessions_keep_coming():
    queue: FairQueue[int] = FairQueue()
    queue.put(0, 0, 100)
    for session_id in range(1, 200):
        queue.put(session_id, session_id, 1)
        if queue.pop() == 0:
            break
    assert session_id < 110


def test_sessions_that_are_gone_are_forgotten():
    queue: FairQueue[int] = FairQueue()
    queue.put(0, 0, 10**9)
    for session_id in range(1, 10_000):
        queue.put(session_id, session_id, 1)
        assert queue.pop() == session_id
    assert len(queue._ends) < 3000
    queue.pop()
    assert not queue._ends


PUTS = st.tuples(st.integers(1, 4), st.integers(0, 50), st.booleans())


@given(st.lists(st.none() | PUTS, max_size=60))
def test_the_requests_of_a_session_stay_in_order(steps):
    queue: FairQueue[tuple[int, int]] = FairQueue()
    served = []
    for number, step in enumerate(steps):
        if step is None:
            if queue:
                served.append(queue.pop())
        else:
            session_id, weight, after_all = step
            queue.put((session_id, number), session_id, weight, after_all=after_all)
    listed = list(queue)
    rest = drained(queue)
    assert listed == rest
    served += rest
    for session_id in range(1, 5):
        mine = [number for owner, number in served if owner == session_id]
        assert mine == sorted(mine)
    assert len(served) == sum(step is not None for step in steps)
