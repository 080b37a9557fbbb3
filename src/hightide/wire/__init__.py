"""Bytes and typed messages: Kafka's wire protocol with no input or output of its own.

Nothing here opens a socket or a file, keeps a connection or knows what a broker does.
Everything above may import it; it imports nothing of the project but itself.
"""
