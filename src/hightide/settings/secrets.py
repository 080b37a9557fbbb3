"""Which settings are secrets. Their values must not be in arguments, which every user can list."""

from __future__ import annotations

import re

_SECRET = re.compile(
    r"(.*[._])?(password|passphrase|secret|token|credentials|jaas\.config|user\.info|key\.pem"
    r"|keystore\.key|(secret|master|access)\.key|oauthbearer\.config)",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Return whether a setting of Kafka, of librdkafka or of this broker holds a secret."""
    return _SECRET.fullmatch(name.strip()) is not None


def variable_of(name: str) -> str:
    """Return the environment variable that sets a broker setting."""
    escaped = name.replace("_", "__").replace("-", "___").replace(".", "_")
    return f"KAFKA_{escaped.upper()}"
