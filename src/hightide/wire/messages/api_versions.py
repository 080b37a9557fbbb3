"""What a broker speaks: the first question of nearly every client.

The answer is read before the two sides have agreed on anything, so even an unknown version
of the request must be answered: in version 0, with UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from hightide.wire.types import field, i16, i32, i64, message, part


@message(key=18, versions=(0, 4), flexible=3)
class ApiVersionsRequest:
    """Asks which APIs and versions the broker serves, and says who is asking."""

    client_software_name: str = field(since=3, ignorable=True, default="")
    client_software_version: str = field(since=3, ignorable=True, default="")


@part
class ApiVersion:
    api_key: i16
    min_version: i16
    max_version: i16


@part
class SupportedFeatureKey:
    name: str
    min_version: i16
    max_version: i16


@part
class FinalizedFeatureKey:
    name: str
    max_version_level: i16
    min_version_level: i16


@message(key=18, versions=(0, 4), flexible=3)
class ApiVersionsResponse:
    """The range of versions for each API that is served."""

    error_code: i16 = 0
    api_keys: list[ApiVersion]
    throttle_time_ms: i32 = field(since=1, ignorable=True, default=0)
    supported_features: list[SupportedFeatureKey] = field(
        since=3, tag=0, ignorable=True, default=[]
    )
    finalized_features_epoch: i64 = field(since=3, tag=1, ignorable=True, default=-1)
    finalized_features: list[FinalizedFeatureKey] = field(
        since=3, tag=2, ignorable=True, default=[]
    )
    zk_migration_ready: bool = field(since=3, tag=3, ignorable=True, default=False)
