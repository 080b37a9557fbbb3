"""Transactional ids, and the producers that a partition remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hightide.client.model.cluster import Partition

COMMITTING, ABORTING = frozenset({"PrepareCommit"}), frozenset({"PrepareAbort"})
ENDED = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionsListing:
    transactions: list[TransactionListing]
    silent: Mapping[int, str]
    """Brokers that did not answer, and why."""
    unknown_states: frozenset[str]
    """States of the filter that a broker does not know."""


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    transactional_id: str
    state: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    """None while no transaction is open."""
    partitions: tuple[Partition, ...]

    @property
    def is_open(self) -> bool:
        return self.state not in ENDED


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer that a partition remembers; None means unknown."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_ms: int | None
    coordinator_epoch: int | None
    start_offset: int | None
    """The first offset of its open transaction, if it has one."""
