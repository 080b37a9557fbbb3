"""What a broker knows of the cluster: the metadata image, and the rules for topic names."""
