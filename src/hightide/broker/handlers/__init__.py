"""The request handlers, one file per API family; each file's first line names its API keys.

A handler takes the broker, a decoded request and its context, and returns the response; a slow one
is a coroutine.  Produce, Fetch and OffsetCommit work on the bytes of the request and may respond
later.
"""
