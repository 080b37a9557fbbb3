"""The znodes of a cluster as a value, and the plan that writes them to another ZooKeeper.

A snapshot has every persistent znode. It leaves out ephemerals, because their sessions are not
copied, `/zookeeper`, which belongs to the server, and the secrets of the brokers, which they create
again where they are missing. Its paths start at the location's root or chroot, so it fits any other
location.

A plan is for a running server, where versions and counters cannot be set. Two of them are state and
not bookkeeping, so the plan counts them up to their old values: the version of `/brokers/seqid`,
from which broker ids are generated, and the next sequence number below a parent, because readers
of sequential znodes rely on their order.

Everything here is pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from hightide.zookeeper.node import OPEN_ACL, Znode, split
from hightide.zookeeper.operation import Create, Delete, Operation, SetData
from hightide.zookeeper.znodes import BROKER_IDS, BROKER_SEQUENCE, CLUSTER_ID, SECRETS

SERVER_ROOT = "/zookeeper"
CONTAINER = -(2**63)
"""The owner that ZooKeeper shows for a container znode, which is not ephemeral."""

KAFKA_ROOTS = frozenset(
    f"/{name}"
    for name in (
        "admin",
        "brokers",
        "cluster",
        "config",
        "consumers",
        "controller",
        "controller_epoch",
        "delegation_token",
        "feature",
        "isr_change_notification",
        "kafka-acl",
        "kafka-acl-changes",
        "kafka-acl-extended",
        "kafka-acl-extended-changes",
        "latest_producer_id_block",
        "log_dir_event_notification",
        "migration",
    )
)
"""The znodes of a cluster at its root. Other znodes there belong to other programs."""

BATCH_OPERATIONS = 500
BATCH_BYTES = 512 * 1024
"""A request may have 1 MB; a znode larger than this gets its own request."""
_OVERHEAD_BYTES = 64

_SEQUENCE_DIGITS = 10


class Snapshot(NamedTuple):
    """Persistent znodes by path, parents first, and what was left out."""

    zxid: int
    nodes: Mapping[str, Znode]
    ephemeral_count: int = 0
    brokers: tuple[str, ...] = ()
    """The ids of the registered brokers, whose znodes are ephemeral and left out."""

    @classmethod
    def of(cls, zxid: int, found: Mapping[str, Znode]) -> Snapshot:
        """Make a snapshot of all znodes of a location."""
        ours = {path: found[path] for path in sorted(found, key=_parents_first) if is_copied(path)}
        kept = {path: node for path, node in ours.items() if not is_ephemeral(node)}
        # Drop the children of a parent that was deleted while the znodes were read.
        kept = {path: node for path, node in kept.items() if path == "/" or split(path)[0] in kept}
        counts = Counter(split(path)[0] for path in kept if path != "/")
        return cls(
            zxid,
            {path: _with_children(node, counts[path]) for path, node in kept.items()},
            sum(map(is_ephemeral, ours.values())),
            tuple(
                split(path)[1]
                for path, node in ours.items()
                if split(path)[0] == BROKER_IDS and is_ephemeral(node)
            ),
        )

    def under(self, roots: frozenset[str]) -> Snapshot:
        """Return a snapshot with only the root and these znodes at it, with all below them."""
        return self._replace(
            nodes={
                path: node for path, node in self.nodes.items() if root_of(path) in {"/", *roots}
            }
        )

    @property
    def roots(self) -> frozenset[str]:
        """The znodes at the root."""
        return frozenset(root_of(path) for path in self.nodes if path != "/")

    @property
    def data_bytes(self) -> int:
        return sum(len(node.data or b"") for node in self.nodes.values())


def is_ephemeral(node: Znode) -> bool:
    return node.stat.ephemeral_owner not in (0, CONTAINER)


def root_of(path: str) -> str:
    """Return the znode at the root that `path` is or is below; "/" for the root itself."""
    return "/" + path[1:].partition("/")[0]


def is_copied(path: str) -> bool:
    """Whether a snapshot has the znode, if it is not ephemeral."""
    return root_of(path) not in (SERVER_ROOT, SECRETS)


def _parents_first(path: str) -> tuple[int, str]:
    return (path.count("/") if path != "/" else 0, path)


def _with_children(node: Znode, count: int) -> Znode:
    """Return the znode with this many children, as if the others had been deleted."""
    stat = node.stat._replace(
        num_children=count, cversion=2 * node.create_count - count, ephemeral_owner=0
    )
    return node._replace(stat=stat)


def joined(base: Znode, saved: Znode, child_count: int) -> Znode:
    """Return the root of a location that had `base` and gets the children of `saved`."""
    creates = max(base.create_count, saved.create_count, child_count)
    root = saved if _has_content(saved) else base
    return root._replace(
        stat=root.stat._replace(
            num_children=child_count,
            cversion=2 * creates - child_count,
            pzxid=max(base.stat.pzxid, saved.stat.pzxid),
        )
    )


def _has_content(root: Znode) -> bool:
    """Return whether a root has data or an ACL; a plain root does not replace another."""
    return bool(root.data) or root.acl != OPEN_ACL


def differences(wanted: Snapshot, found: Snapshot) -> Iterator[str]:
    """Describe the differences in znodes, their data and ACLs, and the two counters."""
    for path in sorted(wanted.nodes.keys() | found.nodes.keys(), key=_parents_first):
        want, have = wanted.nodes.get(path), found.nodes.get(path)
        if path == "/" and want is not None and not _has_content(want):
            continue
        if want is None or have is None:
            yield f"{path} is {'missing' if have is None else 'unexpected'}"
        elif want.data != have.data:
            yield f"{path} has different data"
        elif want.acl != have.acl:
            yield f"{path} has a different ACL"
    for path, count in _sequences(wanted):
        if path in found.nodes and found.nodes[path].create_count < count:
            yield f"{path} would reuse sequence numbers"
    if BROKER_SEQUENCE in found.nodes and _version(found) < _version(wanted):
        yield f"{BROKER_SEQUENCE} would reuse broker ids"


def _version(snapshot: Snapshot) -> int:
    node = snapshot.nodes.get(BROKER_SEQUENCE)
    return 0 if node is None else node.stat.version


# -- a plan ----------------------------------------------------------------------------------


def deletions(paths: Iterable[str]) -> Iterator[Operation]:
    """Delete these znodes: the cluster id first, then children before parents."""
    ordered = sorted(paths, key=lambda path: (path != CLUSTER_ID, *_children_first(path)))
    return (Delete(path) for path in ordered)


def creations(snapshot: Snapshot) -> Iterator[Operation]:
    """Create everything but the root, parents first.

    The cluster id comes last. A broker refuses a ZooKeeper that does not know its cluster, so an
    interrupted copy counts as empty and not as a cluster without topics.
    """
    ordered = sorted(snapshot.nodes, key=lambda path: (path == CLUSTER_ID, *_parents_first(path)))
    for path in ordered:
        node = snapshot.nodes[path]
        if path == CLUSTER_ID:
            yield from _counters(snapshot)
        if path != "/":
            yield Create(path, node.data, acl=node.acl)
    if CLUSTER_ID not in snapshot.nodes:
        yield from _counters(snapshot)
    if "/" in snapshot.nodes and _has_content(snapshot.nodes["/"]):
        yield SetData("/", snapshot.nodes["/"].data)


def root_acl(snapshot: Snapshot) -> bytes | None:
    """Return the ACL to set on the root at the end; None if the root keeps its ACL."""
    root = snapshot.nodes.get("/")
    return root.acl if root is not None and _has_content(root) else None


def _counters(snapshot: Snapshot) -> Iterator[Operation]:
    if BROKER_SEQUENCE in snapshot.nodes:
        data = snapshot.nodes[BROKER_SEQUENCE].data
        for _ in range(_version(snapshot)):
            yield SetData(BROKER_SEQUENCE, data)
    for parent, count in _sequences(snapshot):
        temporary = f"{parent.rstrip('/')}/counting"
        for _ in range(count - snapshot.nodes[parent].stat.num_children):
            yield Create(temporary)
            yield Delete(temporary)


def _sequences(snapshot: Snapshot) -> Iterator[tuple[str, int]]:
    """Return the parents of sequential znodes with the create count that they must reach.

    A name may only look sequential, for example a topic's. Then its number can be larger than the
    parent's create count; so the create count is the limit.
    """
    last: dict[str, int] = {}
    for path in snapshot.nodes:
        digits = path[-_SEQUENCE_DIGITS:]
        if len(digits) == _SEQUENCE_DIGITS and digits.isascii() and digits.isdigit():
            parent = split(path)[0]
            last[parent] = max(last.get(parent, 0), int(digits))
    for parent, number in last.items():
        yield parent, min(number + 1, snapshot.nodes[parent].create_count)


def _children_first(path: str) -> tuple[int, str]:
    depth, name = _parents_first(path)
    return -depth, name


def batches(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """Split operations into batches that fit into one request each."""
    batch: list[Operation] = []
    size = 0
    for operation in operations:
        more = _size(operation)
        if batch and (len(batch) == BATCH_OPERATIONS or size + more > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(operation)
        size += more
    if batch:
        yield batch


def _size(operation: Operation) -> int:
    size = _OVERHEAD_BYTES + len(operation.path.encode())
    match operation:
        case Create(data=data, acl=acl):
            return size + len(data or b"") + len(acl)
        case SetData(data=data):
            return size + len(data or b"")
    return size
