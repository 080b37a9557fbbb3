"""What a request names: topics, partitions, groups, settings.

A request that describes, looks up or deletes things gets one answer for each thing, however often
it names the thing: repeated names are merged before the handler sees them.  So the answer is at
most as large as what the broker knows.  Requests that set something keep their repeats, because
their handlers refuse them, as Kafka does.

The number of different names in a request is limited (`request.max.names`).  A topic with its
partitions counts as many names as it has partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from hightide.wire.errors import WireError
from hightide.wire.messages.metadata import MetadataRequestTopic
from hightide.wire.messages.offsets import OffsetFetchRequestGroup
from hightide.wire.types import NO_UUID, Array, Fixed, Struct, Text, fields_of

_ONCE = frozenset(
    {3, 9, 10, 15, 20, 21, 23, 32, 35, 42, 43, 46, 47, 61, 65, 69, 74, 75, 30002, 30003, 30006}
)
"""APIs whose repeated names are one name."""


def _topic_key(topic: MetadataRequestTopic) -> Any:
    """A topic is found by its id, if it has one, whatever its name is."""
    return topic.name if topic.topic_id == NO_UUID else topic.topic_id


# What names an element, where not all of its plain fields do.
_KEYS: dict[type, Callable[[Any], Any]] = {
    OffsetFetchRequestGroup: attrgetter("group_id"),
    MetadataRequestTopic: _topic_key,
}

# Arrays that are properties of what is named.
_PROPERTIES = frozenset({"replicas", "broker_ids", "new_isr", "new_isr_with_epochs"})


class _Named(NamedTuple):
    """An array in a message, whose elements are names or have a key."""

    field: str
    key: Callable[[Any], Any] | None
    inner: tuple[_Named, ...]


def check_names(request: Any, api_key: int, limit: int) -> None:
    """Merge repeated names if the API answers each name once; WireError if too many are left."""
    cls: type = request.__class__
    count = _visit(request, _arrays(cls), api_key in _ONCE)
    if count > limit:
        raise WireError(
            f"a request with {count} names; request.max.names is {limit}; ask for fewer at a time"
        )


def _visit(struct: Any, arrays: tuple[_Named, ...], merges: bool) -> int:
    count = 0
    for array in arrays:
        items = getattr(struct, array.field)
        if not items:
            continue
        if merges and len(items) > 1:
            items = _once(items, array)
            setattr(struct, array.field, items)
        if not array.inner:
            count += len(items)
            continue
        for item in items:
            count += max(1, _visit(item, array.inner, merges))
    return count


def _once(items: list[Any], array: _Named) -> list[Any]:
    if array.key is None:
        return list(dict.fromkeys(items))
    first: dict[Any, Any] = {}
    for item in items:
        kept = first.setdefault(array.key(item), item)
        if kept is not item:
            for inner in array.inner:
                _extend(kept, item, inner.field)
    return list(first.values())


def _extend(kept: Any, repeated: Any, field: str) -> None:
    """Add what a repeat names; null names everything."""
    before, more = getattr(kept, field), getattr(repeated, field)
    if before is not None and more is not None:
        before.extend(more)
    else:
        setattr(kept, field, None)


@cache
def _arrays(cls: type) -> tuple[_Named, ...]:
    """The arrays of names in a declared class."""
    found = []
    for field in fields_of(cls):
        if not isinstance(field.shape, Array) or field.name in _PROPERTIES:
            continue
        item = field.shape.item
        if not isinstance(item, Struct):
            found.append(_Named(field.name, None, ()))
            continue
        plain = [
            inner.name for inner in fields_of(item.cls) if isinstance(inner.shape, Fixed | Text)
        ]
        if plain:
            key = _KEYS.get(item.cls) or attrgetter(*plain)
            found.append(_Named(field.name, key, _arrays(item.cls)))
    return tuple(found)
