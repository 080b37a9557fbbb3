"""Access control lists: which principal may do what with which resource.

The numbers for resource types, pattern types, operations and permissions are Kafka's.
"""

from __future__ import annotations

from hightide.wire.types import i8, i16, i32, message, part


@message(key=29, versions=(1, 3), flexible=2)
class DescribeAclsRequest:
    """Request the ACLs that match a filter."""

    resource_type_filter: i8
    resource_name_filter: str | None
    pattern_type_filter: i8 = 3
    principal_filter: str | None
    host_filter: str | None
    operation: i8
    permission_type: i8


@part
class AclDescription:
    principal: str
    host: str
    operation: i8
    permission_type: i8


@part
class DescribeAclsResource:
    resource_type: i8
    resource_name: str
    pattern_type: i8 = 3
    acls: list[AclDescription]


@message(key=29, versions=(1, 3), flexible=2)
class DescribeAclsResponse:
    """The matching ACLs, by resource."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    resources: list[DescribeAclsResource]


@part
class AclCreation:
    resource_type: i8
    resource_name: str
    resource_pattern_type: i8 = 3
    principal: str
    host: str
    operation: i8
    permission_type: i8


@message(key=30, versions=(1, 3), flexible=2)
class CreateAclsRequest:
    """Create ACLs."""

    creations: list[AclCreation]


@part
class AclCreationResult:
    error_code: i16 = 0
    error_message: str | None = None


@message(key=30, versions=(1, 3), flexible=2)
class CreateAclsResponse:
    """The result for each ACL, in the order of the request."""

    throttle_time_ms: i32 = 0
    results: list[AclCreationResult]


@part
class DeleteAclsFilter:
    resource_type_filter: i8
    resource_name_filter: str | None
    pattern_type_filter: i8 = 3
    principal_filter: str | None
    host_filter: str | None
    operation: i8
    permission_type: i8


@message(key=31, versions=(1, 3), flexible=2)
class DeleteAclsRequest:
    """Delete the ACLs that match any of the filters."""

    filters: list[DeleteAclsFilter]


@part
class DeleteAclsMatchingAcl:
    error_code: i16 = 0
    error_message: str | None = None
    resource_type: i8
    resource_name: str
    pattern_type: i8 = 3
    principal: str
    host: str
    operation: i8
    permission_type: i8


@part
class DeleteAclsFilterResult:
    error_code: i16 = 0
    error_message: str | None = None
    matching_acls: list[DeleteAclsMatchingAcl]


@message(key=31, versions=(1, 3), flexible=2)
class DeleteAclsResponse:
    """The ACLs that each filter deleted."""

    throttle_time_ms: i32 = 0
    filter_results: list[DeleteAclsFilterResult]
