"""Transactions, as a broker serves them: the shell around `core.transactions`.

transactions   who coordinates which transactional id, and what is asked of them
hosted         one coordinator with the partition that it writes to
markers        the markers that end transactions, sent to the leaders of partitions
lanes          the connections that markers come over: none may bring a late copy
"""

from hightide.broker.transactions.transaction_partitions import TransactionPartitions

__all__ = ["TransactionPartitions"]
