"""The checker of histories finds every anomaly, and none in a correct history."""

from __future__ import annotations

import pytest

from tests.conformance.history import AnomaliesFound, History, Writer

TOPIC = "t"
WHERE = (TOPIC, 0)
DURABLE = Writer("all")
PLAIN = Writer("plain", is_idempotent=False)
FAST = Writer("one", is_durable=False, is_idempotent=False)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


@pytest.fixture
def history():
    return History(Clock())


def write(history, count, writer=DURABLE, first=0):
    """Send and acknowledge values one after the other; return the log."""
    log = []
    for offset in range(first, first + count):
        send = history.send(writer, TOPIC, 0)
        history.acked(send, offset)
        log.append((offset, send.value))
    return log


def read(history, records, name="reader"):
    history.reader(name).records[WHERE] += records


def kinds(history, log):
    return {anomaly.kind for anomaly in history.anomalies({WHERE: log})}


def test_a_log_that_has_everything_is_in_order(history):
    log = write(history, 5)
    read(history, log)
    read(history, log[2:], "one that began in the middle")
    history.checked({WHERE: log})


def test_what_was_sent_without_an_answer_may_be_there_or_not(history):
    log = write(history, 2)
    kept, lost = history.send(DURABLE, TOPIC, 0), history.send(DURABLE, TOPIC, 0)
    history.failed(lost, "timed out")
    history.checked({WHERE: [*log, (2, kept.value)]})


def test_a_write_that_is_not_there_is_lost(history):
    log = write(history, 3)
    assert kinds(history, log[:2]) == {"lost"}
    with pytest.raises(AnomaliesFound, match="all #2"):
        history.checked({WHERE: log[:2]})


def test_a_write_without_all_replicas_may_be_lost(history):
    log = write(history, 3, FAST)
    history.checked({WHERE: log[:2]})


def test_a_partition_without_a_log_has_lost_everything(history):
    write(history, 1)
    assert {anomaly.kind for anomaly in history.anomalies({})} == {"lost"}


def test_what_was_read_stays_even_if_it_could_be_lost(history):
    log = write(history, 3, FAST)
    read(history, log)
    assert kinds(history, log[:2]) == {"dirty-read"}


def test_an_offset_has_one_value_for_ever(history):
    log = write(history, 2)
    read(history, [log[0], (1, log[0][1])])
    assert kinds(history, log) == {"inconsistent-offsets"}


def test_an_acknowledged_offset_is_where_the_record_is(history):
    log = write(history, 2)
    other = history.send(PLAIN, TOPIC, 0)
    history.acked(other, 3)
    assert kinds(history, [*log, (2, other.value)]) == {"inconsistent-offsets"}


@pytest.mark.parametrize(("writer", "expected"), [(DURABLE, {"duplicate"}), (PLAIN, set())])
def test_only_who_is_idempotent_is_never_written_twice(history, writer, expected):
    log = write(history, 2, writer)
    assert kinds(history, [*log, (2, log[1][1])]) == expected


@pytest.mark.parametrize(("writer", "expected"), [(DURABLE, {"reordered"}), (PLAIN, set())])
def test_only_who_is_idempotent_is_written_in_order(history, writer, expected):
    first, second = history.send(writer, TOPIC, 0), history.send(writer, TOPIC, 0)
    history.acked(first, 1)
    history.acked(second, 0)
    assert kinds(history, [(0, second.value), (1, first.value)]) == expected


def test_what_was_acknowledged_before_another_began_comes_before_it(history):
    (first,) = write(history, 1, PLAIN)
    second = history.send(FAST, TOPIC, 0)
    history.acked(second)
    log = [(0, second.value), (1, first[1])]
    assert "reordered" in kinds(history, log)
    assert "reordered" not in kinds(history, [first, (1, second.value)])


def test_two_that_were_under_way_together_may_come_in_any_order(history):
    first, second = history.send(PLAIN, TOPIC, 0), history.send(FAST, TOPIC, 0)
    history.acked(first, 1)
    history.acked(second, 0)
    history.checked({WHERE: [(0, second.value), (1, first.value)]})


def test_what_was_refused_is_not_written(history):
    send = history.send(DURABLE, TOPIC, 0)
    history.refused(send, "NOT_ENOUGH_REPLICAS")
    history.checked({WHERE: []})
    assert kinds(history, [(0, send.value)]) == {"refused-written"}


def test_what_was_never_sent_is_not_there(history):
    log = write(history, 1)
    assert kinds(history, [*log, (1, b"who?")]) == {"phantom"}


def test_a_log_has_no_holes(history):
    log = write(history, 3)
    assert "hole" in kinds(history, [log[0], log[2]])


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ([0, 1, 1, 2], {"reread"}),
        ([0, 2], {"skipped", "unseen"}),
        ([0, 1], {"unseen"}),
    ],
)
def test_a_reader_is_given_each_offset_once_and_in_order(history, order, expected):
    log = write(history, 3)
    read(history, [log[at] for at in order])
    assert kinds(history, log) == expected


def test_a_reader_that_was_told_an_error_counts(history):
    log = write(history, 1)
    read(history, log)
    history.readings[0].errors.append("OFFSET_OUT_OF_RANGE")
    assert kinds(history, log) == {"reader-error"}


def test_the_longest_stall_of_a_partition_is_between_two_acknowledgements():
    times = iter([0.0, 1.0, 1.0, 1.5, 1.5, 4.0, 9.0, 9.0])
    history = History(lambda: next(times))
    for offset in range(3):
        history.acked(history.send(DURABLE, TOPIC, 0), offset)
    history.acked(history.send(Writer("without offsets"), TOPIC, 0))
    assert history.stalls_s() == history.stalls_s(since_s=2.0) == {WHERE: 2.5}
    assert history.stalls_s(since_s=5.0) == {WHERE: 0.0}
    assert history.ends() == {WHERE: 3}
