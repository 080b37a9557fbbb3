"""`hightide consume --group`: reading as a member of a group, which remembers how far it came.

What is printed is committed, and never before it is: a reader that goes away, as `head` does, loses
nothing of what it did not take.  Some of it may be printed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hightide.cli import librdkafka, position, render
from hightide.cli.options import Failed, misused
from hightide.cli.position import Position

POLL_S = 0.5
AT_ONCE = 1000
"""Records after which what was printed is pushed out, and may be committed."""


def settings(group: str, wanted: Position) -> dict[str, Any]:
    """What the library is told.  A position is for partitions in which nothing is committed."""
    match wanted:
        case position.Beginning():
            reset = "earliest"
        case position.End():
            reset = "latest"
        case _:
            misused(
                "a group goes on where it left off; --from beginning or --from end is for what it "
                "has not read yet, and `hightide group reset` moves it"
            )
    return {"group.id": group, "enable.auto.commit": True, "auto.offset.reset": reset}


def read(consumer: Any, topic: str, *, count: int | None, follow: bool) -> Iterator[Any]:
    """Messages as they come, until all that this member was given is read, or for ever."""
    member = Member(consumer)
    librdkafka.subscribe(consumer, topic, member.given, member.taken)
    printed = 0
    while printed != count:
        message = consumer.poll(0)
        if message is None or member.is_full():
            member.settle()
            message = message or consumer.poll(POLL_S)
        error = message and message.error()
        if message is not None and error is None:
            yield message
            member.printed(message)
            printed += 1
            continue
        if error is not None:
            if librdkafka.is_end_of_partition(error):
                member.ended.add(message.partition())
            elif librdkafka.is_fatal(error):
                raise Failed(librdkafka.sentence(error))
        if not follow and member.is_done():
            break
    member.settle()
    if not follow and not printed and not member.ended:
        render.say("Other members of the group have all partitions.")


class Member:
    """What this member has been given, and what of it is printed and not pushed out yet."""

    def __init__(self, consumer: Any) -> None:
        self.has_joined = False
        self.ended: set[int] = set()
        self._consumer = consumer
        self._printed: dict[int, Any] = {}
        self._count = 0

    def given(self, _consumer: Any, _partitions: Any) -> None:
        self.has_joined = True

    def taken(self, _consumer: Any, _partitions: Any) -> None:
        """What is pushed out before others read on is not read twice."""
        self.settle()
        self.ended.clear()

    def printed(self, message: Any) -> None:
        self.ended.discard(message.partition())
        self._printed[message.partition()] = message
        self._count += 1

    def is_full(self) -> bool:
        return self._count >= AT_ONCE

    def is_done(self) -> bool:
        if not self.has_joined:
            return False
        return all(each.partition in self.ended for each in self._consumer.assignment())

    def settle(self) -> None:
        """Push out what was printed; then it counts as read."""
        render.push()
        for message in self._printed.values():
            librdkafka.store(self._consumer, message)
        self._printed.clear()
        self._count = 0
