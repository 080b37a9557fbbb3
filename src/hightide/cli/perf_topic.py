"""A topic of our own on somebody's cluster: created, used, and deleted whatever happens."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from hightide.cli.options import Failed, ask
from hightide.cli.render import say
from hightide.client.admin import Admin
from hightide.client.connection import ConnectionFailed
from hightide.client.model.cluster import TopicDescription
from hightide.wire.errors import ErrorCode, KafkaError

READY_WITHIN_S = 5.0
PAUSE_S = 0.05
NOT_YET = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE}


@contextmanager
def own_topic(bootstrap: str, name: str, partitions: int, replication_factor: int) -> Iterator[str]:
    """A new topic; an existing one is refused and not touched."""
    # SIGTERM takes the way of Ctrl-C, or the topic would stay behind.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        ask(bootstrap, lambda admin: _refuse_existing(admin, name))
        try:
            ask(bootstrap, lambda admin: _create(admin, name, partitions, replication_factor))
        except (KafkaError, Failed):
            raise
        except BaseException:
            say(f"Topic {name!r} may have been created, and is empty then. {_advice(name)}")
            raise
        try:
            ask(bootstrap, lambda admin: await_writable(admin, name))
            yield name
        except BaseException:
            if failure := _delete(bootstrap, name):
                say(failure)
            raise
        if failure := _delete(bootstrap, name):
            raise Failed(failure)
    finally:
        signal.signal(signal.SIGTERM, before)


async def _refuse_existing(admin: Admin, name: str) -> None:
    if any(each.name == name for each in await admin.topics.list()):
        raise Failed(
            f"Topic {name!r} exists already; this command writes only to a topic of its own."
        )


async def _create(admin: Admin, name: str, partitions: int, replication_factor: int) -> None:
    await admin.topics.create(name, partitions=partitions, replication_factor=replication_factor)


async def await_writable(admin: Admin, name: str, acks: str = "all") -> None:
    """Wait for leaders and enough replicas in sync; without them a client would try for ever."""
    why = f"The cluster does not know its new topic {name!r}."
    for _ in range(int(READY_WITHIN_S / PAUSE_S)):
        try:
            (found,) = await admin.topics.describe([name])
            needed = (await admin.configs.min_insync_replicas([name])).get(name, 1)
            obstacle = what_prevents_writing(found, needed if acks in {"all", "-1"} else 0)
        except KafkaError as error:
            # A broker may not have heard of a new topic yet.
            if error.code not in NOT_YET:
                raise
        else:
            if obstacle is None:
                return
            why = obstacle
        await asyncio.sleep(PAUSE_S)
    raise Failed(why)


def what_prevents_writing(topic: TopicDescription, needed: int) -> str | None:
    """Why nothing can be written if so many replicas must have it, in a sentence."""
    for each in topic.partitions:
        if each.leader < 0:
            return f"Partition {topic.name}/{each.partition} has no leader."
        if len(each.isr) < needed:
            return (
                f"Partition {topic.name}/{each.partition} has {len(each.isr)} of "
                f"{len(each.replicas)} replicas in sync, but min.insync.replicas is {needed}: "
                "nothing can be written with acks=all."
            )
    return None


def _delete(bootstrap: str, name: str) -> str | None:
    """Delete the topic; a sentence if that failed."""
    try:
        ask(bootstrap, lambda admin: admin.topics.delete(name))
    except (KafkaError, ConnectionFailed, OSError) as error:
        return f"Topic {name!r} could not be deleted: {error} {_advice(name)}"
    except KeyboardInterrupt:
        say(f"Topic {name!r} may be left. {_advice(name)}")
        raise
    return None


def _advice(name: str) -> str:
    return f"To delete it: hightide topic delete {name} --if-exists."
