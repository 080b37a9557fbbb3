"""The measuring side of the benchmarks: brokers, generators, workloads, report.

Nothing here imports Hightide. A broker is a command line and a port, so that any broker that
speaks Kafka's protocol is measured by exactly the same code.
"""
