"""Groups of the newer protocol (KIP-848): the coordinator shares out the work, member by member.

There is no moment at which all stand still.  `group.py` is what is known of a group, `assignors.py`
makes the shares, and `reconciliation.py` leads each member to its own.
"""
