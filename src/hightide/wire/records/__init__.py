"""Records of the internal topics, in Kafka's formats, so that its tools can read them."""
