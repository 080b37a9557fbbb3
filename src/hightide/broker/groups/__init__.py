"""The group coordinator's shell: the machine of `core.groups` on the partitions led here.

`groups` is what the rest of the broker knows of it.  `partition` drives the machine of one
partition of `__consumer_offsets`: it loads it, appends what it decides and answers what it says.
"""

from hightide.broker.groups.group_partitions import GroupPartitions

__all__ = ["GroupPartitions"]
