"""A temporary topic: created, used, and always deleted."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from hightide.cli.options import Failed, ask
from hightide.cli.render import say
from hightide.client.admin import Admin
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.model.cluster import TopicDescription
from hightide.client.retry import Backoff
from hightide.wire.errors import ErrorCode, KafkaError

READY_WITHIN_S = 5.0
PAUSE_S = 0.05
NOT_YET = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE}


@contextmanager
def temporary_topic(
    bootstrap: str, name: str, partitions: int, replication_factor: int
) -> Iterator[str]:
    """Create a topic, and delete it at the end; an existing topic is refused and not touched."""
    # Handle SIGTERM like Ctrl-C, so that the topic is deleted.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        ask(bootstrap, lambda admin: _refuse_existing(admin, name))
        try:
            ask(bootstrap, lambda admin: _create(admin, name, partitions, replication_factor))
        except (KafkaError, Failed):
            raise
        except BaseException:
            say(f"Topic {name!r} may have been created. {_advice(name)}")
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
    if any(topic.name == name for topic in await admin.topics.list()):
        raise Failed(f"Topic {name!r} exists already; this command only writes to a new topic.")


async def _create(admin: Admin, name: str, partitions: int, replication_factor: int) -> None:
    await admin.topics.create(name, partitions=partitions, replication_factor=replication_factor)


async def await_writable(admin: Admin, name: str, acks: str = "all") -> None:
    """Wait for leaders and enough replicas in sync; without them a client would retry for ever."""
    why = f"The cluster does not know its new topic {name!r}."
    backoff = Backoff.every(PAUSE_S, limit_s=READY_WITHIN_S)
    backoff.start()
    while True:
        try:
            (found,) = await admin.topics.describe([name])
            needed = (await admin.configs.min_insync_replicas([name])).get(name, 1)
            obstacle = what_prevents_writing(found, needed if acks in {"all", "-1"} else 0)
        except KafkaError as error:
            # A broker may not know a new topic yet.
            if error.code not in NOT_YET:
                raise
        else:
            if obstacle is None:
                return
            why = obstacle
        if not await backoff.pause():
            raise Failed(why)


def what_prevents_writing(topic: TopicDescription, needed: int) -> str | None:
    """Why nothing can be written if `needed` replicas must be in sync; None if it can."""
    for partition in topic.partitions:
        name = f"{topic.name}/{partition.partition}"
        if partition.leader < 0:
            return f"Partition {name} has no leader."
        if len(partition.isr) < needed:
            return (
                f"Partition {name} has {len(partition.isr)} of "
                f"{len(partition.replicas)} replicas in sync, but min.insync.replicas is {needed}: "
                "nothing can be written with acks=all."
            )
    return None


def _delete(bootstrap: str, name: str) -> str | None:
    """Delete the topic; return a sentence if that failed."""
    try:
        ask(bootstrap, lambda admin: admin.topics.delete(name))
    except (KafkaError, ConnectionFailed, OSError) as error:
        return f"Topic {name!r} could not be deleted: {error} {_advice(name)}"
    except KeyboardInterrupt:
        say(f"Topic {name!r} may still exist. {_advice(name)}")
        raise
    return None


def _advice(name: str) -> str:
    return f"To delete it: hightide topic delete {name} --if-exists."
