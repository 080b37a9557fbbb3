"""Which partition of an internal topic keeps a group or a transactional id.

Whoever leads that partition coordinates it. Kafka takes Java's hash of the name, and so do we: its
tools and brokers look for a name in the same place.
"""

from __future__ import annotations

from struct import Struct

_UNIT = Struct("<H")


def partition_for(name: str, partition_count: int) -> int:
    """The partition that keeps `name`, in a topic of this many."""
    value = 0
    # Java counts in the 16 bits of UTF-16, so some characters are two.
    for (unit,) in _UNIT.iter_unpack(name.encode("utf-16-le", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFF_FFFF
    if value >= 1 << 31:
        value = (1 << 32) - value
    # The one number without a positive counterpart.
    return 0 if value == 1 << 31 else value % partition_count
