"""Keys → partitions, as Kafka's default partitioner chooses them.

So producers in Java, in C and here send a key to the same partition.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from hightide.spark.columns import kernels, without_numba
from hightide.spark.columns.arrow_input import items

NO_KEY = -1
"""Marks a record without a key, which may go anywhere."""


def partitions_of(keys: pa.Array, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the partition of each key among `count`; NO_KEY for a null."""
    if count < 1:
        raise ValueError(f"a topic has at least one partition, not {count}")
    chosen = np.full(len(keys), NO_KEY, np.int32)
    read = items(keys, "key")
    if not len(chosen) or not len(read.ends):
        return chosen
    if kernels.is_compiled:
        kernels.murmur2(*read, count, chosen)
    else:
        without_numba.murmur2(read, count, chosen)
    return chosen
