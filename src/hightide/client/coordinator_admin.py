"""The way to the coordinators of groups and transactional ids.

A coordinator is found by asking any broker, and may have moved or be reading its log when it is
asked: then it is looked for again, until a deadline.  What no coordinator knows as a whole, such as
the list of all groups, every broker is asked at once; one that does not answer is named rather than
waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

from hightide.client.cluster_admin import ClusterAdmin
from hightide.client.connection import Connection, ConnectionFailed, check
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.groups import FindCoordinatorRequest

T = TypeVar("T")
WAIT_S = 15.0
"""How long a coordinator may take to be found, to load and to be done with what it is at."""
PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0
BROKER_TIMEOUT_S = 5.0
TAKES_MANY = 4
"""The first version of FindCoordinator that takes several keys."""

COME_AGAIN = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


class CoordinatorKind(IntEnum):
    """Numbered as in FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """What the brokers of a cluster answered, and why some did not."""

    answers: Mapping[int, T]
    silent: Mapping[int, str]


class CoordinatorAdmin(ClusterAdmin):
    """The questions to coordinators."""

    _wait_s = WAIT_S
    _pause_s = PAUSE_S

    async def find_coordinator(self, kind: CoordinatorKind, name: str) -> int:
        """The broker that coordinates a group or a transactional id now."""
        connection = await self._routes.any()
        many = connection.version_for(FindCoordinatorRequest) >= TAKES_MANY
        request = FindCoordinatorRequest(
            key="" if many else name, key_type=kind, coordinator_keys=[name] if many else []
        )
        answer = await connection.send(request, timeout_ms=self._timeout_ms)
        found = answer.coordinators[0] if many else answer
        check(found.error_code, about=name)
        return int(found.node_id)

    async def _at_coordinator(
        self,
        kind: CoordinatorKind,
        name: str,
        ask: Callable[[Connection], Awaitable[T]],
        again: frozenset[ErrorCode] = frozenset(),
    ) -> T:
        """Ask the coordinator, and again while it is not found, moves, loads, or says what
        `again` names."""

        async def attempt() -> T:
            broker = await self.find_coordinator(kind, name)
            if broker not in self._routes.nodes:
                await self._routes.metadata([])
            if broker not in self._routes.nodes:
                # Who found it has heard of it, and the broker that told us who lives has not.
                raise KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"The coordinator of {name!r}, broker {broker}, is not there.",
                )
            return await ask(await self._routes.broker(broker))

        return await self._until_found(attempt, again)

    async def _until_found(
        self,
        attempt: Callable[[], Awaitable[T]],
        again: frozenset[ErrorCode] = frozenset(),
        *,
        elsewhere: bool = True,
    ) -> T:
        """Try until a deadline; also when a broker cannot be reached, if it may be `elsewhere`."""
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + self._wait_s, self._pause_s
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                if error.code not in COME_AGAIN | again or loop.time() + pause > deadline:
                    raise
            except ConnectionFailed:
                # The coordinator may have died, and another broker take over.
                is_late = loop.time() + pause > deadline
                if not elsewhere or is_late or not await self._is_anybody_there():
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    def _broker_at(self, connection: Connection) -> int:
        """Whose connection this is."""
        return next(
            (
                each.id
                for each in self._routes.nodes.values()
                if f"{each.host}:{each.port}" == connection.address
            ),
            -1,
        )

    async def _is_anybody_there(self) -> bool:
        try:
            await self._routes.metadata([])
        except ConnectionFailed:
            return False
        return True

    async def _at_every_broker(self, ask: Callable[[Connection], Awaitable[T]]) -> Answers[T]:
        """Ask all live brokers at once, each until it has loaded what it coordinates."""
        await self._routes.metadata([])
        brokers = sorted(self._routes.nodes)

        async def heard(broker: int) -> tuple[T | None, Exception | None]:
            async def attempt() -> T:
                return await ask(await self._routes.broker(broker))

            try:
                async with asyncio.timeout(BROKER_TIMEOUT_S):
                    return await self._until_found(attempt, elsewhere=False), None
            except TimeoutError:
                why = f"It did not answer in {BROKER_TIMEOUT_S:g} s."
                return None, ConnectionFailed(why)
            except (ConnectionFailed, KafkaError) as error:
                return None, error

        told = await asyncio.gather(*(heard(each) for each in brokers))
        answers: dict[int, T] = {}
        silent: dict[int, Exception] = {}
        for broker, (answer, failure) in zip(brokers, told, strict=True):
            if failure is not None:
                silent[broker] = failure
            elif answer is not None:
                answers[broker] = answer
        if silent and not answers:
            raise next(iter(silent.values()))
        return Answers(answers, {broker: str(error) for broker, error in silent.items()})
