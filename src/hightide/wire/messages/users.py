"""SCRAM credentials of users."""

from __future__ import annotations

from hightide.wire.types import field, i8, i16, i32, message, part


@part
class UserName:
    name: str


@message(key=50, versions=(0, 0), flexible=0)
class DescribeUserScramCredentialsRequest:
    """Request the SCRAM credentials of users; of all users if the list is null."""

    users: list[UserName] | None


@part
class CredentialInfo:
    mechanism: i8
    iterations: i32


@part
class DescribeUserScramCredentialsResult:
    user: str
    error_code: i16 = 0
    error_message: str | None = None
    credential_infos: list[CredentialInfo]


@message(key=50, versions=(0, 0), flexible=0)
class DescribeUserScramCredentialsResponse:
    """The mechanisms and iterations of each user, never the secrets."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    results: list[DescribeUserScramCredentialsResult]


@part
class ScramCredentialDeletion:
    name: str
    mechanism: i8


@part
class ScramCredentialUpsertion:
    name: str
    mechanism: i8
    iterations: i32
    salt: bytes = field(secret=True)
    salted_password: bytes = field(secret=True)


@message(key=51, versions=(0, 0), flexible=0)
class AlterUserScramCredentialsRequest:
    """Add, replace and delete SCRAM credentials."""

    deletions: list[ScramCredentialDeletion]
    upsertions: list[ScramCredentialUpsertion]


@part
class AlterUserScramCredentialsResult:
    user: str
    error_code: i16 = 0
    error_message: str | None = None


@message(key=51, versions=(0, 0), flexible=0)
class AlterUserScramCredentialsResponse:
    """The result for each user."""

    throttle_time_ms: i32 = 0
    results: list[AlterUserScramCredentialsResult]
