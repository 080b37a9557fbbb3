"""Hand-tuned codecs for the messages that make up a broker's day.

Produce and Fetch have declarations in `wire.messages` like every other message, and those are what
they mean.  The functions here do the same work in straight-line code, several times faster, without
making an object per field.  Tests hold the two equal, version by version.
"""
