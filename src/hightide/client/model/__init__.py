"""What an admin client learns about a cluster, as plain values.

    cluster       brokers, topics, partitions, configs, offsets
    groups        groups, members, commits, lag
    replicas      leaders, replicas, reassignments: one view made of every broker's report
    transactions  transactional ids, and the producers that a partition remembers
    health        what is wrong with a cluster, in sentences

The values hide which request and version an answer came from; callers see Kafka's nouns only.
"""
