"""Hand-tuned codecs for Produce and Fetch, the messages of the hot path.

Both have declarations in `wire.messages` like every other message, which define them. The functions
here do the same in straight-line code, several times faster, without an object for each field.
Tests compare the two, version by version.
"""
