"""The slower simulator: the shipped broker, on virtual time.

Only the environment of the broker is replaced: the event loop (`loop`), the network (`network`),
the disk (`disk`) and ZooKeeper (`zookeeper`).
"""
