"""`hightide consume --group`: read as a member of a group.

Offsets are committed after their records are printed, never before: if the reader of the output
closes the pipe, as `head` does, no record is skipped.  Some may be printed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hightide.cli import librdkafka, position, render
from hightide.cli.options import Failed, wrong_usage
from hightide.cli.position import Position
from hightide.cli.record.waiting import Waiting

POLL_S = 0.5
AT_ONCE = 1000
"""How many records are printed between two flushes; flushed records may be committed."""


def settings(group: str, wanted: Position) -> dict[str, Any]:
    """The consumer's settings.  A position applies to partitions without a commit."""
    match wanted:
        case position.Beginning():
            reset = "earliest"
        case position.End():
            reset = "latest"
        case _:
            wrong_usage(
                "a group continues from its commits; `hightide group reset` changes them, and "
                "--from beginning or --from end is for partitions without a commit"
            )
    return {"group.id": group, "enable.auto.commit": True, "auto.offset.reset": reset}


def read(
    consumer: Any, topic: str, count: int | None, follow: bool, waiting: Waiting
) -> Iterator[Any]:
    """Messages as they arrive, until the end of all assigned partitions, or for ever."""
    member = Member(consumer, waiting)
    librdkafka.subscribe(consumer, topic, member.assigned, member.revoked)
    printed = 0
    while printed != count:
        message = consumer.poll(0)
        if message is None or member.is_full():
            member.flush()
            if message is None:
                waiting.begin()
            message = message or consumer.poll(POLL_S)
        error = message and message.error()
        if message is not None and error is None:
            waiting.end()
            yield message
            member.printed(message)
            printed += 1
            continue
        if error is not None:
            if librdkafka.is_end_of_partition(error):
                member.ended.add(message.partition())
                waiting.is_at_end = not printed and member.is_done()
            elif librdkafka.is_fatal(error):
                raise Failed(librdkafka.sentence(error))
        if not follow and member.is_done():
            break
    member.flush()
    if not follow and not printed and not member.ended:
        render.say("All partitions are assigned to other members of the group.")


class Member:
    """This member's progress: ended partitions, and messages that are printed but not flushed."""

    def __init__(self, consumer: Any, waiting: Waiting) -> None:
        self.has_joined = waiting.has_partitions = False
        self.ended: set[int] = set()
        self._consumer = consumer
        self._waiting = waiting
        self._printed: dict[int, Any] = {}
        self._count = 0

    def assigned(self, _consumer: Any, _partitions: Any) -> None:
        self.has_joined = self._waiting.has_partitions = True

    def revoked(self, _consumer: Any, _partitions: Any) -> None:
        """Flush, so that the next owner does not read the printed records again."""
        self._waiting.has_partitions = False
        self.flush()
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
        return all(partition.partition in self.ended for partition in self._consumer.assignment())

    def flush(self) -> None:
        """Flush the output, and store the offsets of what was printed."""
        render.push()
        for message in self._printed.values():
            librdkafka.store(self._consumer, message)
        self._printed.clear()
        self._count = 0
