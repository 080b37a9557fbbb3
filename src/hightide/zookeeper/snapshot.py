"""A coordinator's tree as a value that can be carried elsewhere, and the plan for writing it there.

A snapshot has every persistent znode. It leaves out ephemerals, whose owners are not carried along,
and `/zookeeper`, which belongs to the server. Its paths start at the place's own root, be that a
chroot or not, so it fits any other place.

A plan is for a coordinator that is asked over the wire, where versions and counters cannot be set.
Two of them are state and not bookkeeping, so the plan drives them up to where they were: the
version of `/brokers/seqid`, from which broker ids are made, and the number that the next sequential
znode gets among its siblings, which whoever follows them takes for their order.

Everything here is pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from hightide.zookeeper.node import OPEN_ACL, Znode, split
from hightide.zookeeper.operation import Create, Delete, Operation, SetData
from hightide.zookeeper.znodes import BROKER_IDS, BROKER_SEQUENCE, CLUSTER_ID

SERVERS_OWN = "/zookeeper"
CONTAINER = -(2**63)
"""The owner that ZooKeeper shows for a container, which is no ephemeral."""

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
"""What a cluster has at its root. Other znodes there belong to somebody else."""

BATCH_OPERATIONS = 500
BATCH_BYTES = 512 * 1024
"""A request may have 1 MB; the znode that is larger than this goes alone."""
_OVERHEAD_BYTES = 64

_SEQUENCE_DIGITS = 10


class Snapshot(NamedTuple):
    """Persistent znodes by path, parents first, and what was left out."""

    zxid: int
    nodes: Mapping[str, Znode]
    ephemeral_count: int = 0
    brokers: tuple[str, ...] = ()
    """The ids of the brokers that were registered: of the ephemerals, the ones that matter."""

    @classmethod
    def of(cls, zxid: int, found: Mapping[str, Znode]) -> Snapshot:
        """What to keep of a tree that has these znodes."""
        ours = {path: found[path] for path in sorted(found, key=_parents_first) if _is_ours(path)}
        kept = {path: node for path, node in ours.items() if not is_ephemeral(node)}
        # Where a parent vanished while the tree was read, its children have no place.
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
        """Only the root itself and these znodes at it, with all below them."""
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
    """The znode at the root that `path` is or is below; the root's is itself."""
    return "/" + path[1:].partition("/")[0]


def _is_ours(path: str) -> bool:
    return root_of(path) != SERVERS_OWN


def _parents_first(path: str) -> tuple[int, str]:
    return (path.count("/") if path != "/" else 0, path)


def _with_children(node: Znode, count: int) -> Znode:
    """The znode with this many children, as if the others had been deleted one by one."""
    stat = node.stat._replace(
        num_children=count, cversion=2 * node.create_count - count, ephemeral_owner=0
    )
    return node._replace(stat=stat)


def joined(base: Znode, saved: Znode, child_count: int) -> Znode:
    """The root of a place that had `base` and gets what was under `saved`."""
    creates = max(base.create_count, saved.create_count, child_count)
    root = saved if _says_something(saved) else base
    return root._replace(
        stat=root.stat._replace(
            num_children=child_count,
            cversion=2 * creates - child_count,
            pzxid=max(base.stat.pzxid, saved.stat.pzxid),
        )
    )


def _says_something(root: Znode) -> bool:
    """Whether a root has data or an access list; a plain one is no reason to change another's."""
    return bool(root.data) or root.acl != OPEN_ACL


def differences(wanted: Snapshot, found: Snapshot) -> Iterator[str]:
    """What is not the same, in words: znodes, their data and access lists, and the two counters."""
    for path in sorted(wanted.nodes.keys() | found.nodes.keys(), key=_parents_first):
        want, have = wanted.nodes.get(path), found.nodes.get(path)
        if path == "/" and want is not None and not _says_something(want):
            continue
        if want is None or have is None:
            yield f"{path} is {'missing' if have is None else 'there but should not be'}"
        elif want.data != have.data:
            yield f"{path} has other data"
        elif want.acl != have.acl:
            yield f"{path} has another access list"
    for path, count in _sequences(wanted):
        if path in found.nodes and found.nodes[path].create_count < count:
            yield f"{path} would give numbers to its children that are used"
    if BROKER_SEQUENCE in found.nodes and _version(found) < _version(wanted):
        yield f"{BROKER_SEQUENCE} would give broker ids that are used"


def _version(snapshot: Snapshot) -> int:
    node = snapshot.nodes.get(BROKER_SEQUENCE)
    return 0 if node is None else node.stat.version


# -- a plan ----------------------------------------------------------------------------------


def deletions(paths: Iterable[str]) -> Iterator[Operation]:
    """Delete these znodes: first what makes a cluster known as one, then children first."""
    ordered = sorted(paths, key=lambda path: (path != CLUSTER_ID, *_children_first(path)))
    return (Delete(path) for path in ordered)


def creations(snapshot: Snapshot) -> Iterator[Operation]:
    """Create everything but the root, parents first.

    The cluster's id comes last. A broker refuses a coordinator that does not know its cluster, so
    a place where the writing broke off is taken for empty and not for a cluster without topics.
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
    if "/" in snapshot.nodes and _says_something(snapshot.nodes["/"]):
        yield SetData("/", snapshot.nodes["/"].data)


def root_acl(snapshot: Snapshot) -> bytes | None:
    """The access list that the root must get in the end; None if it may stay as it is."""
    root = snapshot.nodes.get("/")
    return root.acl if root is not None and _says_something(root) else None


def _counters(snapshot: Snapshot) -> Iterator[Operation]:
    if BROKER_SEQUENCE in snapshot.nodes:
        data = snapshot.nodes[BROKER_SEQUENCE].data
        for _ in range(_version(snapshot)):
            yield SetData(BROKER_SEQUENCE, data)
    for parent, count in _sequences(snapshot):
        passing = f"{parent.rstrip('/')}/counting"
        for _ in range(count - snapshot.nodes[parent].stat.num_children):
            yield Create(passing)
            yield Delete(passing)


def _sequences(snapshot: Snapshot) -> Iterator[tuple[str, int]]:
    """Parents of sequential znodes, and how many children they must have created.

    A name that only looks sequential, as that of a topic can, has a number that its parent never
    counted to; so the parent's own count is the limit.
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
    """Operations in groups that fit into one request each."""
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
