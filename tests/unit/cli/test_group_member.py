"""Reading as a member of a group: offsets are committed after their records are printed."""

from __future__ import annotations

from itertools import islice

import pytest
import typer
from confluent_kafka import KafkaError, TopicPartition

from hightide.cli import position, render
from hightide.cli.options import Failed
from hightide.cli.record import group_member
from hightide.cli.record.waiting import Waiting


class Message:
    def __init__(self, partition, offset, error=None):
        self._partition, self._offset, self._error = partition, offset, error

    def partition(self):
        return self._partition

    def offset(self):
        return self._offset

    def error(self):
        return None if self._error is None else KafkaError(self._error)


END = KafkaError._PARTITION_EOF


class Consumer:
    """A consumer that gets its partitions and then these messages; None is a poll without one."""

    def __init__(self, partitions, *messages):
        self.partitions = list(partitions)
        self.messages = list(messages)
        self.stored = {}

    def subscribe(self, topics, on_assign, on_revoke):
        self.assigned, self.revoked = on_assign, on_revoke

    def assignment(self):
        return [TopicPartition("t", index) for index in self.partitions]

    def poll(self, timeout):
        if timeout == 0:
            return self.messages.pop(0) if self.messages and self.messages[0] else None
        self.assigned(self, [])
        return self.messages.pop(0) if self.messages else None

    def store_offsets(self, message):
        self.stored[message.partition()] = message.offset() + 1


def watch():
    """A watch that is not started."""
    return Waiting("localhost:1", "t", group="g")


@pytest.fixture
def pushes(monkeypatch):
    """Counts how often the output was flushed."""
    found = []
    monkeypatch.setattr(render, "push", lambda: found.append(True))
    return found


def read(consumer, count=None, follow=False):
    found = group_member.read(consumer, "t", count=count, follow=follow, waiting=watch())
    return [(message.partition(), message.offset()) for message in found]


def test_it_ends_with_its_partitions_and_stores_what_was_printed(pushes):
    consumer = Consumer(
        [0, 1],
        *(None, Message(0, 5), Message(0, 0, END), Message(1, 7), Message(0, 6)),
        *(Message(1, 0, END), Message(0, 0, END)),
    )
    assert read(consumer) == [(0, 5), (1, 7), (0, 6)]
    assert consumer.stored == {0: 7, 1: 8}


def test_what_was_not_printed_is_not_stored(pushes):
    consumer = Consumer([0], None, Message(0, 1), Message(0, 2), Message(0, 3))
    assert read(consumer, count=2) == [(0, 1), (0, 2)]
    assert consumer.stored == {0: 3}


def test_nothing_is_stored_before_it_is_pushed_out(monkeypatch):
    consumer = Consumer([0], None, Message(0, 1), Message(0, 2), None)
    gone = iter([None, BrokenPipeError()])

    def push():
        failure = next(gone)
        if failure is not None:
            raise failure

    monkeypatch.setattr(render, "push", push)
    with pytest.raises(BrokenPipeError):
        read(consumer, follow=True)
    assert consumer.stored == {}


def test_a_long_stream_is_stored_from_time_to_time(pushes, monkeypatch):
    monkeypatch.setattr(group_member, "AT_ONCE", 3)
    consumer = Consumer([0], None, *(Message(0, at) for at in range(8)))
    found = group_member.read(consumer, "t", count=None, follow=True, waiting=watch())
    assert [message.offset() for message in islice(found, 8)] == list(range(8))
    assert consumer.stored == {0: 6}


def test_what_is_taken_away_is_pushed_out_first(pushes):
    consumer = Consumer([0], None, Message(0, 1), Message(0, 2))
    found = group_member.read(consumer, "t", count=None, follow=True, waiting=watch())
    list(islice(found, 2))
    pushed = len(pushes)
    consumer.revoked(consumer, [])
    assert len(pushes) == pushed + 1
    assert consumer.stored == {0: 2}


def test_a_member_without_partitions_says_so(pushes, capsys):
    assert read(Consumer([])) == []
    assert capsys.readouterr().err == "All partitions are assigned to other members of the group.\n"


def test_an_error_that_stays_ends_it(pushes):
    consumer = Consumer([0], None, Message(0, 0, KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(Failed):
        read(consumer)


def test_a_position_is_for_what_the_group_has_not_read():
    assert group_member.settings("g", position.Beginning())["auto.offset.reset"] == "earliest"
    assert group_member.settings("g", position.End())["auto.offset.reset"] == "latest"
    with pytest.raises(typer.BadParameter, match="hightide group reset"):
        group_member.settings("g", position.Offset(5))
