"""Who a broker is: its id and its cluster's id, kept in the tree and in every log directory.

The two must agree.  Log directories of another cluster or of another broker are refused before
anything in them is touched, and so is an empty coordinator beside directories that know a cluster:
to serve then would mean to forget every topic.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

from hightide.log.checkpoint import read_meta_properties, write_meta_properties
from hightide.log.disk import Disk
from hightide.settings import Broker as Settings
from hightide.zookeeper import znodes
from hightide.zookeeper.errors import NodeExists, NoNode
from hightide.zookeeper.interface import ZooKeeper, ensure_path


class Refused(Exception):
    """The broker will not start, for a reason that its operator must settle."""


Identity = tuple[str, int]
"""The cluster's id and the broker's."""


async def identify(zookeeper: ZooKeeper, known: Identity | None, settings: Settings) -> Identity:
    """Who this broker is: what tree, directories (`known`) and settings agree on."""
    if known is not None:
        await check_cluster(zookeeper, known[0])
    await asyncio.gather(*(ensure_path(zookeeper, path) for path in znodes.PERSISTENT_ROOTS))
    cluster_id = await _cluster_id(zookeeper)
    if not cluster_id:
        cluster_id = await _new_cluster(zookeeper)
    broker_id = settings.broker_id
    if broker_id < 0:
        broker_id = await _new_broker_id(zookeeper, settings) if known is None else known[1]
    if known is not None and known[1] != broker_id:
        raise Refused(
            f"the log directories belong to broker {known[1]}, not to broker {broker_id};"
            " nothing was touched"
        )
    return cluster_id, broker_id


def remember(disks: Sequence[Disk], cluster_id: str, broker_id: int) -> None:
    """Tell directories that are new whose they are.

    Not before the id is this broker's: one that is refused can then be given another id.
    """
    for disk in disks:
        if read_meta_properties(disk) is None:
            write_meta_properties(
                disk, {"version": "0", "broker.id": str(broker_id), "cluster.id": cluster_id}
            )


async def check_cluster(zookeeper: ZooKeeper, expected: str) -> None:
    """Refuse a coordinator of another cluster, and one that has forgotten this one."""
    cluster_id = await _cluster_id(zookeeper)
    if cluster_id != expected:
        coordinator = f"is of cluster {cluster_id}" if cluster_id else "is empty"
        raise Refused(
            f"the log directories belong to cluster {expected}, but the coordinator {coordinator};"
            " nothing was touched"
        )


async def _cluster_id(zookeeper: ZooKeeper) -> str:
    try:
        data, _ = await zookeeper.get(znodes.CLUSTER_ID)
    except NoNode:
        return ""
    return znodes.ClusterId.decode(data).id


async def _new_cluster(zookeeper: ZooKeeper) -> str:
    await ensure_path(zookeeper, "/cluster")
    cluster_id = znodes.id_text(uuid.uuid4())
    try:
        await zookeeper.create(znodes.CLUSTER_ID, znodes.ClusterId(cluster_id).encode())
    except NodeExists:
        return await _cluster_id(zookeeper)  # another broker was quicker
    return cluster_id


async def _new_broker_id(zookeeper: ZooKeeper, settings: Settings) -> int:
    if not settings.broker_id_generation_enable:
        raise Refused("broker.id is not set and broker.id.generation.enable is false")
    # The version that a write returns is a counter that nobody else was given.
    stat = await zookeeper.set(znodes.BROKER_SEQUENCE, b"")
    return settings.reserved_broker_max_id + stat.version


def known_identity(disks: Sequence[Disk]) -> Identity | None:
    """Who the directories say that this broker is; None when all are new."""
    found: dict[Identity, str] = {}
    for disk in disks:
        properties = read_meta_properties(disk)
        if properties is None:
            continue
        try:
            number = properties.get("broker.id", properties.get("node.id", ""))
            found.setdefault((properties["cluster.id"], int(number)), disk.name)
        except (KeyError, ValueError):
            raise Refused(
                f"{disk.name}/meta.properties does not tell a cluster.id and a broker.id"
            ) from None
    if len(found) > 1:
        (one, here), (other, there) = list(found.items())[:2]
        raise Refused(
            f"{here} belongs to broker {one[1]} of cluster {one[0]},"
            f" {there} to broker {other[1]} of cluster {other[0]}"
        )
    return next(iter(found), None)
