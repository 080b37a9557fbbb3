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
_WAY_MS = 3
_BYTES_PER_MS = 200_000


class Pace:
    """What is known of one connection.

    An answer may be larger than enough by one partition, and no partition gets less than it would
    else.
    """

    __slots__ = ("_given_at_ms", "_given_bytes", "enough_bytes")

    def __init__(self) -> None:
        self.enough_bytes = LEAST_BYTES
        self._given_bytes = 0
        self._given_at_ms = 0

    def gave(self, byte_count: int, now_ms: int) -> None:
        """An answer was given, and more could have been."""
        self._given_bytes = byte_count
        self._given_at_ms = now_ms

    def asked(self, now_ms: int) -> None:
        """The consumer has come for more."""
        if not self._given_bytes:
            return
        took_ms = now_ms - self._given_at_ms
        due_ms = _WAY_MS + self._given_bytes // _BYTES_PER_MS
        self._given_bytes = 0
        if took_ms > due_ms:
            self.enough_bytes = min(2 * self.enough_bytes, UNLIMITED)
        elif took_ms * 2 < due_ms:
            self.enough_bytes = max(self.enough_bytes // 2, LEAST_BYTES)
