"""Kafka's wire protocol: bytes to typed messages and back, without any input or output.

Nothing here opens a socket or a file, keeps a connection or knows what a broker does. Every other
package may import this one; it imports none of them.
"""
