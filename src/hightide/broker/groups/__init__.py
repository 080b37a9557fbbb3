"""The group coordinators of a broker: the shell around `core.groups`.

group_partitions   the partitions of `__consumer_offsets` that this broker leads
group_partition    the coordinator of one partition: loading, requests, writes, time
batches            writes as record batches, and back
re2_patterns       the regular expressions of subscriptions
topic_matches      matches them with all topics, in the pool
"""

from hightide.broker.groups.group_partitions import GroupPartitions

__all__ = ["GroupPartitions"]
