"""Groups of the consumer protocol (KIP-848): the coordinator assigns partitions, member by member.

The group never stops as a whole.  `consumer_group.py` is the state of a group, `assignors.py`
computes the target assignment, and `reconciliation.py` moves each member towards it.
"""
