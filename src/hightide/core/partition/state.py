"""The state of a partition that the controller decides, as a value.

    AR  = replicas      assigned replicas, the preferred leader first
    ISR ⊆ AR            in-sync replicas: they have every committed record, as the leader reports
    OSR = AR − ISR      out-of-sync replicas
    ELR ⊆ OSR           eligible leader replicas: they left the ISR when it was too small to commit
                        anything more, so they too have every committed record (KIP-966)

Only the controller changes the state, each time by compare-and-set on the partition's znode, whose
version is the partition epoch.  The leader epoch grows whenever the leader changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import ClassVar

from hightide.core.events import Event, Severity, partition_name

NO_BROKER = -1
"""The broker id that stands for no leader, or no controller."""


class FailureKind(IntEnum):
    """Why a live broker cannot serve one of its replicas."""

    FULL = 1
    """The log has all its records and can be read.  It cannot be appended to: the disk is full."""
    OFFLINE = 2
    """The log can be neither read nor written.  It may be whole when the disk works again, as the
    log of a broker that is down."""
    DAMAGED = 3
    """Records of the log are damaged or missing, so it has to be copied from another replica."""


class Role(Enum):
    """What a replica does."""

    LEADS = "leads"
    FOLLOWS = "follows"
    WAITS = "waits"
    """There is no leader, or the replica cannot be served yet."""


@dataclass(frozen=True, slots=True)
class RoleChanged(Event):
    """A replica on this broker has another role, or the same in another leader epoch."""

    severity: ClassVar[Severity] = Severity.DEBUG
    topic: str
    partition: int
    role: Role
    leader: int
    leader_epoch: int

    def __str__(self) -> str:
        leader = f" broker {self.leader}" if self.role is Role.FOLLOWS else ""
        return (
            f"{partition_name(self.topic, self.partition)}: this replica {self.role.value}{leader}"
            f" in leader epoch {self.leader_epoch}"
        )


@dataclass(frozen=True, slots=True)
class FirstWrite(Event):
    """A leader that took over from another one has its first records: the failover is over."""

    severity: ClassVar[Severity] = Severity.DEBUG
    topic: str
    partition: int
    leader_epoch: int
    after_ms: int
    """Time since the replica has led."""

    def __str__(self) -> str:
        return (
            f"{partition_name(self.topic, self.partition)}: first write in leader epoch"
            f" {self.leader_epoch}, {self.after_ms} ms after its leader took over"
        )


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One decision of the controller; `partition_epoch` numbers the decisions."""

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_known_leader: int = NO_BROKER
    """The leader before there was none."""
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    """Replicas that a running reassignment adds, and those that it removes at its end."""
    is_recovering: bool = False
    """The leader was elected although it may lack committed records."""
    recovery_epoch: int = -1
    """The newest leader epoch with such an election.  A follower that was away then may know of
    committed records that are lost since; records of later epochs cannot be lost in it."""
    broker_epochs: Mapping[int, int] = field(default_factory=dict, hash=False)
    """The broker epoch in which each member of ISR and ELR was known to have every committed
    record.  Kept with the decision, so that every later controller can tell a restart that may
    have lost data from one that did not."""
    last_known_elr: tuple[int, ...] = ()
    """Members of the last ISR and ELR that may have lost records since, because they restarted or
    their log is damaged.  If no other replica is left, they are asked for their logs."""

    @property
    def osr(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.isr)

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    def check(self) -> None:
        """Assert what must hold of every decision."""
        replicas, isr, elr = set(self.replicas), set(self.isr), set(self.elr)
        assert self.replicas
        assert len(replicas) == len(self.replicas), "a broker is assigned once"
        assert len(isr) == len(self.isr)
        assert len(elr) == len(self.elr)
        assert isr <= replicas, "the ISR consists of assigned replicas"
        assert elr <= replicas - isr, "the ELR consists of assigned replicas outside the ISR"
        assert set(self.last_known_elr) <= replicas - isr - elr
        assert self.leader == NO_BROKER or self.leader in isr, "the leader is in the ISR"
        assert self.leader != NO_BROKER or not isr, "an ISR has a leader"
        assert set(self.adding) <= replicas
        assert set(self.removing) <= replicas
        assert not set(self.adding) & set(self.removing)
        assert self.recovery_epoch <= self.leader_epoch
        assert self.broker_epochs.keys() <= isr | elr


def effective_min_isr(min_insync_replicas: int, replicas: tuple[int, ...]) -> int:
    """Return `min.insync.replicas`, capped at the number of replicas."""
    return min(min_insync_replicas, len(replicas))
