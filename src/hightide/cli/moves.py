"""Partitions on their way to other brokers: begun, looked after, ended or called off."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hightide.cli import render
from hightide.cli.options import Failed
from hightide.cli.partition_rows import chosen
from hightide.cli.plan import Plan, spread, write_plan
from hightide.cli.replication_throttle import lift_throttle, set_throttle, throttle_of
from hightide.client.admin import Admin
from hightide.client.connection import ConnectionFailed
from hightide.client.model.cluster import Partition
from hightide.client.model.replicas import PartitionReplicas, Reassignment
from hightide.core.controller.reassignment import origin_of
from hightide.wire.errors import ErrorCode, KafkaError

LOOK_S = 0.5
SAY_S = 5.0
Names = list[tuple[str, int | None]]


@dataclass(frozen=True, slots=True)
class MoveRow:
    """One partition, where it is, where it goes, and what became of that."""

    topic: str
    partition: int
    replicas: list[int]
    to: list[int]
    adding: list[int]
    removing: list[int]
    result: str


@dataclass(frozen=True, slots=True)
class OngoingRow:
    topic: str
    partition: int
    replicas: list[int]
    to: list[int]
    adding: list[int]
    removing: list[int]
    lag_records: dict[int, int | None]
    """What each replica that comes has still to copy."""


class Journey:
    """Partitions on their way, from the command to their arrival."""

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

    async def begin(self, admin: Admin) -> list[MoveRow]:
        """Have the controller move what is to be moved; without a target, take up what moves."""
        if self._targets is None and self._plan is None:
            return await self._take_up(admin)
        wanted = await self._look(admin)
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
            raise Failed(f"{first[0]}/{first[1]}: {refused[first]}. Nothing was moved.")
        if self._save is not None:
            here = {key: origin_of(each.state) for key, each in self._before.items()}
            self._save.write_text(write_plan(here), "utf-8")
            render.say(f"The present assignment is in {self._save}.")
        await self._limit(admin)
        refusals = await admin.replicas.reassign(wanted)
        self._moves = {key: move for key, move in self._moves.items() if not refusals.get(key)}
        return self._rows({key: self._begun(key, refusals.get(key)) for key in wanted}, wanted)

    def _begun(self, key: Partition, refusal: KafkaError | None) -> str:
        before = self._before[key].state
        is_there = not before.is_reassigning and self._moves.get(key) == Reassignment(
            before.replicas, (), ()
        )
        return result_of(refusal, "there already" if is_there else "moving")

    async def _look(self, admin: Admin) -> Plan:
        """Where everything is now, and where it shall go."""
        found = (await admin.replicas.describe(self._topics())).partitions
        names = self._names or [*(self._plan or ())]
        picked = {(each.topic, each.partition): each for each in chosen(found, names)}
        self._before = picked
        if self._plan is not None:
            return self._plan
        assert self._targets is not None
        exact = {name for name in self._names if name[1] is not None}
        rest = [key for key in picked if key not in exact]
        return spread(rest, self._targets) | {key: self._targets for key in picked if key in exact}

    def _topics(self) -> list[str]:
        """Those that are named, or move."""
        return list(
            dict.fromkeys(topic for topic, _ in [*self._names, *(self._plan or self._moves)])
        )

    async def _take_up(self, admin: Admin) -> list[MoveRow]:
        self._moves = pick(await admin.replicas.reassignments(), self._names)
        if not self._moves:
            render.say("Nothing is being moved.")
        if not self._dry_run:
            await self._limit(admin)
        return [
            MoveRow(
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
                render.say("The limit stays until --wait sees the end, or --remove-throttle.")

    async def arrive(self, admin: Admin, timeout_s: float | None) -> None:
        """Wait until nothing of it moves any more, and take the limits away."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._watch(admin)
        except TimeoutError:
            raise Failed(
                f"It is not done after {timeout_s:g} s, and goes on; see hightide partition"
                " reassign --list."
            ) from None
        await lift_throttle(admin, self._topics())
        await self._compare(admin)

    async def _watch(self, admin: Admin) -> None:
        loop = asyncio.get_running_loop()
        said_s, last = -SAY_S, -1
        while True:
            try:
                moving = await admin.replicas.reassignments(self._moves)
                if not moving:
                    return
                if len(moving) != last or loop.time() - said_s >= SAY_S:
                    said_s, last = loop.time(), len(moving)
                    render.say(await progress(admin, moving))
            except (ConnectionFailed, KafkaError) as error:
                # The controller may be moving as well.
                render.say(f"hightide: {error}")
            await asyncio.sleep(LOOK_S)

    async def _compare(self, admin: Admin) -> None:
        """A move may also have ended because somebody else called it off."""
        topics = await admin.topics.describe(list(dict.fromkeys(key[0] for key in self._moves)))
        found = {
            (topic.name, each.partition): tuple(each.replicas)
            for topic in topics
            for each in topic.partitions
        }
        for key, move in self._moves.items():
            if found.get(key) != move.target:
                where = render.cell(found.get(key))
                raise Failed(
                    f"{key[0]}/{key[1]} is on {where} and not on {render.cell(move.target)}:"
                    " somebody has changed the plan meanwhile."
                )

    def done(self) -> list[MoveRow]:
        targets = {key: move.target for key, move in self._moves.items()}
        return self._rows(dict.fromkeys(targets, "done"), targets)

    def _rows(self, results: Mapping[Partition, str], targets: Plan) -> list[MoveRow]:
        rows = []
        for key, result in results.items():
            move, before = self._moves.get(key), self._before.get(key)
            rows.append(
                MoveRow(
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
    """What is wrong with a move, as far as it can be told without the controller."""
    gone = [each for each in replicas if each not in before.live]
    unheld = [each for each in gone if each not in before.state.replicas]
    if unheld:
        return f"broker {unheld[0]} is not alive"
    return None


def move_of(before: PartitionReplicas, target: tuple[int, ...]) -> Reassignment:
    origin = origin_of(before.state)
    return Reassignment(
        target + tuple(each for each in origin if each not in target),
        tuple(each for each in target if each not in origin),
        tuple(each for each in origin if each not in target),
    )


def pick(moves: Mapping[Partition, Reassignment], names: Names) -> dict[Partition, Reassignment]:
    """Those of the named partitions; all, if none is named."""
    wanted = set(names)
    return {
        key: move
        for key, move in moves.items()
        if not wanted or key in wanted or (key[0], None) in wanted
    }


async def ongoing(admin: Admin, names: Names) -> list[OngoingRow]:
    """What is on its way, with what is left to copy."""
    moves = pick(await admin.replicas.reassignments(), names)
    lags = await lags_of(admin, moves)
    return [
        OngoingRow(
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
    """How many records each replica that comes is behind."""
    topics = list(dict.fromkeys(topic for topic, _ in moves))
    if not topics:
        return {}
    found = (await admin.replicas.describe(topics)).partitions
    return {
        (each.topic, each.partition): {
            status.broker: status.lag_records
            for status in each.statuses()
            if status.broker in moves[each.topic, each.partition].adding
        }
        for each in found
        if (each.topic, each.partition) in moves
    }


async def progress(admin: Admin, moves: Mapping[Partition, Reassignment]) -> str:
    lags = await lags_of(admin, moves)
    left = sum(lag or 0 for each in lags.values() for lag in each.values())
    many = f"{len(moves)} partitions are" if len(moves) > 1 else "1 partition is"
    return f"{many} being moved; {left} records are left to copy."


async def call_off(admin: Admin, names: Names, plan: Plan | None, dry_run: bool) -> list[MoveRow]:
    """Stop moving, and take the limits away that were for it."""
    moves = pick(await admin.replicas.reassignments(), names or [*(plan or ())])
    if not moves:
        render.say("Nothing of it is being moved.")
        return []
    refusals: Mapping[Partition, KafkaError | None] = {}
    if not dry_run:
        refusals = await admin.replicas.reassign(dict.fromkeys(moves))
        await lift_throttle(admin, dict.fromkeys(topic for topic, _ in moves))
    done = "would be cancelled" if dry_run else "cancelled"
    return [
        MoveRow(
            *key,
            list(move.replicas),
            [each for each in move.replicas if each not in move.adding],
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
