"""SASL authentication: agree on a mechanism, then exchange the mechanism's bytes.

From SaslHandshake version 1 on the bytes are in SaslAuthenticate; before that, raw bytes with only
a length prefix follow the handshake.
"""

from __future__ import annotations

from hightide.wire.types import field, i16, i64, message


@message(key=17, versions=(0, 1))
class SaslHandshakeRequest:
    """Choose a SASL mechanism."""

    mechanism: str


@message(key=17, versions=(0, 1))
class SaslHandshakeResponse:
    """The result, and the mechanisms of the broker."""

    error_code: i16 = 0
    mechanisms: list[str]


@message(key=36, versions=(0, 2), flexible=2)
class SaslAuthenticateRequest:
    """One step of the mechanism, from the client."""

    auth_bytes: bytes = field(secret=True)


@message(key=36, versions=(0, 2), flexible=2)
class SaslAuthenticateResponse:
    """One step of the mechanism, from the broker, or the error."""

    error_code: i16 = 0
    error_message: str | None = None
    auth_bytes: bytes = field(secret=True)
    session_lifetime_ms: i64 = field(since=1, ignorable=True, default=0)
