"""`hightide partition show --watch`: looks at partitions again and again, and shows each look.

    looks ───▶ partitions ─┬▶ history: the states of the last minute
    events ────────────────┼▶ View ──▶ the terminal, several times a second
    min ISR, ELR ──────────┘         └▶ a pipe: the same as plain text, or the JSON of each look

Looks, events and the picture have a task each, so that the picture goes on whatever is silent.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress

from hightide.cli import moment, next_step, render
from hightide.cli.names import Names, topics_of
from hightide.cli.options import LIMIT_S, ask
from hightide.cli.partition.live_view import (
    RIBBON_MS,
    Span,
    View,
    Watched,
    clock,
    draw,
    duration,
    hold_level,
)
from hightide.cli.partition.rows import chosen, partition_details
from hightide.cli.render import Line, Output
from hightide.client.admin import Admin
from hightide.client.admin.events import EventReader
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.model.cluster import Partition
from hightide.client.model.diagnosis import NextStep
from hightide.client.model.events import BrokerEvent, EventFilter
from hightide.client.model.replicas import PartitionReplicas
from hightide.client.model.standstill import high_watermark
from hightide.client.xray.frames import Hold, PartitionFrame, TimedFrame, frame_of
from hightide.client.xray.looks import Looks
from hightide.client.xray.timeline import Timeline, state
from hightide.core.partition.state import NO_BROKER
from hightide.wire.errors import ErrorCode, KafkaError

TERMINAL_INTERVAL_S = 0.2
PIPE_INTERVAL_S = 1.0
LONGEST_DRAW_S = 0.25
"""The picture is drawn so often even if looks are rarer: the terminal may have a new size."""
EVENTS_S = 0.5
SLOWLY_S = 5.0
ANSWER_S = 1.0
CONNECT_S = 1.5
KEPT_EVENTS = 200
KEPT_MS = 300_000
"""A failover is shown for so long."""
PHASES = {
    "detected": "detected",
    "elected": "elected",
    "published": "published",
    "first_write": "first write",
    "back": "old leader back",
    "in_sync": "in sync again",
}

PARTITION_KINDS = (
    "leader_elected",
    "unclean_leader_elected",
    "partition_recovered",
    "partition_offline",
    "replicas_reassigned",
    "first_write",
    "role_changed",
    "isr_shrunk",
    "isr_grown",
    "high_watermark_stalled",
    "high_watermark_moves",
    "log_truncated",
    "records_lost",
    "replica_failed",
    "replica_recovered",
)
CLUSTER_KINDS = ("brokers_changed", "controller_elected", "state_published")
NOT_SHOWN = ("role_changed", "state_published")
"""Kinds that are needed for the phases of a failover only."""

_EXPECTED = (ConnectionFailed, KafkaError, TimeoutError, OSError)


def watch(names: Names, bootstrap: str, output: Output, interval_s: float | None) -> None:
    """Show the partitions until Ctrl-C, which is how a watch ends: the exit code is 0."""

    async def run(_: Admin) -> None:
        # A silent broker must not delay the search for one that answers.
        limit_ms = round(min(LIMIT_S.get(), CONNECT_S) * 1000)
        async with (
            Admin(bootstrap, connect_timeout_ms=limit_ms) as admin,
            Admin(bootstrap, connect_timeout_ms=limit_ms) as other,
        ):
            await _Watch(admin, other, names, bootstrap).run(output, interval_s)

    with suppress(KeyboardInterrupt):
        ask(bootstrap, run)


class _Watch:
    """The newest state of some partitions, and what they were in the last minute."""

    def __init__(self, admin: Admin, other: Admin, names: Names, bootstrap: str) -> None:
        """`other` has connections of its own: a silent broker must not delay the looks."""
        self._names, self._topics = names, topics_of(names)
        self._bootstrap = bootstrap
        self._looks = Looks(admin)
        self._other = other
        self._min_isr: dict[str, int] = {}
        self._partitions: list[PartitionReplicas] = []
        self._histories: dict[Partition, History] = {}
        self._events: deque[BrokerEvent] = deque(maxlen=KEPT_EVENTS)
        self._trouble = ""
        self._has_looked = asyncio.Event()
        self._is_found = False
        self._local: tuple[int, bool] = 0, False
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, output: Output, interval_s: float | None) -> None:
        is_terminal = output is Output.TABLE and render.is_interactive()
        if interval_s is None:
            interval_s = TERMINAL_INTERVAL_S if is_terminal else PIPE_INTERVAL_S
        await self._read_slowly()
        self._tasks.add(asyncio.create_task(self._keep_reading()))
        try:
            if output is Output.JSON:
                await self._print_json(interval_s)
            self._tasks.add(asyncio.create_task(self._keep_looking(interval_s)))
            self._tasks.add(asyncio.create_task(self._follow_events()))
            await self._until_first_look()
            if is_terminal:
                await self._draw(interval_s)
            await self._print_text(interval_s)
        finally:
            self._looks.stop()
            for task in self._tasks:
                task.cancel()

    # -- asking ----------------------------------------------------------------------------

    async def _look(self) -> None:
        """Look once; a cluster that is away is a state like others."""
        try:
            await self._looks.look_at(self._topics)
            for topic in self._topics:
                if topic not in self._looks.topics:
                    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    raise KafkaError(missing, f"There is no topic {topic!r}.")
            known = sorted(self._looks.partitions.items())
            self._partitions = chosen([partition for _, partition in known], self._names)
        except _EXPECTED as error:
            # What has never been there is probably a mistake.
            if not self._is_found and isinstance(error, KafkaError):
                raise
            self._trouble = str(error) or "No broker answers."
            for history in self._histories.values():
                history.was_away(moment.now_ms())
        else:
            self._trouble, self._is_found = "", True
            self._remember()
        self._has_looked.set()

    def _remember(self) -> None:
        now_ms = moment.now_ms()
        for partition in self._partitions:
            frame = frame_of(partition, self._min_isr.get(partition.topic, 1))
            key = partition.topic, partition.partition
            self._histories.setdefault(key, History()).add(now_ms, frame)

    async def _keep_looking(self, interval_s: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await self._look()
            await asyncio.sleep(max(0.01, interval_s - (loop.time() - began)))

    async def _read_slowly(self) -> None:
        """Read what changes rarely: min ISR, and the ELRs for partitions without any report."""
        try:
            async with asyncio.timeout(ANSWER_S):
                self._min_isr |= await self._other.configs.min_insync_replicas(self._topics)
                eligible = await self._other.replicas.eligible(self._topics)
        except _EXPECTED:
            return
        if eligible != self._looks.eligible:
            self._looks.eligible = eligible
            self._looks.touch(eligible)

    async def _keep_reading(self) -> None:
        loop = asyncio.get_running_loop()
        read_s = loop.time()
        while True:
            await asyncio.sleep(ANSWER_S)
            is_urgent = not self._min_isr or any(one.is_offline for one in self._partitions)
            if is_urgent or loop.time() - read_s > SLOWLY_S:
                await self._read_slowly()
                read_s = loop.time()

    async def _follow_events(self) -> None:
        wanted = (
            EventFilter(kinds=PARTITION_KINDS, topics=self._names),
            EventFilter(kinds=CLUSTER_KINDS),
        )
        readers = [self._other.events.reader(one, answer_s=ANSWER_S) for one in wanted]
        is_first = [True] * len(readers)
        while True:
            for at, reader in enumerate(readers):
                try:
                    self._take_events(await _read(reader, is_first=is_first[at]))
                    is_first[at] = False
                except _EXPECTED:
                    continue
            await asyncio.sleep(EVENTS_S)

    def _take_events(self, found: Iterable[BrokerEvent]) -> None:
        # All brokers report a new controller; one of them is it.
        new = [event for event in found if event.data.get("is_here", True)]
        if new:
            events = sorted([*self._events, *new], key=lambda event: event.order)
            self._events = deque(events, KEPT_EVENTS)

    # -- showing ---------------------------------------------------------------------------

    async def _until_first_look(self) -> None:
        while not self._has_looked.is_set():
            await self._pause(0.01)

    async def _pause(self, seconds: float) -> None:
        """Wait; a task that has failed ends the command."""
        done, _ = await asyncio.wait(
            self._tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            task.result()

    async def _draw(self, interval_s: float) -> None:
        """Draw on the terminal until the task is cancelled; leave the last picture there."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        signals: list[int] = []

        def terminated() -> None:
            signals.append(signal.SIGTERM)
            task.cancel()

        # The terminal must get its cursor and its lines back.
        loop.add_signal_handler(signal.SIGTERM, terminated)
        try:
            with ExitStack() as stack:
                show = stack.enter_context(render.screen(self._fill))
                while True:
                    show()
                    await self._pause(min(interval_s, LONGEST_DRAW_S))
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            render.write_lines(self._fill(shutil.get_terminal_size().columns, None))
            if signals:
                sys.exit(128 + signals[0])

    def _fill(self, width: int, height: int | None) -> list[Line]:
        return draw(self.view(moment.now_ms()), width, height)

    async def _print_text(self, interval_s: float) -> None:
        while True:
            render.write_lines([*self._fill(shutil.get_terminal_size().columns, None), []])
            await self._pause(interval_s)

    async def _print_json(self, interval_s: float) -> None:
        """Print one line for each look; what is missing is named on stderr, each time once."""
        said: set[str] = set()
        while True:
            await self._look()
            missing = {f"hightide: {self._trouble}"} if self._trouble else self._silent()
            for sentence in sorted(missing - said):
                render.say(sentence)
            said = missing
            if not self._trouble:
                details = [
                    partition_details(partition, self._min_isr, self._bootstrap)
                    for partition in self._partitions
                ]
                render.write(render.json_line(render.plain(details)))
            await self._pause(interval_s)

    def _silent(self) -> set[str]:
        found = {
            f"Broker {broker} did not report its replicas. {why}"
            for broker, why in self._looks.silent.items()
        }
        return found | set(self._notes())

    def _notes(self) -> list[str]:
        if not self._looks.foreign:
            return []
        brokers = ",".join(map(str, sorted(self._looks.foreign)))
        return [f"Brokers {brokers} are not Hightide's: they do not report replica offsets."]

    # -- the state -------------------------------------------------------------------------

    def view(self, now_ms: int) -> View:
        watched = [self._watched(partition, now_ms) for partition in self._partitions]
        return View(
            title=" ".join(
                topic if index is None else f"{topic}/{index}" for topic, index in self._names
            ),
            now_ms=now_ms,
            partitions=watched,
            events=[event for event in self._events if event.kind not in NOT_SHOWN],
            failover=self._failover(now_ms),
            trouble=self._trouble,
            notes=self._notes(),
        )

    def _watched(self, partition: PartitionReplicas, now_ms: int) -> Watched:
        history = self._histories[partition.topic, partition.partition]
        min_isr = self._min_isr.get(partition.topic, 1)
        frame = frame_of(partition, min_isr)
        sentence, step = self._sentence(partition, frame, min_isr, now_ms)
        is_single = len(self._partitions) == 1
        return Watched(
            now=partition,
            frame=frame,
            level="bad" if partition.losses else hold_level(frame, bool(partition.missing)),
            sentence=sentence,
            next=next_step.line(next_step.here(step, self._bootstrap)) if step else "",
            ribbons=replica_spans(self._timeline(partition, ()), now_ms) if is_single else {},
            health=() if is_single else history.health(now_ms),
        )

    def _timeline(self, partition: PartitionReplicas, events: Sequence[BrokerEvent]) -> Timeline:
        history = self._histories[partition.topic, partition.partition]
        return history.timeline(partition.topic, partition.partition, events)

    def _failover(self, now_ms: int) -> str:
        if len(self._partitions) != 1:
            return ""
        return failover_sentence(self._timeline(self._partitions[0], [*self._events]), now_ms)

    def _sentence(
        self, partition: PartitionReplicas, frame: PartitionFrame, min_isr: int, now_ms: int
    ) -> tuple[str, NextStep | None]:
        if partition.losses:
            brokers = ",".join(str(report.broker) for report in partition.losses)
            return f"Replica {brokers} has LOST committed records.", None
        if frame.held not in (Hold.NOTHING, Hold.MOVES):
            is_local = bool(partition.missing) and self._is_local(now_ms)
            found = high_watermark(partition, min_isr, is_local=is_local)
            if found is not None:
                return found.sentence, found.next
        if not partition.missing:
            return "All replicas are in sync, and the high watermark moves.", None
        missing = [
            f"replica {status.replica} ({status.why})"
            for status in partition.statuses()
            if status.replica in partition.missing
        ]
        return (
            f"Out of sync: {', '.join(missing)}. The high watermark moves.",
            NextStep("hightide cluster health"),
        )

    def _is_local(self, now_ms: int) -> bool:
        if now_ms - self._local[0] > SLOWLY_S * 1000:
            self._local = now_ms, next_step.is_local(self._bootstrap)
        return self._local[1]


async def _read(reader: EventReader, *, is_first: bool) -> Sequence[BrokerEvent]:
    found = await (reader.newest(KEPT_EVENTS) if is_first else reader.newer())
    return found.events


class History:
    """What a partition was: the looks at which more than offsets changed, and the gaps."""

    def __init__(self) -> None:
        self._frames: deque[TimedFrame] = deque()
        self._away: deque[tuple[int, int]] = deque()
        self._standing: tuple[object, ...] = ()
        self._last_ms = 0

    def add(self, now_ms: int, frame: PartitionFrame) -> None:
        # The time of day may be set back; the order of looks stays.
        self._last_ms = now_ms = max(now_ms, self._last_ms)
        standing = (
            frame.leader,
            frame.leader_epoch,
            frame.held,
            tuple((one.broker, one.role, state(one, frame)) for one in frame.replicas),
        )
        if standing == self._standing:
            return
        self._standing = standing
        self._frames.append(TimedFrame(now_ms, frame))
        while len(self._frames) > 1 and self._frames[1].time_ms < now_ms - KEPT_MS:
            self._frames.popleft()

    def was_away(self, now_ms: int) -> None:
        """Note that nothing was seen since the last look."""
        if self._away and self._away[-1][0] == self._last_ms:
            self._away.pop()
        self._away.append((self._last_ms, now_ms))
        while self._away[0][1] < now_ms - KEPT_MS:
            self._away.popleft()

    def timeline(self, topic: str, partition: int, events: Sequence[BrokerEvent]) -> Timeline:
        found = [
            {
                "time_ms": event.time_ms,
                "broker_id": event.broker,
                "kind": event.kind,
                "message": event.text,
                "data": event.data,
            }
            for event in events
        ]
        return Timeline(topic, partition, [*self._frames], found, [*self._away])

    def health(self, now_ms: int) -> list[Span]:
        """The states of the partition in the last minute."""
        spans: list[Span] = []
        ends = [timed.time_ms for timed in [*self._frames][1:]] + [now_ms]
        leader = None
        for timed, end_ms in zip(self._frames, ends, strict=True):
            begins = leader not in (None, timed.frame.leader) and timed.frame.leader != NO_BROKER
            if timed.frame.leader != NO_BROKER:
                leader = timed.frame.leader
            if end_ms > now_ms - RIBBON_MS:
                spans.append(Span(timed.time_ms, end_ms, health_of(timed.frame), begins))
        away = [Span(*times, "unknown") for times in self._away]
        return sorted(spans + away, key=lambda span: span.from_ms)


def replica_spans(timeline: Timeline, now_ms: int) -> dict[int, list[Span]]:
    """The states of each replica in the last minute, and where it begins to lead."""
    found: dict[int, list[Span]] = {}
    for one in timeline.ribbons(now_ms - RIBBON_MS, now_ms):
        before = ""
        for span in one["spans"]:
            begins = span["state"] == "leads" and before not in ("", "leads")
            before = span["state"]
            found.setdefault(one["broker"], []).append(Span(**span, begins=begins))
    return found


def health_of(frame: PartitionFrame) -> str:
    """How well a partition is, as a word of the ribbons."""
    match frame.held:
        case Hold.OFFLINE:
            return "offline"
        case Hold.SILENT:
            return "unknown"
        case Hold.MIN_ISR:
            return "too_few"
    missing = [one for one in frame.replicas if not one.in_sync and one.broker not in frame.adding]
    return "fewer" if missing else "all"


def failover_sentence(timeline: Timeline, now_ms: int) -> str:
    """The newest failover by its phases; "" if there was none in the last minutes."""
    failovers = timeline.failovers()
    if not failovers or failovers[-1]["lost_ms"] < now_ms - KEPT_MS:
        return ""
    newest = failovers[-1]
    lost_ms = newest["lost_ms"]
    before = "none" if newest["from"] == NO_BROKER else newest["from"]
    phases = [
        f"{PHASES[phase['name']]} +{duration(max(0, phase['time_ms'] - lost_ms))}"
        for phase in newest["phases"]
    ]
    what = "UNCLEAN failover" if newest["unclean"] else "Failover"
    return (
        f"{what} at {clock(lost_ms, is_exact=True)}, leader {before} → {newest['to']},"
        f" epoch {newest['epoch_from']} → {newest['epoch_to']}: {', '.join(phases)}"
    )
