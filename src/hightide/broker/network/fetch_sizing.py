"""How much is enough for one answer to a consumer's Fetch, by how soon the consumer comes back.

A consumer takes an answer apart when it has all of it, and asks for the next one then.  Broker and
line rest meanwhile, and the larger the answer, the more memory is touched that is in no cache any
more.  What speaks for large answers is the way that each question has to go: it should take little
time beside what comes back.

So a consumer that is soon back gets a few partitions in each answer, and the others in the next
ones.  One that is not, because it is far away or busy, gets twice as much each time, up to all that
it asks for.
"""

from __future__ import annotations

LEAST_BYTES = 768 * 1024
PARTITION_BYTES = 32 * 1024
UNLIMITED = 1 << 40
# Soon is a consumer that takes this time for the way, and takes answers apart at this rate.
_WAY_S = 0.003
_BYTES_PER_S = 200_000_000


class FetchSizing:
    """What is known of one connection.

    An answer may be larger than enough by one partition, and no partition gets less than it would
    else.
    """

    __slots__ = ("_given_at_s", "_given_bytes", "enough_bytes")

    def __init__(self) -> None:
        self.enough_bytes = LEAST_BYTES
        self._given_bytes = 0
        self._given_at_s = 0.0

    def gave(self, byte_count: int, now_s: float) -> None:
        """An answer was given that was full, or would be for a consumer that is soon back."""
        self._given_bytes = byte_count
        self._given_at_s = now_s

    def asked(self, now_s: float) -> None:
        """The consumer has come for more."""
        if not self._given_bytes:
            return
        took_s = now_s - self._given_at_s
        due_s = _WAY_S + self._given_bytes / _BYTES_PER_S
        self._given_bytes = 0
        if took_s > due_s:
            self.enough_bytes = min(2 * self.enough_bytes, UNLIMITED)
        elif took_s * 2 < due_s:
            self.enough_bytes = max(self.enough_bytes // 2, LEAST_BYTES)
