"""What a broker knows about the cluster, and the rules for topic names."""
