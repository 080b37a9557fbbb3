"""Topic names: which are legal, which are internal, and which partition keeps a coordinator's key.

A group or a transactional id belongs to one partition of an internal topic, and the leader of that
partition is its coordinator.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from struct import Struct

from hightide.wire.errors import ErrorCode, KafkaError

LONGEST_NAME = 249
_LEGAL = re.compile(r"[A-Za-z0-9._-]+\Z")
_UTF16_UNIT = Struct("<H")

CONSUMER_OFFSETS, TRANSACTION_STATE = "__consumer_offsets", "__transaction_state"
INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})


def check_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION, with the reason, unless `name` is a legal topic name."""
    problem = None
    if not name:
        problem = "a topic needs a name"
    elif name in (".", ".."):
        problem = f"a topic cannot be named {name!r}"
    elif len(name) > LONGEST_NAME:
        problem = f"a topic name has at most {LONGEST_NAME} characters, not {len(name)}"
    elif not _LEGAL.match(name):
        problem = f"{name!r}: a topic name consists of letters, digits, '.', '_' and '-'"
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def collision(name: str, existing: Sequence[str]) -> str | None:
    """Return the topic that `name` collides with in metric names, where '.' and '_' are equal."""
    plain = name.replace(".", "_")
    return next((other for other in existing if other.replace(".", "_") == plain), None)


def partition_for(key: str, partition_count: int) -> int:
    """Return the partition of an internal topic that keeps this group or transactional id.

    This is Java's hash of the key, as in Kafka: Kafka's tools and brokers look in the same place.
    """
    value = 0
    # Java hashes UTF-16 code units, so some characters count as two.
    for (unit,) in _UTF16_UNIT.iter_unpack(key.encode("utf-16-le", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFF_FFFF
    if value >= 1 << 31:
        value = (1 << 32) - value
    # The least int has no positive counterpart; Kafka maps it to 0.
    return 0 if value == 1 << 31 else value % partition_count
