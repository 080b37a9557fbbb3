"""The group coordinator of one partition of `__consumer_offsets`, in one leader epoch.

    load ──▶ ask ──▶ GroupCoordinator ──▶ answers ──▶ pending requests
                        ▲         └─────▶ writes ──▶ CoordinatorLog ──┐
                        └────── written, write_failed ◀───────────────┘

Each fact is handled completely before the next one: its answers are sent, its writes are appended,
and what is committed by then is reported to the coordinator.  The only exception are OffsetCommits,
which do not depend on each other.  They are buffered until the turn of the event loop is over or
another fact comes, and appended as one batch (`commit`, `flush`).

The coordinator's clock is the wall clock at the time of loading plus the monotonic time since then:
a session must not end because the wall clock was set.
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
from hightide.broker.groups.topic_matches import compile_pattern
from hightide.core.groups.consumer.consumer_group import Topic
from hightide.core.groups.consumer.topic_pattern import PatternCompiler
from hightide.core.groups.group_coordinator import GroupCoordinator
from hightide.core.groups.group_rules import Rules
from hightide.core.groups.turn import NO_PRODUCER, Outcome, Ticket, Write
from hightide.core.transactions.verification import VerificationGuard
from hightide.event_log import record
from hightide.wire.batch import BatchHeader, records
from hightide.wire.compression import Codec
from hightide.wire.control import ControlType, parse_marker
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.offsets import OffsetCommitRequest

log = logging.getLogger(__name__)

Decide = Callable[[GroupCoordinator, Ticket, int], Outcome]
"""Passes a request to the coordinator, with a ticket and the time."""
Refuse = Callable[[ErrorCode], Any]
"""Builds the response to a request of which nothing was done."""

_CLOCK_JUMP_MS = 60_000
_BATCH_BYTES = 64 * 1024
_LOG_ERROR_MS = 10_000


class PendingRequest(Protocol):
    """A request that waits for its response."""

    def reply(self, response: Any) -> None: ...

    def refusal(self, error: ErrorCode) -> Any:
        """Build the response if nothing was done, or if the outcome is unknown."""


class _FutureResponse:
    """A pending request whose handler awaits a future."""

    __slots__ = ("answer", "refusal")

    def __init__(self, answer: asyncio.Future[Any], refuse: Refuse) -> None:
        self.answer = answer
        self.refusal = refuse

    def reply(self, response: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(response)


class _Timeout(NamedTuple):
    """When the request with this ticket times out."""

    at_ms: int
    ticket: Ticket


class _BufferedCommit(NamedTuple):
    """A commit that is accepted and not yet appended."""

    ticket: Ticket
    write: Write
    timeout_ms: int


class GroupPartition:
    """A coordinator with its log, its clock and its pending requests."""

    def __init__(
        self,
        coordinator_log: CoordinatorLog,
        rules: Rules,
        random: Random,
        now_ms: Callable[[], int],
        *,
        codec: Codec,
        on_inconsistent: Callable[[GroupPartition, str], None],
        count_groups: Callable[[], int] | None = None,
        count_bytes: Callable[[], int] | None = None,
        compile_pattern: PatternCompiler = compile_pattern,
    ) -> None:
        self.coordinator = GroupCoordinator(
            rules, random, compile_pattern, count_groups, count_bytes
        )
        self.coordinator_log = coordinator_log
        self.refusal = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        """Why requests are refused; NONE once the partition is loaded."""
        self._codec = codec
        self._on_inconsistent = on_inconsistent
        self._loop = asyncio.get_running_loop()
        self._time_of_day_ms = now_ms
        self._began_ms = now_ms() - self._loop.time() * 1000
        self._next_ticket = 0
        self._current_ticket: Ticket | None = None
        self._current_answer: Any = None
        self._guard: VerificationGuard | None = None
        self._pending: dict[Ticket, PendingRequest] = {}
        self._replies: list[tuple[PendingRequest, Any]] = []
        self._buffered_commits: list[_BufferedCommit] = []
        self._timeouts: deque[_Timeout] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._loading: asyncio.Task[None] | None = None
        self._logged_error_ms = 0
        self._deleted_topics: list[str] = []  # while the partition is loading

    def __repr__(self) -> str:
        return f"<GroupPartition {self._name} in leader epoch {self.coordinator_log.epoch}>"

    @property
    def _name(self) -> str:
        return f"{self.coordinator_log.replica.topic}-{self.coordinator_log.replica.partition}"

    @property
    def pending_count(self) -> int:
        """The requests that wait for their response."""
        return len(self._pending)

    def now_ms(self) -> int:
        return int(self._began_ms + self._loop.time() * 1000)

    # -- loading ---------------------------------------------------------------------------

    def load(self, topics: Callable[[], Mapping[str, Topic]]) -> None:
        """Start to replay the log.  Until that is done, all requests are refused."""
        self._loading = self._loop.create_task(self._load(topics))

    async def _load(self, topics: Callable[[], Mapping[str, Topic]]) -> None:
        began = self._loop.time()
        try:
            await self.coordinator_log.replay(self._replay)
            self.coordinator_log.on_marker = self._marker_committed
            self.coordinator.topics_changed(topics())
            self.refusal = ErrorCode.NONE
            self.notify(lambda coordinator, now_ms: coordinator.loaded(now_ms))
            for topic in self._deleted_topics:
                self.topic_deleted(topic)
        except CoordinatorLogClosed:
            return
        except Exception:
            # Skipping a damaged record would lose a group or its offsets.
            log.exception("%s: loading failed, its groups are not available", self._name)
            self.refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return
        log.debug("%s: loaded in %.0f ms", self._name, (self._loop.time() - began) * 1000)

    def _replay(self, header: BatchHeader, batch: memoryview) -> None:
        coordinator = self.coordinator
        if header.is_control:
            for record in records(batch):
                marker = parse_marker(record)
                if marker is not None:
                    is_commit = marker.type is ControlType.COMMIT
                    coordinator.replay_marker(header.producer_id, is_commit)
            return
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER
        for record in records(batch):
            found = decoded(record.key, record.value)
            if found is not None:
                coordinator.replay(found, record.offset, producer_id)

    # -- requests --------------------------------------------------------------------------

    def ask(
        self,
        decide: Decide,
        refuse: Refuse,
        timeout_ms: int | None = None,
        guard: VerificationGuard | None = None,
    ) -> Any:
        """Return the response, or a future of it.

        After `timeout_ms` the response is COORDINATOR_NOT_AVAILABLE: the outcome is unknown.  A
        write for a transaction carries the `guard` of its verification.
        """
        if self.refusal is not ErrorCode.NONE:
            return refuse(self.refusal)
        if self._buffered_commits:
            self.flush()
        self._next_ticket = ticket = self._next_ticket + 1
        now_ms = self.now_ms()
        self._current_ticket, self._current_answer, self._guard = ticket, None, guard
        self._carry_out(decide(self.coordinator, ticket, now_ms), now_ms)
        answer, self._current_answer, self._current_ticket, self._guard = (
            self._current_answer,
            None,
            None,
            None,
        )
        if answer is None:
            answer = self._loop.create_future()
            self._pending[ticket] = _FutureResponse(answer, refuse)
            if timeout_ms is not None:
                self._add_timeout(_Timeout(now_ms + timeout_ms, ticket))
        self._set_timer()
        return answer

    def notify(self, decide: Callable[[GroupCoordinator, int], Outcome]) -> None:
        """Pass a fact to the coordinator that is not a request."""
        if self.refusal is ErrorCode.NONE:
            if self._buffered_commits:
                self.flush()
            now_ms = self.now_ms()
            self._carry_out(decide(self.coordinator, now_ms), now_ms)
            self._set_timer()

    def configured(self, rules: Rules) -> None:
        self.coordinator.rules = rules

    def topic_deleted(self, topic: str) -> None:
        if self.refusal is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._deleted_topics.append(topic)
        self.notify(lambda coordinator, now_ms: coordinator.topic_deleted(topic, now_ms))

    def _carry_out(self, outcome: Outcome, now_ms: int) -> None:
        for event in outcome.events:
            record(log, event)
        for ticket, response in outcome.answers:
            self._answered(ticket, response)
        if outcome.writes:
            for write in outcome.writes:
                self._write([write], now_ms)
            self.coordinator_log.settle()

    def _answered(self, ticket: Ticket, response: Any) -> None:
        if ticket == self._current_ticket:
            self._current_answer = response
            return
        waiting = self._pending.pop(ticket, None)
        # If the request is not pending any more, it has timed out.
        if waiting is not None:
            if not self._replies:
                self._loop.call_soon(self._reply)
            self._replies.append((waiting, response))

    def _reply(self) -> None:
        """Send the responses, after the turn: a client may send its next request at once."""
        replies, self._replies = self._replies, []
        # A connection sends its responses in order.  If the first one comes last, one write sends
        # them all.
        for pending, response in reversed(replies):
            try:
                pending.reply(response)
            except Exception:
                log.exception("%s: a response could not be sent", self._name)

    def _refuse(self, ticket: Ticket, error: ErrorCode) -> None:
        waiting = self._pending.get(ticket)
        if waiting is not None:
            self._answered(ticket, waiting.refusal(error))

    # -- commits ---------------------------------------------------------------------------

    def commit(
        self, request: OffsetCommitRequest, version: int, pending: PendingRequest, timeout_ms: int
    ) -> Any:
        """Return the response if there is one now; else `pending` gets it, after this turn."""
        self._next_ticket = ticket = self._next_ticket + 1
        outcome = self.coordinator.commit_asked(ticket, request, version, self.now_ms())
        if outcome.answers:
            return outcome.answers[0].response
        (write,) = outcome.writes
        self._pending[ticket] = pending
        if not self._buffered_commits:
            self._loop.call_soon(self.flush)
        self._buffered_commits.append(_BufferedCommit(ticket, write, timeout_ms))
        return None

    def flush(self) -> None:
        """Append the buffered commits."""
        commits, self._buffered_commits = self._buffered_commits, []
        if not commits:
            return
        now_ms = self.now_ms()
        writes: list[Write] = []
        size = 0
        for commit in commits:
            if size > _BATCH_BYTES:
                self._write(writes, now_ms)
                writes, size = [], 0
            writes.append(commit.write)
            size += approximate_size(commit.write)
        self._write(writes, now_ms)
        self.coordinator_log.settle()
        for commit in commits:
            if commit.ticket in self._pending:
                self._add_timeout(_Timeout(now_ms + commit.timeout_ms, commit.ticket))
        self._set_timer()

    # -- writing ---------------------------------------------------------------------------

    def _write(self, writes: list[Write], now_ms: int) -> None:
        """Append writes as one batch."""
        try:
            guard = None if writes[0].producer_id == NO_PRODUCER else self._guard
            batch = batch_of(writes, now_ms, self._codec)
            self.coordinator_log.append(
                batch, now_ms, lambda base: self._written(writes, base), guard
            )
            return
        except KafkaError as error:
            self._log_write_error(error, now_ms)
            code = error.code
        except Exception:
            # The coordinator must learn the outcome of every write, whatever went wrong.
            log.exception("%s: writing failed", self._name)
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        for write in writes:
            self._carry_out(self.coordinator.write_failed(write, code, now_ms), now_ms)

    def _log_write_error(self, error: KafkaError, now_ms: int) -> None:
        """Log a write error, at most once in 10 s: refused members retry at once."""
        if now_ms - self._logged_error_ms > _LOG_ERROR_MS:
            self._logged_error_ms = now_ms
            log.warning("%s: writing failed: %s", self._name, error)

    def _written(self, writes: list[Write], base_offset: int) -> None:
        """Report committed writes to the coordinator.

        The log calls this and has other callbacks to call, so no exception may escape.
        """
        now_ms = self.now_ms()
        try:
            for write in writes:
                self._carry_out(self.coordinator.written(write, base_offset, now_ms), now_ms)
                base_offset += len(write.records)
            self._set_timer()
        except Exception:
            log.exception("%s: a committed write could not be applied", self._name)
            self._loop.call_soon(self._on_inconsistent, self, "a committed write was not applied")

    def _marker_committed(self, producer_id: int, is_commit: bool) -> None:
        self.notify(
            lambda coordinator, now_ms: coordinator.transaction_ended(
                producer_id, is_commit, now_ms
            )
        )

    # -- time ------------------------------------------------------------------------------

    def _add_timeout(self, late: _Timeout) -> None:
        # All requests have the same timeout, so they time out in the order in which they came.
        while self._timeouts and self._timeouts[0].ticket not in self._pending:
            self._timeouts.popleft()
        self._timeouts.append(late)

    def _set_timer(self) -> None:
        """Set the one timer; a deadline that was postponed is noticed when the timer fires."""
        deadline_ms = self.coordinator.deadline_ms
        if self._timeouts and (deadline_ms is None or self._timeouts[0].at_ms < deadline_ms):
            deadline_ms = self._timeouts[0].at_ms
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
        if abs(self._time_of_day_ms() - now_ms) > _CLOCK_JUMP_MS:
            self._on_inconsistent(self, "the wall clock was set")
            return
        self.flush()
        while self._timeouts and self._timeouts[0].at_ms <= now_ms:
            self._refuse(self._timeouts.popleft().ticket, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._carry_out(self.coordinator.time_passed(now_ms), now_ms)
        self._set_timer()

    # -- resigning -------------------------------------------------------------------------

    def resign(self) -> None:
        """Refuse all pending requests: another broker takes over, or this one loads again."""
        is_loaded = self.refusal is ErrorCode.NONE
        self.refusal = ErrorCode.NOT_COORDINATOR
        if self._timer is not None:
            self._timer.cancel()
        if self._loading is not None:
            self._loading.cancel()
        self.coordinator_log.close()
        self._buffered_commits.clear()
        if is_loaded:
            for ticket, response in self.coordinator.resigned().answers:
                self._answered(ticket, response)
        for ticket in [*self._pending]:
            self._refuse(ticket, ErrorCode.NOT_COORDINATOR)
