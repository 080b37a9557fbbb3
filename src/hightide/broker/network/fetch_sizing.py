"""The size of a Fetch response to a consumer, chosen by how soon the consumer comes back.

A consumer decodes a response when it has all of it, and only then sends the next request.  Broker
and network are idle meanwhile, and the larger the response, the more memory is touched that is not
in a CPU cache any more.  In favour of large responses is the round trip of each request, which
should take little time compared with the transfer.

So a consumer that soon comes back gets a few partitions in each response, and the others in the
next ones.  A consumer that takes longer, because it is far away or busy, gets twice as much each
time, up to all that it asks for.
"""

from __future__ import annotations

LEAST_BYTES = 768 * 1024
PARTITION_BYTES = 32 * 1024
UNLIMITED = 1 << 40
# A consumer is soon back if it takes no more than this round trip, and decodes at this rate.
_ROUND_TRIP_S = 0.003
_BYTES_PER_S = 200_000_000


class FetchSizing:
    """How many bytes are enough for one connection.

    A response may be larger by one partition: a partition that is in it is not cut short.
    """

    __slots__ = ("_given_at_s", "_given_bytes", "enough_bytes")

    def __init__(self) -> None:
        self.enough_bytes = LEAST_BYTES
        self._given_bytes = 0
        self._given_at_s = 0.0

    def gave(self, byte_count: int, now_s: float) -> None:
        """A response was sent that was full, or would be for a consumer that is soon back."""
        self._given_bytes = byte_count
        self._given_at_s = now_s

    def asked(self, now_s: float) -> None:
        """The consumer has sent its next request."""
        if not self._given_bytes:
            return
        took_s = now_s - self._given_at_s
        due_s = _ROUND_TRIP_S + self._given_bytes / _BYTES_PER_S
        self._given_bytes = 0
        if took_s > due_s:
            self.enough_bytes = min(2 * self.enough_bytes, UNLIMITED)
        elif took_s * 2 < due_s:
            self.enough_bytes = max(self.enough_bytes // 2, LEAST_BYTES)
