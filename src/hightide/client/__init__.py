"""A small asyncio client of the Kafka protocol, on `hightide.wire` alone.

It serves the command line and the console as an admin client, and brokers among themselves.
It works against any Kafka broker; nothing in it knows how a broker of ours is made.
"""
