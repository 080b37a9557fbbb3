"""Coordination: the znode tree, the interface brokers use to reach one, and Kafka's layout in it.

Nothing here knows Kafka's wire protocol or the log. `tree` is pure; `memory` is the tree in this
process, durable when given a file; `interface` is what the rest of the program codes against.
"""
