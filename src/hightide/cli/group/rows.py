"""The rows and pages of `hightide group`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hightide.cli import render
from hightide.cli.moment import age, iso
from hightide.cli.options import Failed
from hightide.cli.render import counted
from hightide.client.model.cluster import Partition, by_topic
from hightide.client.model.groups import (
    GroupDescription,
    GroupLag,
    GroupMember,
    PartitionLag,
    Rebalance,
)

MEMBER_COLUMNS = {
    "member": "member",
    "instance_id": "instance-id",
    "client_id": "client-id",
    "host": "host",
    "partitions": "partitions",
    "assignment": "assignment",
}
LAG_COLUMNS = {
    "topic": "topic",
    "partition": "partition",
    "committed_offset": "committed",
    "end_offset": "end",
    "lag_records": "lag",
    "lag_seconds": "lag-s",
    "commit_age": "last-commit",
    "owner": "owner",
    "host": "host",
}


@dataclass(frozen=True, slots=True)
class MemberRow:
    member: str
    instance_id: str | None
    client_id: str
    host: str
    epoch: int | None
    partitions: int | None
    assignment: dict[str, list[int]] | None
    target: dict[str, list[int]] | None


@dataclass(frozen=True, slots=True)
class RebalanceRow:
    at: str | None
    reason: str
    ended_generation: int


@dataclass(frozen=True, slots=True)
class GroupDetails:
    group: str
    state: str
    since: str | None
    type: str
    protocol: str
    assignor: str
    generation: int | None
    coordinator: int
    leader: str | None
    last_rebalance: RebalanceRow | None
    members: list[MemberRow]


@dataclass(frozen=True, slots=True)
class LagRow:
    topic: str
    partition: int
    committed_offset: int | None
    start_offset: int | None
    end_offset: int | None
    lag_records: int | None
    lag_seconds: float | None
    committed_at: str | None
    commit_age: str | None
    metadata: str | None
    owner: str | None
    client_id: str | None
    host: str | None


@dataclass(frozen=True, slots=True)
class LagDetails:
    group: str
    state: str
    members: int
    lag_records: int
    lag_seconds: float
    partitions: list[LagRow]


def member_row(member: GroupMember) -> MemberRow:
    return MemberRow(
        member=member.id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=host_of(member),
        epoch=member.epoch,
        partitions=None if member.assignment is None else len(member.assignment),
        assignment=_topics(member.assignment),
        target=_topics(member.target),
    )


def group_details(group: GroupDescription) -> GroupDetails:
    last = group.last_rebalance
    return GroupDetails(
        group=group.group,
        state=group.state,
        since=iso(group.since_ms),
        type=group.type,
        protocol=group.protocol_type,
        assignor=group.assignor,
        generation=group.generation,
        coordinator=group.coordinator,
        leader=group.leader,
        last_rebalance=None
        if last is None
        else RebalanceRow(iso(last.at_ms), last.reason, last.generation),
        members=[member_row(member) for member in group.members],
    )


def group_page(group: GroupDescription, now_ms: int) -> str:
    """A group for people."""
    since = f" for {age(group.since_ms, now_ms)}" if group.since_ms is not None else ""
    lines = [
        ("group", group.group),
        ("state", group.state + since),
        ("type", group.type),
        ("protocol", group.protocol_type or "-"),
        ("assignor", group.assignor or "-"),
        ("generation", render.cell(group.generation)),
        ("coordinator", str(group.coordinator)),
        ("last rebalance", _last_rebalance(group.last_rebalance, now_ms)),
    ]
    text = "".join(f"{name:<14}  {render.cell(value)}\n" for name, value in lines)
    if not group.members:
        return text + "\nThe group has no members.\n"
    rows = [member_row(member) for member in group.members]
    has_static = any(row.instance_id for row in rows)
    columns = {
        name: heading
        for name, heading in MEMBER_COLUMNS.items()
        if has_static or name != "instance_id"
    }
    return text + "\n" + render.table(rows, headings=columns)


def _last_rebalance(last: Rebalance | None, now_ms: int) -> str:
    if last is None:
        return "-"
    return f"{age(last.at_ms, now_ms)} ago, after generation {last.generation}: {last.reason}"


def lag_row(lag: PartitionLag, now_ms: int) -> LagRow:
    commit, extent, owner = lag.commit, lag.extent, lag.owner
    lag_ms = lag.lag_ms(now_ms)
    return LagRow(
        topic=lag.topic,
        partition=lag.partition,
        committed_offset=None if commit is None else commit.offset,
        start_offset=None if extent is None else extent.start_offset,
        end_offset=None if extent is None else extent.end_offset,
        lag_records=lag.lag_records,
        lag_seconds=None if lag_ms is None else lag_ms / 1000,
        committed_at=None if commit is None else iso(commit.committed_ms),
        commit_age=None if commit is None else age(commit.committed_ms, now_ms),
        metadata=None if commit is None else commit.metadata,
        owner=None if owner is None else owner.id,
        client_id=None if owner is None else owner.client_id,
        host=None if owner is None else host_of(owner),
    )


def lag_details(found: GroupLag, now_ms: int) -> LagDetails:
    rows = [lag_row(lag, now_ms) for lag in found.partitions]
    return LagDetails(
        group=found.group.group,
        state=found.group.state,
        members=len(found.group.members),
        lag_records=sum(row.lag_records or 0 for row in rows),
        lag_seconds=max((row.lag_seconds or 0.0 for row in rows), default=0.0),
        partitions=rows,
    )


def lag_page(details: LagDetails) -> str:
    """A group's lag for people."""
    text = (
        f"{render.cell(details.group)}: {details.state}, {counted(details.members, 'member')}, "
        f"{counted(details.lag_records, 'record')} behind, {details.lag_seconds:,.2f} s\n"
    )
    if not details.partitions:
        return text + "The group has no commits, and its members have no partitions.\n"
    return text + "\n" + render.table(details.partitions, headings=LAG_COLUMNS)


def refuse_members(group: GroupDescription, what: str) -> None:
    """Fail if a group has members, and name them."""
    if group.members:
        count = counted(len(group.members), "member")
        raise Failed(
            f"Group {group.group!r} cannot be {what} while it has {count}: {named(group.members)}. "
            "Stop them first; a member that died is removed after its session timeout."
        )


def named(members: Iterable[GroupMember]) -> str:
    """The names of members, for a sentence."""
    names = [f"{member.instance_id or member.id} at {host_of(member)}" for member in members]
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def host_of(member: GroupMember) -> str:
    """The host of a member, without the slash that Java writes before an address."""
    return member.host.removeprefix("/")


def _topics(partitions: tuple[Partition, ...] | None) -> dict[str, list[int]] | None:
    return None if partitions is None else by_topic(partitions)
