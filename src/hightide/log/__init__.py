"""Records kept on disk, in Kafka's own layout.

`disk` is the seam to the machine; `index`, `segment` and `log` are one partition; `recovery` and
`cleaner` repair and compact it; `store` holds all partitions of a broker. Nothing here knows of
sockets or of other brokers, and nothing reads a clock: the time comes in as `now_ms`.
"""
