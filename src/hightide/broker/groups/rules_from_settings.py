"""The settings of groups, in the shape that the machines use."""

from __future__ import annotations

from hightide.core.groups.group_rules import MINUTE_MS, MigrationPolicy, Rules
from hightide.settings import Broker as Settings


def rules_of(settings: Settings) -> Rules:
    return Rules(
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        min_session_timeout_ms=settings.group_min_session_timeout_ms,
        max_session_timeout_ms=settings.group_max_session_timeout_ms,
        max_size=settings.group_max_size,
        offset_metadata_max_bytes=settings.offset_metadata_max_bytes,
        offsets_retention_ms=settings.offsets_retention_minutes * MINUTE_MS,
        offsets_retention_check_interval_ms=settings.offsets_retention_check_interval_ms,
        consumer_session_timeout_ms=settings.group_consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
        consumer_max_size=settings.group_consumer_max_size,
        consumer_assignors=settings.group_consumer_assignors,
        migration_policy=MigrationPolicy(settings.group_consumer_migration_policy),
    )
