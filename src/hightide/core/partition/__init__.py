"""One partition: its state, leader, followers, high watermark, ISR, producers, fetch sessions."""
