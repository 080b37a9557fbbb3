"""The APIs and versions of a broker: the first request of nearly every client.

The client reads the response before the two sides agree on a version. So the broker responds even
to an unknown version of the request: in version 0, with UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from hightide.wire.types import field, i16, i32, i64, message, part


@message(key=18, versions=(0, 4), flexible=3)
class ApiVersionsRequest:
    """Request the APIs and versions of the broker; name the client software."""

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
    """The range of versions of each API."""

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
