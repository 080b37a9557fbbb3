"""The groups of one partition of `__consumer_offsets`, while this broker leads it in one epoch.

    load ──▶ ask ──▶ machine ──▶ answers ──▶ whoever waits for the ticket
                        ▲   └──▶ writes ──▶ log ──┐
                        └── written, write_failed ◀┘

Every fact is told to the machine to its end: what it answers is handed out, what it writes is
appended, and what is committed by then is told, before the next fact is.  Only the commits of
offsets, which do not depend on each other, linger until the turn of the event loop is over or
something else happens: those that came together are one batch (`commit`, `flush`).

The machine's clock is the time of day when the partition was loaded and the time that has passed
since.  A session must not end because somebody has set a clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple, Protocol

from hightide.broker.coordinator_log import CoordinatorLog, CoordinatorLogClosed
from hightide.broker.groups.batches import approximate_size, batch_of, decoded
from hightide.broker.groups.re2_patterns import compile_pattern
from hightide.core.groups.consumer.consumer_group import Topic
from hightide.core.groups.group_coordinator import GroupCoordinator
from hightide.core.groups.group_rules import Rules
from hightide.core.groups.turn import NO_PRODUCER, Outcome, Ticket, Write
from hightide.core.transactions.verification import Guard
from hightide.wire.batch import BatchHeader, records
from hightide.wire.compression import Codec
from hightide.wire.control import ControlType, parse_marker
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.offsets import OffsetCommitRequest

log = logging.getLogger(__name__)

Fact = Callable[[GroupCoordinator, Ticket, int], Outcome]
"""What is asked of the machine: with a ticket, now."""
Refuse = Callable[[ErrorCode], Any]
"""The answer to a request of which nothing was done."""

_CLOCK_WAS_SET_MS = 60_000
_BATCH_BYTES = 64 * 1024
_COMPLAIN_MS = 10_000


class Asker(Protocol):
    """Somebody who waits for an answer."""

    def reply(self, response: Any) -> None: ...

    def refusal(self, error: ErrorCode) -> Any:
        """The answer if nothing was done, or if nobody knows."""


class _Future:
    """Somebody who awaits it."""

    __slots__ = ("answer", "refusal")

    def __init__(self, answer: asyncio.Future[Any], refuse: Refuse) -> None:
        self.answer = answer
        self.refusal = refuse

    def reply(self, response: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(response)


class _Late(NamedTuple):
    """When a ticket has waited long enough for its records to be committed."""

    at_ms: int
    ticket: Ticket


class _Commit(NamedTuple):
    """A commit that is decided and not yet appended."""

    ticket: Ticket
    write: Write
    limit_ms: int


class GroupPartition:
    """One machine, its log, its clock and those who wait."""

    def __init__(
        self,
        led_log: CoordinatorLog,
        rules: Rules,
        random: Random,
        now_ms: Callable[[], int],
        *,
        codec: Codec,
        on_doubt: Callable[[GroupPartition, str], None],
    ) -> None:
        self.machine = GroupCoordinator(rules, random, compile_pattern)
        self.led_log = led_log
        self.refusal = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        """Why nothing is answered; NONE when it is."""
        self._codec = codec
        self._on_doubt = on_doubt
        self._loop = asyncio.get_running_loop()
        self._time_of_day_ms = now_ms
        self._began_ms = now_ms() - self._loop.time() * 1000
        self._next_ticket = 0
        self._asking: Ticket | None = None
        self._answer: Any = None
        self._guard: Guard | None = None
        self._waiting: dict[Ticket, Asker] = {}
        self._replies: list[tuple[Asker, Any]] = []
        self._lingering: list[_Commit] = []
        self._late: deque[_Late] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._loading: asyncio.Task[None] | None = None
        self._complained_ms = 0
        self._deleted: list[str] = []  # topics, while it is loading

    def __repr__(self) -> str:
        partition = self.led_log.replica.partition
        return f"<GroupsPartition {partition} in epoch {self.led_log.epoch}>"

    def now_ms(self) -> int:
        return int(self._began_ms + self._loop.time() * 1000)

    # -- loading ---------------------------------------------------------------------------

    def load(self, topics: Callable[[], Mapping[str, Topic]]) -> None:
        """Begin to read what is there; until that is done everything is refused."""
        self._loading = self._loop.create_task(self._load(topics))

    async def _load(self, topics: Callable[[], Mapping[str, Topic]]) -> None:
        began = self._loop.time()
        try:
            await self.led_log.replay(self._replay)
            self.led_log.on_marker = self._marker
            self.machine.topics_changed(topics())
            self.refusal = ErrorCode.NONE
            self.tell(lambda machine, now_ms: machine.loaded(now_ms))
            for topic in self._deleted:
                self.topic_deleted(topic)
        except CoordinatorLogClosed:
            return
        except Exception:
            # Whoever passed over a damaged record would forget a group, or its offsets.
            log.exception("%r cannot be loaded, its groups are not served", self)
            self.refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return
        log.debug("%r: loaded in %.0f ms", self, (self._loop.time() - began) * 1000)

    def _replay(self, header: BatchHeader, batch: memoryview) -> None:
        machine = self.machine
        if header.is_control:
            for record in records(batch):
                marker = parse_marker(record)
                if marker is not None:
                    is_commit = marker.type is ControlType.COMMIT
                    machine.replay_marker(header.producer_id, is_commit)
            return
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER
        for record in records(batch):
            found = decoded(record.key, record.value)
            if found is not None:
                machine.replay(found, record.offset, producer_id)

    # -- asking ----------------------------------------------------------------------------

    def ask(
        self,
        fact: Fact,
        refuse: Refuse,
        limit_ms: int | None = None,
        guard: Guard | None = None,
    ) -> Any:
        """The answer, or a future of it.  After `limit_ms` the answer is that nobody knows.

        What is written for a transaction comes with the `guard` of its verification.
        """
        if self.refusal is not ErrorCode.NONE:
            return refuse(self.refusal)
        if self._lingering:
            self.flush()
        self._next_ticket = ticket = self._next_ticket + 1
        now_ms = self.now_ms()
        self._asking, self._answer, self._guard = ticket, None, guard
        self._carry_out(fact(self.machine, ticket, now_ms), now_ms)
        answer, self._answer, self._asking, self._guard = self._answer, None, None, None
        if answer is None:
            answer = self._loop.create_future()
            self._waiting[ticket] = _Future(answer, refuse)
            if limit_ms is not None:
                self._limit(_Late(now_ms + limit_ms, ticket))
        self._set_timer()
        return answer

    def tell(self, fact: Callable[[GroupCoordinator, int], Outcome]) -> None:
        """Something has happened that nobody asked for."""
        if self.refusal is ErrorCode.NONE:
            if self._lingering:
                self.flush()
            now_ms = self.now_ms()
            self._carry_out(fact(self.machine, now_ms), now_ms)
            self._set_timer()

    def topic_deleted(self, topic: str) -> None:
        if self.refusal is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._deleted.append(topic)
        self.tell(lambda machine, now_ms: machine.topic_deleted(topic, now_ms))

    def _carry_out(self, outcome: Outcome, now_ms: int) -> None:
        for ticket, response in outcome.answers:
            self._answered(ticket, response)
        if outcome.writes:
            for write in outcome.writes:
                self._write([write], now_ms)
            self.led_log.settle()

    def _answered(self, ticket: Ticket, response: Any) -> None:
        if ticket == self._asking:
            self._answer = response
            return
        waiting = self._waiting.pop(ticket, None)
        # If nobody waits any more, it was told that nobody knows.
        if waiting is not None:
            if not self._replies:
                self._loop.call_soon(self._reply)
            self._replies.append((waiting, response))

    def _reply(self) -> None:
        """Hand the answers out, after the turn: whoever gets one may ask the next question."""
        replies, self._replies = self._replies, []
        # A connection's answers leave in order: when the first is given last, in one write.
        for asker, response in reversed(replies):
            try:
                asker.reply(response)
            except Exception:
                log.exception("%r: an answer could not be given", self)

    def _refuse(self, ticket: Ticket, error: ErrorCode) -> None:
        waiting = self._waiting.get(ticket)
        if waiting is not None:
            self._answered(ticket, waiting.refusal(error))

    # -- commits ---------------------------------------------------------------------------

    def commit(
        self, request: OffsetCommitRequest, version: int, asker: Asker, limit_ms: int
    ) -> Any:
        """The answer if there is one already; else the asker gets it, after this turn."""
        self._next_ticket = ticket = self._next_ticket + 1
        outcome = self.machine.commit_asked(ticket, request, version, self.now_ms())
        if outcome.answers:
            return outcome.answers[0].response
        (write,) = outcome.writes
        self._waiting[ticket] = asker
        if not self._lingering:
            self._loop.call_soon(self.flush)
        self._lingering.append(_Commit(ticket, write, limit_ms))
        return None

    def flush(self) -> None:
        """Append the commits that have come."""
        came, self._lingering = self._lingering, []
        if not came:
            return
        now_ms = self.now_ms()
        writes: list[Write] = []
        size = 0
        for commit in came:
            if size > _BATCH_BYTES:
                self._write(writes, now_ms)
                writes, size = [], 0
            writes.append(commit.write)
            size += approximate_size(commit.write)
        self._write(writes, now_ms)
        self.led_log.settle()
        for commit in came:
            if commit.ticket in self._waiting:
                self._limit(_Late(now_ms + commit.limit_ms, commit.ticket))
        self._set_timer()

    # -- writing ---------------------------------------------------------------------------

    def _write(self, writes: list[Write], now_ms: int) -> None:
        """Append writes as one batch."""
        try:
            guard = None if writes[0].producer_id == NO_PRODUCER else self._guard
            batch = batch_of(writes, now_ms, self._codec)
            self.led_log.append(batch, now_ms, lambda base: self._written(writes, base), guard)
            return
        except KafkaError as error:
            self._complain(error, now_ms)
            code = error.code
        except Exception:
            # The machine must hear of every write what became of it, whosever mistake it was.
            log.exception("%r cannot write", self)
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        for write in writes:
            self._carry_out(self.machine.write_failed(write, code, now_ms), now_ms)

    def _complain(self, error: KafkaError, now_ms: int) -> None:
        """Tell an operator, now and then: members that are refused come again at once."""
        if now_ms - self._complained_ms > _COMPLAIN_MS:
            self._complained_ms = now_ms
            log.warning("%r cannot write: %s", self, error)

    def _written(self, writes: list[Write], base_offset: int) -> None:
        """Called by the log, which has others to tell."""
        now_ms = self.now_ms()
        try:
            for write in writes:
                self._carry_out(self.machine.written(write, base_offset, now_ms), now_ms)
                base_offset += len(write.records)
            self._set_timer()
        except Exception:
            log.exception("%r: what was written could not be told", self)
            self._loop.call_soon(self._on_doubt, self, "it has missed what was written")

    def _marker(self, producer_id: int, is_commit: bool) -> None:
        self.tell(lambda machine, now_ms: machine.transaction_ended(producer_id, is_commit, now_ms))

    # -- time ------------------------------------------------------------------------------

    def _limit(self, late: _Late) -> None:
        # All have the same limit, so the first to come is the first to be late.
        while self._late and self._late[0].ticket not in self._waiting:
            self._late.popleft()
        self._late.append(late)

    def _set_timer(self) -> None:
        """One timer for all; a deadline that was put off is looked at when its time comes."""
        deadline_ms = self.machine.deadline_ms
        if self._late and (deadline_ms is None or self._late[0].at_ms < deadline_ms):
            deadline_ms = self._late[0].at_ms
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        in_s = max(deadline_ms - self._began_ms - self._loop.time() * 1000, 0) / 1000
        self._timer = self._loop.call_later(in_s, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        now_ms = self.now_ms()
        if abs(self._time_of_day_ms() - now_ms) > _CLOCK_WAS_SET_MS:
            self._on_doubt(self, "somebody has set the clock")
            return
        self.flush()
        while self._late and self._late[0].at_ms <= now_ms:
            self._refuse(self._late.popleft().ticket, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._carry_out(self.machine.time_passed(now_ms), now_ms)
        self._set_timer()

    # -- the end ---------------------------------------------------------------------------

    def resign(self) -> None:
        """Another broker takes over, or this one does anew: everybody who waits is told."""
        is_loaded = self.refusal is ErrorCode.NONE
        self.refusal = ErrorCode.NOT_COORDINATOR
        if self._timer is not None:
            self._timer.cancel()
        if self._loading is not None:
            self._loading.cancel()
        self.led_log.end()
        self._lingering.clear()
        if is_loaded:
            for ticket, response in self.machine.resigned().answers:
                self._answered(ticket, response)
        for ticket in [*self._waiting]:
            self._refuse(ticket, ErrorCode.NOT_COORDINATOR)
