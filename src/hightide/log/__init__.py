"""Partition logs on disk, in Kafka's layout.

`log` is one partition, made of `segments`; `log_manager` holds all partitions of a broker.
`recovery` loads a log, `housekeeping` and `cleaner` maintain it, and `disk` is the interface to the
operating system. Nothing here knows of sockets or other brokers, and nothing reads a clock: the
time is a parameter, `now_ms`.
"""
