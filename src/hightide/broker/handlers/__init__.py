"""What the broker answers, one file per subject.

A handler takes the broker, a typed request and its context, and returns the response; a slow one is
a coroutine.  Produce and Fetch are different: they work on the bytes of the request and may answer
later.
"""
