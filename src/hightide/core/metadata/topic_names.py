"""Rules for topics that need no broker to decide: what they can be called."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hightide.wire.errors import ErrorCode, KafkaError

LONGEST_NAME = 249
_LEGAL = re.compile(r"[A-Za-z0-9._-]+\Z")

CONSUMER_OFFSETS, TRANSACTION_STATE = "__consumer_offsets", "__transaction_state"
INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})


def check_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION, saying why, unless `name` can be a topic's name."""
    problem = None
    if not name:
        problem = "a topic needs a name"
    elif name in (".", ".."):
        problem = f"a topic cannot be named {name!r}"
    elif len(name) > LONGEST_NAME:
        problem = f"a topic's name has at most {LONGEST_NAME} characters, not {len(name)}"
    elif not _LEGAL.match(name):
        problem = f"{name!r}: a topic's name is made of letters, digits, '.', '_' and '-'"
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def collision(name: str, existing: Sequence[str]) -> str | None:
    """A topic that `name` would collide with where '.' and '_' mean the same, as in metrics."""
    plain = name.replace(".", "_")
    return next((other for other in existing if other.replace(".", "_") == plain), None)
