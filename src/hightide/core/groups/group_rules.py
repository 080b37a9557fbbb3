"""The settings of the group coordinator, as the core uses them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MINUTE_MS = 60 * 1000

MAX_ID_CHARACTERS = 1024
"""The longest client id, member id, group instance id or id of a new group that is stored."""
MAX_PROTOCOLS = 100
"""The most protocols that a member may offer.  Clients offer one for each assignor."""


class MigrationPolicy(Enum):
    """In which direction a group with members may change its protocol."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def allows_upgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def allows_downgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@dataclass(frozen=True, slots=True)
class Rules:
    """Named like the settings; the defaults are theirs."""

    initial_rebalance_delay_ms: int = 3000
    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 30 * MINUTE_MS
    max_size: int = 1000
    max_count: int = 10_000
    """Of the whole broker."""
    member_metadata_max_bytes: int = 1024 * 1024
    metadata_max_bytes: int = 256 * 1024 * 1024
    """Of the large members of the whole broker."""
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 60 * MINUTE_MS
    offsets_retention_check_interval_ms: int = 10 * MINUTE_MS
    new_member_join_timeout_ms: int = 5 * MINUTE_MS
    """How long the JoinGroup of a new member may wait.  The client does not know its member id yet
    and cannot send heartbeats, so nothing else limits the wait.  Kafka has no setting for it."""
    consumer_session_timeout_ms: int = 45 * 1000
    consumer_heartbeat_interval_ms: int = 5000
    consumer_max_size: int = 1000
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
