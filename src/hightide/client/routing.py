"""The way to the broker that can answer: the controller, a leader, a coordinator, or any broker.

`Router` keeps one connection per broker and the cluster of the last Metadata response.  It does not
know the requests: callers pass a function that sends one over a connection.  When a response says
that a role has moved, the router looks the broker up and calls the function again.

    ask_controller      the controller
    ask_leaders         the leader of each partition
    ask_coordinator     the coordinator of a group or of a transactional id
    ask_every_broker    all live brokers at once, for what no single broker knows
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, TypeVar

from hightide.client.broker_connection import (
    CLIENT_ID,
    TIMEOUT_MS,
    Connection,
    ConnectionFailed,
    check,
)
from hightide.client.model.cluster import Node, Partition
from hightide.client.retry import RETRY_MS, Backoff
from hightide.client.security import PLAINTEXT, Security
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.groups import FindCoordinatorRequest
from hightide.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

T = TypeVar("T")
ATTEMPTS = 6
"""How often to ask a controller or a leader while the role moves."""
PAUSE_S = 0.1
BROKER_TIMEOUT_S = 5.0
"""How long one of all brokers may take to answer."""

COORDINATOR_LIMIT_S = 15.0
"""How long a coordinator may take to be found, to load its partition and to end what is pending."""
COORDINATOR_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0
# A transaction waits for the markers of the one before, which takes milliseconds.
LONG_RUNNING_PAUSE_S = 0.005

TAKES_MANY = 4
"""The first version of FindCoordinator that takes several keys."""

MOVED = {
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    # A new leader does not know the high watermark yet.
    ErrorCode.OFFSET_NOT_AVAILABLE,
}
COORDINATOR_MOVED = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}

AskLeader = Callable[[Connection, Mapping[Partition, int]], Awaitable[dict[Partition, T]]]
"""Asks one leader about its partitions; the values are what the request has for each."""


class CoordinatorKind(IntEnum):
    """Numbered as in FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """What the brokers of a cluster answered, and why some did not."""

    answers: Mapping[int, T]
    silent: Mapping[int, str]


def addresses(bootstrap: str) -> list[tuple[str, int]]:
    """`host:port,host:port` as pairs; an IPv6 address stands in brackets."""
    found = []
    for text in filter(None, (part.strip() for part in bootstrap.split(","))):
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) <= 65535:
            raise ValueError(f"{text!r} is not an address; it should be host:port")
        found.append((host.removeprefix("[").removesuffix("]"), int(port)))
    if not found:
        raise ValueError("the bootstrap address is empty; it should be host:port")
    return found


class Router:
    """Connections to the brokers of one cluster, and the roles that these brokers have.

    A `long_running` client, such as a Spark query, outlives brokers: it waits for a coordinator as
    long as it retries anything else, also while no broker can be reached, and it remembers
    coordinators, because a transaction sends several requests to the same one.

    `connect_timeout_ms` is for a connection, its first response, and the first Metadata, which
    a broker that is starting does not answer; without it, `timeout_ms` is for these too.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = CLIENT_ID,
        timeout_ms: int = TIMEOUT_MS,
        connect_timeout_ms: int | None = None,
        security: Security = PLAINTEXT,
        long_running: bool = False,
    ) -> None:
        self._connect_timeout_ms = timeout_ms if connect_timeout_ms is None else connect_timeout_ms
        self._bootstrap = addresses(bootstrap)
        self._client_id = client_id
        self._security = security
        self._long_running = long_running
        self._connections: dict[tuple[str, int], Connection] = {}
        # Concurrent callers wait for the connection that is being opened.
        self._opening: dict[tuple[str, int], asyncio.Lock] = {}
        self._coordinators: dict[tuple[CoordinatorKind, str], int] = {}
        # Brokers that have answered a request of Hightide's own, and those that do not know any.
        self._is_hightide: set[int] = set()
        self._foreign: set[int] = set()
        self.timeout_ms = timeout_ms
        self.controller_id = -1
        self.nodes: dict[int, Node] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -- metadata --------------------------------------------------------------------------

    async def metadata(self, names: Sequence[str] | None, *, create: bool = False) -> Any:
        """Ask any broker for these topics, or for all, and remember the brokers."""
        topics = None
        if names is not None:
            topics = [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=create)
        connection = await self.any()
        try:
            timeout_ms = self.timeout_ms if self.nodes else self._connect_timeout_ms
            answer = await connection.send(request, timeout_ms=timeout_ms)
        except ConnectionFailed:
            # A connection that hangs is still open, and `any` would return it again.
            connection.close()
            raise
        self.nodes = {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in answer.brokers
        }
        self.controller_id = answer.controller_id
        return answer

    async def topics(self, names: Sequence[str]) -> list[Any]:
        """The topics of a Metadata response, in the order of their names; a missing one raises."""
        answer = await self.metadata(names)
        found = {topic.name: topic for topic in answer.topics}
        for name in names:
            # A topic that is being deleted may be missing from the response altogether.
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            code = found[name].error_code if name in found else missing
            if code == missing:
                raise KafkaError(missing, f"There is no topic {name!r}.")
            check(code, about=name)
        return [found[name] for name in names]

    # -- brokers ---------------------------------------------------------------------------

    async def any(self) -> Connection:
        """A connection to any broker that can be reached."""
        for connection in self._connections.values():
            if connection.is_open():
                return connection
        known = [(node.host, node.port) for node in self.nodes.values()]
        failures = []
        for address in dict.fromkeys([*self._bootstrap, *known]):
            try:
                return await self._connect(address)
            except ConnectionFailed as error:
                failures.append(str(error))
        raise ConnectionFailed(" ".join(failures))

    async def broker(self, broker_id: int) -> Connection:
        if broker_id not in self.nodes:
            await self.metadata([])
        node = self.nodes.get(broker_id)
        if node is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"There is no broker {broker_id}.")
        return await self._connect((node.host, node.port))

    async def another(self, node: Node) -> Connection:
        """One more connection to a broker; the caller closes it."""
        return await Connection.open(
            node.host,
            node.port,
            client_id=self._client_id,
            timeout_ms=self._connect_timeout_ms,
            security=self._security,
        )

    def disconnect(self, broker_id: int) -> None:
        """Close the connection to a broker that does not answer: `any` returns another one."""
        node = self.nodes.get(broker_id)
        connection = self._connections.pop((node.host, node.port), None) if node else None
        if connection is not None:
            connection.close()

    def broker_of(self, connection: Connection) -> int:
        """The id of the broker that a connection leads to; -1 if it is not known."""
        for node in self.nodes.values():
            if f"{node.host}:{node.port}" == connection.address:
                return node.id
        return -1

    async def controller(self) -> Connection:
        if self.controller_id not in self.nodes:
            await self.metadata([])
        if self.controller_id not in self.nodes:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "The cluster has no controller now.")
        return await self.broker(self.controller_id)

    async def _connect(self, address: tuple[str, int]) -> Connection:
        connection = self._connections.get(address)
        if connection is not None and connection.is_open():
            return connection
        async with self._opening.setdefault(address, asyncio.Lock()):
            connection = self._connections.get(address)
            if connection is None or not connection.is_open():
                connection = await Connection.open(
                    *address,
                    client_id=self._client_id,
                    timeout_ms=self._connect_timeout_ms,
                    security=self._security,
                )
                self._connections[address] = connection
            return connection

    # -- controller and leaders ------------------------------------------------------------

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try again, a few times, while the response says that a role has moved."""
        backoff = Backoff.every(PAUSE_S, attempts=ATTEMPTS)
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                if error.code not in MOVED or not await backoff.pause():
                    raise
            await self.metadata([])

    async def ask_controller(self, ask: Callable[[Connection], Awaitable[T]]) -> T:
        async def attempt() -> T:
            return await ask(await self.controller())

        return await self.retry(attempt)

    async def ask_leaders(
        self, values: Mapping[Partition, int], ask: AskLeader[T]
    ) -> dict[Partition, T]:
        """Ask each leader about its partitions."""

        async def attempt() -> dict[Partition, T]:
            topics = await self.topics(sorted({topic for topic, _ in values}))
            leaders = {
                (topic.name, partition.partition_index): partition.leader_id
                for topic in topics
                for partition in topic.partitions
            }
            by_leader: dict[int, dict[Partition, int]] = defaultdict(dict)
            for (topic, index), value in values.items():
                if (topic, index) not in leaders:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"Topic {topic!r} has no partition {index}.",
                    )
                by_leader[leaders[topic, index]][topic, index] = value
            found: dict[Partition, T] = {}
            for leader, part in by_leader.items():
                if leader not in self.nodes:
                    names = ", ".join(f"{topic}/{index}" for topic, index in part)
                    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{names} has no leader.")
                found.update(await ask(await self.broker(leader), part))
            return found

        return await self.retry(attempt)

    # -- coordinators ----------------------------------------------------------------------

    async def find_coordinator(self, kind: CoordinatorKind, name: str) -> int:
        """The broker that coordinates a group or a transactional id now."""
        connection = await self.any()
        many = connection.version_for(FindCoordinatorRequest) >= TAKES_MANY
        request = FindCoordinatorRequest(
            key="" if many else name, key_type=kind, coordinator_keys=[name] if many else []
        )
        answer = await connection.send(request, timeout_ms=self.timeout_ms)
        coordinator = answer.coordinators[0] if many else answer
        check(coordinator.error_code, about=name)
        return int(coordinator.node_id)

    async def ask_coordinator(
        self,
        kind: CoordinatorKind,
        name: str,
        ask: Callable[[Connection], Awaitable[T]],
        retry_on: frozenset[ErrorCode] = frozenset(),
    ) -> T:
        """Ask the coordinator, and again while it moves or loads, or answers with an error of
        `retry_on`."""

        async def attempt() -> T:
            # A remembered coordinator is used once: if this attempt fails, it is looked up again.
            broker = self._coordinators.pop((kind, name), None)
            if broker is None:
                broker = await self.find_coordinator(kind, name)
            if broker not in self.nodes:
                await self.metadata([])
            if broker not in self.nodes:
                # The broker that found the coordinator knows of it, and the one that answered
                # Metadata does not know it yet.
                raise KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"The coordinator of {name!r}, broker {broker}, is not alive.",
                )
            answer = await ask(await self.broker(broker))
            if self._long_running:
                self._coordinators[kind, name] = broker
            return answer

        return await self.retry_coordinator(attempt, retry_on)

    async def retry_coordinator(
        self,
        attempt: Callable[[], Awaitable[T]],
        retry_on: frozenset[ErrorCode] = frozenset(),
        *,
        elsewhere: bool = True,
    ) -> T:
        """Try until a time limit; `elsewhere`: another broker can take over from one that is gone,
        so a failed connection is no reason to give up."""
        first_s = LONG_RUNNING_PAUSE_S if self._long_running else COORDINATOR_PAUSE_S
        limit_s = RETRY_MS / 1000 if self._long_running else COORDINATOR_LIMIT_S
        backoff = Backoff(first_s, LONGEST_PAUSE_S, limit_s=limit_s)
        backoff.start()
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                if error.code not in COORDINATOR_MOVED | retry_on or backoff.is_over:
                    raise
            except ConnectionFailed:
                if not elsewhere or backoff.is_over or not await self._is_reachable():
                    raise
            await backoff.pause()

    async def _is_reachable(self) -> bool:
        """Whether it makes sense to retry after a connection has failed."""
        if self._long_running and self.nodes:
            return True
        try:
            await self.metadata([])
        except ConnectionFailed:
            return False
        return True

    # -- all brokers -----------------------------------------------------------------------

    async def ask_every_broker(self, ask: Callable[[Connection], Awaitable[T]]) -> Answers[T]:
        """Ask all live brokers at once, each until it has loaded its coordinator partitions.

        A broker that does not answer in time is named in the result instead of waited for.
        """
        await self.metadata([])
        brokers = sorted(self.nodes)
        results = await asyncio.gather(*(self._ask_one(broker, ask) for broker in brokers))
        answers: dict[int, T] = {}
        silent: dict[int, Exception] = {}
        for broker, (answer, failure) in zip(brokers, results, strict=True):
            if failure is not None:
                silent[broker] = failure
            elif answer is not None:
                answers[broker] = answer
        if silent and not answers:
            raise next(iter(silent.values()))
        return Answers(answers, {broker: str(error) for broker, error in silent.items()})

    async def ask_hightide(
        self, broker: int, ask: Callable[[Connection], Awaitable[T]]
    ) -> T | None:
        """Send a request that only Hightide's brokers know; None if the broker is of another make.

        Other brokers close the connection on it, which also fails whatever else is under way there.
        So each is asked twice, since a broker that restarts closes its connections too, and then
        never again.
        """
        if broker in self._foreign:
            return None
        try:
            answer = await ask(await self.broker(broker))
        except ConnectionFailed:
            # A broker that has died cannot be reached, and raises here.
            connection = await self.broker(broker)
            try:
                answer = await ask(connection)
            except ConnectionFailed:
                await self.broker(broker)
                if broker in self._is_hightide:
                    raise
                self._foreign.add(broker)
                return None
        self._is_hightide.add(broker)
        return answer

    async def _ask_one(
        self, broker: int, ask: Callable[[Connection], Awaitable[T]]
    ) -> tuple[T | None, Exception | None]:
        async def attempt() -> T:
            return await ask(await self.broker(broker))

        try:
            async with asyncio.timeout(BROKER_TIMEOUT_S):
                return await self.retry_coordinator(attempt, elsewhere=False), None
        except TimeoutError:
            return None, ConnectionFailed(f"It did not answer within {BROKER_TIMEOUT_S:g} s.")
        except (ConnectionFailed, KafkaError) as error:
            return None, error
