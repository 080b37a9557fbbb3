"""Quotas of users, clients and addresses."""

from __future__ import annotations

from hightide.wire.types import f64, i8, i16, i32, message, part


@part
class ComponentData:
    entity_type: str
    match_type: i8
    match: str | None


@message(key=48, versions=(0, 1), flexible=1)
class DescribeClientQuotasRequest:
    """Request the quotas of matching entities."""

    components: list[ComponentData]
    strict: bool


@part
class EntityData:
    entity_type: str
    entity_name: str | None


@part
class ValueData:
    key: str
    value: f64


@part
class EntryData:
    entity: list[EntityData]
    values: list[ValueData]


@message(key=48, versions=(0, 1), flexible=1)
class DescribeClientQuotasResponse:
    """The matching quotas, or null if the request failed."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    entries: list[EntryData] | None


@part
class OpData:
    key: str
    value: f64
    remove: bool


@part
class AlterEntryData:
    entity: list[EntityData]
    ops: list[OpData]


@message(key=49, versions=(0, 1), flexible=1)
class AlterClientQuotasRequest:
    """Set or remove quotas of entities."""

    entries: list[AlterEntryData]
    validate_only: bool


@part
class AlteredEntryData:
    error_code: i16 = 0
    error_message: str | None = None
    entity: list[EntityData]


@message(key=49, versions=(0, 1), flexible=1)
class AlterClientQuotasResponse:
    """The result for each entity."""

    throttle_time_ms: i32 = 0
    entries: list[AlteredEntryData]
