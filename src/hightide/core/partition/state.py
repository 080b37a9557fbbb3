"""What the cluster has decided about a partition, as a value.

    AR  = replicas              all brokers that shall hold it, the preferred leader first
    ISR ⊆ AR                    those that have everything that is committed, by the leader's word
    OSR = AR − ISR
    ELR ⊆ OSR                   those that left the ISR when it was too small to commit anything
                                more: they too have everything that is committed (KIP-966)

The controller alone changes it, each time by comparing and setting the partition's znode, whose
version is the partition epoch.  The leader epoch grows whenever somebody else leads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NO_BROKER = -1


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The decision, and its number."""

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_known_leader: int = NO_BROKER
    """Who led before nobody did; the one to fall back on when no replica is known to be whole."""
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    """Replicas that a reassignment under way brings, and those that it takes away at its end."""
    is_recovering: bool = False
    """The leader was elected although it may lack what was committed."""
    recovery_epoch: int = -1
    """The newest leader epoch that began so.  A follower that slept through it may find that what
    it knows to be committed is not any more; of what is newer that cannot be."""
    broker_epochs: Mapping[int, int] = field(default_factory=dict, hash=False)
    """In which life each member of ISR and ELR was known to be whole.  Kept with the decision, so
    that every later controller can tell a restart that lost data from one that did not."""

    @property
    def osr(self) -> tuple[int, ...]:
        return tuple(each for each in self.replicas if each not in self.isr)

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    def check(self) -> None:
        """Assert what must hold of every decision."""
        replicas, isr, elr = set(self.replicas), set(self.isr), set(self.elr)
        assert self.replicas
        assert len(replicas) == len(self.replicas), "a broker holds a partition once"
        assert len(isr) == len(self.isr)
        assert len(elr) == len(self.elr)
        assert isr <= replicas, "only who holds it can be in sync"
        assert elr <= replicas - isr, "eligible are those who are not in sync any more"
        assert self.leader == NO_BROKER or self.leader in isr, "who leads is in sync with himself"
        assert self.leader != NO_BROKER or not isr, "with somebody in sync, somebody leads"
        assert set(self.adding) <= replicas
        assert set(self.removing) <= replicas
        assert not set(self.adding) & set(self.removing)
        assert self.recovery_epoch <= self.leader_epoch
        assert self.broker_epochs.keys() <= isr | elr


def effective_min_isr(min_insync_replicas: int, replicas: tuple[int, ...]) -> int:
    """More than all replicas cannot be in sync."""
    return min(min_insync_replicas, len(replicas))
