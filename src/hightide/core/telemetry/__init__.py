"""The metrics that clients push (KIP-714), as machines: who pushes what, and the last values."""
