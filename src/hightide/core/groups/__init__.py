"""The group coordinator: members, generations and committed offsets, as machines.

A `Coordinator` answers for the groups of one partition of `__consumer_offsets`, and what it must
not forget is a replay of that partition.  `coordinator.py` is where to begin.
"""
