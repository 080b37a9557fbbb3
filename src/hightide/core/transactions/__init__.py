"""Transactions: their coordinator, and what a partition knows of them.

    transaction.py              the state of a transactional id, and its transitions
    transaction_coordinator.py  decides, has the decision written, then answers
    pending_markers.py          the markers that end transactions, to send to partition leaders
    open_transactions.py        open transactions and the last stable offset of one partition
    verification.py             checks that a transaction contains the partition written to
    aborted_index.py            the aborted transactions of a segment, for read_committed consumers
    listing.py                  DescribeTransactions and ListTransactions

`docs/internals/transactions.md` says how to drive them.
"""
