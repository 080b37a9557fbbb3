"""The transaction coordinators of a broker: the shell around `core.transactions`.

transaction_partitions   the partitions of `__transaction_state` that this broker leads
transaction_partition    the coordinator of one partition: loading, requests, writes, time
marker_delivery          transaction markers, delivered to the leaders of partitions
marker_sender            the connection over which markers go to one broker
marker_fencing           the receiver's side: refuses late copies of markers
partition_verifier       asks the coordinator before a leader appends to a transaction
"""

from hightide.broker.transactions.transaction_partitions import TransactionPartitions

__all__ = ["TransactionPartitions"]
