"""A reassignment from start to end: plan, throttle, watch, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hightide.cli import render
from hightide.cli.names import Names
from hightide.cli.options import Failed
from hightide.cli.partition.plan import Plan, spread, write_plan
from hightide.cli.partition.rows import chosen
from hightide.client.admin import Admin
from hightide.client.admin.throttle import lift_throttle, set_throttle, throttle_of
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.model.cluster import Partition
from hightide.client.model.replicas import PartitionReplicas, Reassignment
from hightide.core.controller.reassignment import origin_of
from hightide.wire.errors import ErrorCode, KafkaError

POLL_S = 0.5
REPORT_S = 5.0


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One partition, its replicas, its new replicas, and the result of the request."""

    topic: str
    partition: int
    replicas: list[int]
    to: list[int]
    adding: list[int]
    removing: list[int]
    result: str


@dataclass(frozen=True, slots=True)
class ReassignmentRow:
    topic: str
    partition: int
    replicas: list[int]
    to: list[int]
    adding: list[int]
    removing: list[int]
    lag_records: dict[int, int | None]
    """How many records each added replica has left to copy."""


class ReassignmentRun:
    """The reassignment of one command, from its start to its end."""

    def __init__(
        self,
        names: Names,
        targets: tuple[int, ...] | None,
        plan: Plan | None,
        bytes_per_s: int | None,
        save: Path | None,
        dry_run: bool,
        waits: bool,
    ) -> None:
        self._names = names
        self._targets = targets
        self._plan = plan
        self._bytes_per_s = bytes_per_s
        self._save = save
        self._dry_run = dry_run
        self._waits = waits
        self._moves: dict[Partition, Reassignment] = {}
        self._before: dict[Partition, PartitionReplicas] = {}

    async def start(self, admin: Admin) -> list[ChangeRow]:
        """Start the reassignment; without a target, continue those in progress."""
        if self._targets is None and self._plan is None:
            return await self._continue(admin)
        wanted = await self._plan_targets(admin)
        refused = {
            key: sentence
            for key, replicas in wanted.items()
            if (sentence := objection(replicas, self._before[key]))
        }
        self._moves = {
            key: move_of(self._before[key], replicas)
            for key, replicas in wanted.items()
            if key not in refused
        }
        if self._dry_run:
            return self._rows({key: refused.get(key, "would be moved") for key in wanted}, wanted)
        if refused:
            first = next(iter(refused))
            raise Failed(f"{first[0]}/{first[1]}: {refused[first]}. Nothing was reassigned.")
        if self._save is not None:
            current = {key: origin_of(before.state) for key, before in self._before.items()}
            self._save.write_text(write_plan(current), "utf-8")
            render.say(f"The current assignment is in {self._save}.")
        await self._limit(admin)
        refusals = await admin.replicas.reassign(wanted)
        self._moves = {key: move for key, move in self._moves.items() if not refusals.get(key)}
        return self._rows({key: self._result(key, refusals.get(key)) for key in wanted}, wanted)

    def _result(self, key: Partition, refusal: KafkaError | None) -> str:
        before = self._before[key].state
        is_there = not before.is_reassigning and self._moves.get(key) == Reassignment(
            before.replicas, (), ()
        )
        return result_of(refusal, "there already" if is_there else "moving")

    async def _plan_targets(self, admin: Admin) -> Plan:
        """Read the current replicas, and return the new ones."""
        found = (await admin.replicas.describe(self._topics())).partitions
        names = self._names or [*(self._plan or ())]
        picked = {
            (replicas.topic, replicas.partition): replicas for replicas in chosen(found, names)
        }
        self._before = picked
        if self._plan is not None:
            return self._plan
        assert self._targets is not None
        exact = {name for name in self._names if name[1] is not None}
        rest = [key for key in picked if key not in exact]
        return spread(rest, self._targets) | {key: self._targets for key in picked if key in exact}

    def _topics(self) -> list[str]:
        """The topics that are named, or that have a reassignment in progress."""
        return list(
            dict.fromkeys(topic for topic, _ in [*self._names, *(self._plan or self._moves)])
        )

    async def _continue(self, admin: Admin) -> list[ChangeRow]:
        self._moves = pick(await admin.replicas.reassignments(), self._names)
        if not self._moves:
            render.say("No reassignment is in progress.")
        if not self._dry_run:
            await self._limit(admin)
        return [
            ChangeRow(
                *key,
                list(move.replicas),
                list(move.target),
                list(move.adding),
                list(move.removing),
                "moving",
            )
            for key, move in self._moves.items()
        ]

    async def _limit(self, admin: Admin) -> None:
        if self._bytes_per_s is not None:
            live = [node.id for node in (await admin.cluster.describe()).nodes]
            await set_throttle(admin, throttle_of(self._moves), self._bytes_per_s, live)
            if not self._waits:
                render.say("The limit stays until --wait or --remove-throttle removes it.")

    async def wait(self, admin: Admin, timeout_s: float | None) -> None:
        """Wait until the reassignment has ended, and remove the limits."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._watch(admin)
        except TimeoutError:
            raise Failed(
                f"The reassignment is still in progress after {timeout_s:g} s; `hightide partition"
                " reassign --list` shows it."
            ) from None
        await lift_throttle(admin, self._topics())
        await self._compare(admin)

    async def _watch(self, admin: Admin) -> None:
        loop = asyncio.get_running_loop()
        reported_s, last = -REPORT_S, -1
        while True:
            try:
                moving = await admin.replicas.reassignments(self._moves)
                if not moving:
                    return
                if len(moving) != last or loop.time() - reported_s >= REPORT_S:
                    reported_s, last = loop.time(), len(moving)
                    render.say(await progress(admin, moving))
            except (ConnectionFailed, KafkaError) as error:
                # The controller may be moving too; ask again.
                render.say(f"hightide: {error}")
            await asyncio.sleep(POLL_S)

    async def _compare(self, admin: Admin) -> None:
        """Check the result: another client may have cancelled or changed the reassignment."""
        topics = await admin.topics.describe(list(dict.fromkeys(key[0] for key in self._moves)))
        found = {
            (topic.name, partition.partition): tuple(partition.replicas)
            for topic in topics
            for partition in topic.partitions
        }
        for key, move in self._moves.items():
            if found.get(key) != move.target:
                where = render.cell(found.get(key))
                raise Failed(
                    f"{key[0]}/{key[1]} is on {where} and not on {render.cell(move.target)}:"
                    " another client has changed the reassignment."
                )

    def done(self) -> list[ChangeRow]:
        targets = {key: move.target for key, move in self._moves.items()}
        return self._rows(dict.fromkeys(targets, "done"), targets)

    def _rows(self, results: Mapping[Partition, str], targets: Plan) -> list[ChangeRow]:
        rows = []
        for key, result in results.items():
            move, before = self._moves.get(key), self._before.get(key)
            rows.append(
                ChangeRow(
                    *key,
                    list(before.state.replicas if before else move.replicas if move else ()),
                    list(targets[key]),
                    list(move.adding if move else ()),
                    list(move.removing if move else ()),
                    result,
                )
            )
        return rows


def objection(replicas: tuple[int, ...], before: PartitionReplicas) -> str | None:
    """Why a reassignment cannot work, as far as it is known without the controller."""
    dead = [broker for broker in replicas if broker not in before.live]
    new = [broker for broker in dead if broker not in before.state.replicas]
    if new:
        return f"broker {new[0]} is not alive"
    return None


def move_of(before: PartitionReplicas, target: tuple[int, ...]) -> Reassignment:
    origin = origin_of(before.state)
    return Reassignment(
        target + tuple(broker for broker in origin if broker not in target),
        tuple(broker for broker in target if broker not in origin),
        tuple(broker for broker in origin if broker not in target),
    )


def pick(moves: Mapping[Partition, Reassignment], names: Names) -> dict[Partition, Reassignment]:
    """The reassignments of the named partitions; all if none is named."""
    wanted = set(names)
    return {
        key: move
        for key, move in moves.items()
        if not wanted or key in wanted or (key[0], None) in wanted
    }


async def in_progress(admin: Admin, names: Names) -> list[ReassignmentRow]:
    """The reassignments in progress, with how much is left to copy."""
    moves = pick(await admin.replicas.reassignments(), names)
    lags = await lags_of(admin, moves)
    return [
        ReassignmentRow(
            *key,
            list(move.replicas),
            list(move.target),
            list(move.adding),
            list(move.removing),
            lags.get(key, {}),
        )
        for key, move in moves.items()
    ]


async def lags_of(
    admin: Admin, moves: Mapping[Partition, Reassignment]
) -> dict[Partition, dict[int, int | None]]:
    """How many records each added replica is behind."""
    topics = list(dict.fromkeys(topic for topic, _ in moves))
    if not topics:
        return {}
    found = (await admin.replicas.describe(topics)).partitions
    return {
        (partition.topic, partition.partition): {
            status.replica: status.lag_records
            for status in partition.statuses()
            if status.replica in moves[partition.topic, partition.partition].adding
        }
        for partition in found
        if (partition.topic, partition.partition) in moves
    }


async def progress(admin: Admin, moves: Mapping[Partition, Reassignment]) -> str:
    lags = await lags_of(admin, moves)
    left = sum(lag or 0 for replicas in lags.values() for lag in replicas.values())
    many = f"{len(moves)} partitions are" if len(moves) > 1 else "1 partition is"
    return f"{many} being reassigned; {left} records are left to copy."


async def cancel_reassignments(
    admin: Admin, names: Names, plan: Plan | None, dry_run: bool
) -> list[ChangeRow]:
    """Cancel reassignments, and remove their limits."""
    moves = pick(await admin.replicas.reassignments(), names or [*(plan or ())])
    if not moves:
        render.say("None of these partitions is being reassigned.")
        return []
    refusals: Mapping[Partition, KafkaError | None] = {}
    if not dry_run:
        refusals = await admin.replicas.reassign(dict.fromkeys(moves))
        await lift_throttle(admin, dict.fromkeys(topic for topic, _ in moves))
    done = "would be cancelled" if dry_run else "cancelled"
    return [
        ChangeRow(
            *key,
            list(move.replicas),
            [broker for broker in move.replicas if broker not in move.adding],
            list(move.adding),
            list(move.removing),
            result_of(refusals.get(key), done),
        )
        for key, move in moves.items()
    ]


def result_of(refusal: KafkaError | None, done: str) -> str:
    if refusal is None:
        return done
    if refusal.code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
        return "cancelled"
    return f"{refusal.detail.removesuffix('.')} ({refusal.code.name})"
