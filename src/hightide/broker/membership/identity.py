"""The identity of a broker: its id and its cluster's id, in ZooKeeper and in every log directory.

Both must agree.  Log directories of another cluster or broker are refused before anything in them
is changed.  So is an empty ZooKeeper beside log directories that belong to a cluster: a broker that
served then would drop every topic.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

from hightide.log.checkpoint import read_meta_properties, write_meta_properties
from hightide.log.disk import Disk
from hightide.settings import Broker as Settings
from hightide.zookeeper import znodes
from hightide.zookeeper.interface import ZooKeeper, ensure_path
from hightide.zookeeper.zookeeper_errors import NodeExists, NoNode


class StartupRefused(Exception):
    """The broker refuses to start, for a reason that the operator must resolve."""


# Kafka's formats of meta.properties: 0 with broker.id, 1 (of KRaft) with node.id.
META_VERSIONS = ("0", "1")

Identity = tuple[str, int]
"""Cluster id and broker id."""


async def identify(zookeeper: ZooKeeper, known: Identity | None, settings: Settings) -> Identity:
    """Return the identity on which ZooKeeper, log directories (`known`) and settings agree."""
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
        raise StartupRefused(
            f"the log directories belong to broker {known[1]}, not to broker {broker_id};"
            " nothing was changed. Set broker.id, or log.dirs, to match"
        )
    return cluster_id, broker_id


def remember(disks: Sequence[Disk], cluster_id: str, broker_id: int) -> None:
    """Write the identity into new log directories.

    Only after registration: a broker whose id is taken can still get another one.
    """
    for disk in disks:
        if read_meta_properties(disk) is None:
            write_meta_properties(
                disk, {"version": "0", "broker.id": str(broker_id), "cluster.id": cluster_id}
            )


async def check_cluster(zookeeper: ZooKeeper, expected: str) -> None:
    """Refuse a ZooKeeper of another cluster, and one that has lost this cluster."""
    cluster_id = await _cluster_id(zookeeper)
    if cluster_id != expected:
        state = f"belongs to cluster {cluster_id}" if cluster_id else "is empty"
        raise StartupRefused(
            f"the log directories belong to cluster {expected}, but ZooKeeper {state};"
            " nothing was changed. Check zookeeper.connect and log.dirs"
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
        return await _cluster_id(zookeeper)  # another broker was faster
    return cluster_id


async def _new_broker_id(zookeeper: ZooKeeper, settings: Settings) -> int:
    if not settings.broker_id_generation_enable:
        raise StartupRefused(
            "broker.id is not set and broker.id.generation.enable is false; set one of them"
        )
    # Every write returns another version, so the version is a unique counter.
    stat = await zookeeper.set(znodes.BROKER_SEQUENCE, b"")
    return settings.reserved_broker_max_id + stat.version


def known_identity(disks: Sequence[Disk]) -> Identity | None:
    """Return the identity in the log directories, or None if all are new."""
    found: dict[Identity, str] = {}
    for disk in disks:
        properties = read_meta_properties(disk)
        if properties is None:
            continue
        version = properties.get("version")
        if version not in META_VERSIONS:
            shown = "no version" if version is None else f"version {version}"
            raise StartupRefused(
                f"{disk.name}/meta.properties has {shown}; this broker knows"
                f" {' and '.join(META_VERSIONS)}. A newer broker may have written the directory:"
                " nothing was changed"
            )
        try:
            number = properties.get("broker.id", properties.get("node.id", ""))
            found.setdefault((properties["cluster.id"], int(number)), disk.name)
        except (KeyError, ValueError):
            raise StartupRefused(
                f"{disk.name}/meta.properties has no valid cluster.id and broker.id"
            ) from None
    if len(found) > 1:
        (one, here), (other, there) = list(found.items())[:2]
        raise StartupRefused(
            f"{here} belongs to broker {one[1]} of cluster {one[0]},"
            f" {there} to broker {other[1]} of cluster {other[0]};"
            " all log.dirs must belong to one broker"
        )
    return next(iter(found), None)
