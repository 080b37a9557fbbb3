"""Transactions: who coordinates them, and what a partition knows of them.

    transaction.py   what is known of a transactional id, and what can become of it
    coordinator.py   who may do what, decided, written, then answered
    outbox.py        the markers that end transactions, on their way to the partitions' leaders
    partition.py     open transactions and the last stable offset of one partition
    verification.py  that a transaction really contains the partition somebody writes to
    aborted.py       which transactions were aborted, for readers of committed records

`docs/internals/transactions.md` says how they are driven.
"""
