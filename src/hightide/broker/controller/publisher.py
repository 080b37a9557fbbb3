"""Sends the controller's decisions to every live broker.

    changed ─▶ due of each broker ─▶ one message in flight per broker ─▶ received, or due again

The first message to a broker epoch is full; later messages hold what has changed since the last one
that the broker has received.  A message is built when it is sent, so it holds the newest decisions
however long it had to wait.  Each broker has its own task, so a slow broker delays no other.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from hightide.broker.controller.context import ControllerContext
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.retry import Backoff
from hightide.core.controller.cluster_state import Partition
from hightide.core.metadata.image import published_partition
from hightide.settings import Broker as Settings
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.replication import (
    PublishedBroker,
    PublishedEndpoint,
    PublishedTopic,
    PublishStateRequest,
    PublishStateResponse,
)

log = logging.getLogger(__name__)

# The first retry is early: a broker that has just registered may not know its broker epoch yet.
_FIRST_RETRY_S = 0.02
_LONGEST_RETRY_S = 0.15
_HOLD_S = 1.0  # the longest time that the first message to a broker waits for an election

Deliver = Callable[
    [int, PublishedEndpoint | None, PublishStateRequest], Awaitable[PublishStateResponse]
]


class Sender(NamedTuple):
    """The publishing controller, its epoch, and the numbers of its messages."""

    broker_id: int
    epoch: int
    numbers: Iterator[int]
    deliver: Deliver


class _Receiver:
    """A broker in one broker epoch, and what it has not received yet."""

    def __init__(self, broker_id: int, epoch: int, endpoint: PublishedEndpoint | None) -> None:
        self.broker_id = broker_id
        self.epoch = epoch
        self.endpoint = endpoint
        self.needs_full = True
        self.lacks_brokers = True
        self.due: dict[Partition, None] = {}
        self.removed: dict[uuid.UUID, None] = {}
        self.received_count = -1
        """The count of changes when the last message it received was built."""
        self.is_unreachable = False
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def lacks_something(self) -> bool:
        return self.needs_full or self.lacks_brokers or bool(self.due or self.removed)


class Publisher:
    """Publishes the decisions of one controller epoch."""

    def __init__(
        self,
        context: ControllerContext,
        sender: Sender,
        listener: str,
        settings: Callable[[], Settings],
        on_fenced: Callable[[], None],
    ) -> None:
        self.count = 0
        """Number of changes so far, for `wait_received`."""
        self._context = context
        self._sender = sender
        self._listener = listener
        self._settings = settings
        self._on_fenced = on_fenced
        self._receivers: dict[int, _Receiver] = {}
        self._brokers: list[PublishedBroker] = []
        self._full: tuple[int, list[PublishedTopic]] = (-1, [])
        self._waiting: dict[asyncio.Future[None], tuple[int, list[_Receiver]]] = {}
        self._is_closed = False
        # The first message to a broker waits for the elections that its start causes.
        self._may_begin = asyncio.Event()
        self._may_begin.set()

    @contextmanager
    def hold_newcomers(self) -> Iterator[None]:
        """Hold back the first messages to new brokers while elections are written."""
        self._may_begin.clear()
        try:
            yield
        finally:
            self._may_begin.set()

    # -- changes ---------------------------------------------------------------------------

    def changed(self, partition: Partition) -> None:
        self.count += 1
        for receiver in self._receivers.values():
            receiver.due[partition] = None
            receiver.wake.set()

    def topic_removed(self, topic_id: uuid.UUID) -> None:
        self.count += 1
        for receiver in self._receivers.values():
            receiver.removed[topic_id] = None
            receiver.wake.set()

    def brokers_changed(self) -> None:
        """Take over which brokers are live, in which broker epochs, and which are stopping."""
        brokers = list(self._published_brokers())
        if brokers == self._brokers or self._is_closed:
            return
        self._brokers = brokers
        self.count += 1
        for broker in brokers:
            self._add_receiver(broker)
        live = {broker.broker_id for broker in brokers}
        for broker_id in [known for known in self._receivers if known not in live]:
            self._stop_receiver(self._receivers.pop(broker_id))
        self._notify_waiters()

    def _add_receiver(self, broker: PublishedBroker) -> None:
        known = self._receivers.get(broker.broker_id)
        if known is not None and known.epoch == broker.broker_epoch:
            known.lacks_brokers = True
            known.wake.set()
            return
        if known is not None:
            self._stop_receiver(known)
        endpoints = (found for found in broker.endpoints if found.listener == self._listener)
        endpoint = next(endpoints, None)
        receiver = _Receiver(broker.broker_id, broker.broker_epoch, endpoint)
        receiver.wake.set()
        receiver.task = asyncio.get_running_loop().create_task(self._run_receiver(receiver))
        self._receivers[broker.broker_id] = receiver

    @staticmethod
    def _stop_receiver(receiver: _Receiver) -> None:
        if receiver.task is not None:
            receiver.task.cancel()

    def close(self) -> None:
        """Send no more messages."""
        self._is_closed = True
        for receiver in self._receivers.values():
            self._stop_receiver(receiver)
        self._receivers.clear()
        self._notify_waiters()

    # -- waiting ---------------------------------------------------------------------------

    async def wait_received(self, count: int, timeout_s: float) -> bool:
        """Wait until all live brokers have received the changes up to `count`; False on timeout.

        An unreachable broker is not waited for: its next message holds the changes.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = (count, list(self._receivers.values()))
        self._notify_waiters()
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            self._waiting.pop(future, None)
        return True

    def _notify_waiters(self) -> None:
        for future, (count, receivers) in list(self._waiting.items()):
            if not future.done() and not any(
                self._lacks(receiver, count) for receiver in receivers
            ):
                future.set_result(None)

    def _lacks(self, receiver: _Receiver, count: int) -> bool:
        is_known = self._receivers.get(receiver.broker_id) is receiver
        return is_known and not receiver.is_unreachable and receiver.received_count < count

    # -- sending ---------------------------------------------------------------------------

    async def _run_receiver(self, receiver: _Receiver) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_HOLD_S):
                await self._may_begin.wait()
        while True:
            await receiver.wake.wait()
            receiver.wake.clear()
            backoff = Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S)
            while receiver.lacks_something:
                if not await self._send(receiver):
                    self._notify_waiters()
                    await backoff.pause()

    async def _send(self, receiver: _Receiver) -> bool:
        count = self.count
        message = self._message(receiver)
        due, receiver.due = receiver.due, {}
        removed, receiver.removed = receiver.removed, {}
        receiver.lacks_brokers = False
        code = await self._deliver(receiver, message)
        if code == ErrorCode.NONE:
            receiver.needs_full = False
            receiver.received_count = count
            self._notify_waiters()
            return True
        receiver.due = {**due, **receiver.due}
        receiver.removed = {**removed, **receiver.removed}
        receiver.lacks_brokers = True
        if code == ErrorCode.STALE_CONTROLLER_EPOCH:
            self._on_fenced()
        return False

    async def _deliver(self, receiver: _Receiver, message: PublishStateRequest) -> int | None:
        """Send a message and return the error code of the response, or None without one."""
        broker_id = receiver.broker_id
        try:
            async with asyncio.timeout(self._settings().controller_socket_timeout_ms / 1000):
                response = await self._sender.deliver(broker_id, receiver.endpoint, message)
        except (ConnectionFailed, KafkaError, TimeoutError) as failure:
            if not receiver.is_unreachable:
                receiver.is_unreachable = True
                log.warning("cannot publish to broker %d: %s", broker_id, failure)
            return None
        except Exception:
            # An error with one broker, this one included, must not affect the others.
            log.exception("cannot publish to broker %d", broker_id)
            receiver.is_unreachable = True
            return None
        if receiver.is_unreachable:
            receiver.is_unreachable = False
            log.info("broker %d receives messages again", broker_id)
        return response.error_code

    # -- messages --------------------------------------------------------------------------

    def _message(self, receiver: _Receiver) -> PublishStateRequest:
        return PublishStateRequest(
            controller_id=self._sender.broker_id,
            controller_epoch=self._sender.epoch,
            broker_epoch=receiver.epoch,
            sequence=next(self._sender.numbers),
            is_full=receiver.needs_full,
            brokers=self._brokers,
            topics=self._all_topics() if receiver.needs_full else self._topics(receiver.due),
            removed_topics=list(receiver.removed),
        )

    def _all_topics(self) -> list[PublishedTopic]:
        """Return all topics, cached: many brokers may need a full message at once."""
        if self._full[0] != self.count:
            topics = [
                PublishedTopic(
                    name=topic.name,
                    topic_id=topic.id,
                    partitions=[
                        published_partition(index, state)
                        for index, state in self._context.published_states(topic)
                    ],
                )
                for topic in self._context.machine.topics.values()
            ]
            self._full = (self.count, topics)
        return self._full[1]

    def _topics(self, due: dict[Partition, None]) -> list[PublishedTopic]:
        topics: dict[str, PublishedTopic] = {}
        for name, index in due:
            state = self._context.published_state(name, index)
            if state is None:
                continue  # the topic has been removed since
            if name not in topics:
                topic_id = self._context.machine.topics[name].id
                topics[name] = PublishedTopic(name=name, topic_id=topic_id, partitions=[])
            topics[name].partitions.append(published_partition(index, state))
        return list(topics.values())

    def _published_brokers(self) -> Iterator[PublishedBroker]:
        known = self._context.machine.brokers
        for broker_id, live in self._context.brokers.items():
            yield PublishedBroker(
                broker_id=broker_id,
                broker_epoch=live.epoch,
                rack=live.registration.rack,
                endpoints=[
                    PublishedEndpoint(
                        listener=endpoint.listener,
                        host=endpoint.host,
                        port=endpoint.port,
                        security_protocol=endpoint.security_protocol,
                    )
                    for endpoint in live.registration.endpoints
                ],
                is_shutting_down=known[broker_id].is_shutting_down,
            )
