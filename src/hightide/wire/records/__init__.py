"""Records of the internal topics, in Kafka's own layouts, so that its tools can read them."""
