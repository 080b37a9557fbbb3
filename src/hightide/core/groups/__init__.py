"""The group coordinator: members, generations and committed offsets, without input or output.

A `GroupCoordinator` serves the groups of one partition of `__consumer_offsets`.  Its durable state
is a replay of that partition.  Start reading at `group_coordinator.py`.
"""
