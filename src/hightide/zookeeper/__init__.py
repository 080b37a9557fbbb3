"""Coordination: the znode tree, the interface brokers use to reach one, and Kafka's layout in it.

Nothing here knows Kafka's wire protocol or the log. `tree` is pure; `server` serves it with
ZooKeeper's protocol; `client` reaches that, or an ensemble; `memory` is the tree in this process,
for simulations and tests; `interface` is what the rest of the program codes against.
"""

DATABASE = "coordination.db"
"""The file, in its own directory or among a broker's logs, that holds a coordinator's tree."""
