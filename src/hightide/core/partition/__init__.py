"""One partition: its state, its leader, its followers, its producers and its fetch sessions."""
