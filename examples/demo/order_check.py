"""Which orders were acknowledged and which were read back: the proof that no order is lost.

Orders are numbered, and the pipeline writes each exactly once, enriched or as a dead letter. So a
number that was acknowledged and never comes back is lost, and one that comes back twice is a
duplicate.
"""

from __future__ import annotations

ACKNOWLEDGED = 0x80
MAX_COUNT = 0x7F


class OrderCheck:
    """One byte per order: whether it was acknowledged, and how often it was read back."""

    def __init__(self) -> None:
        self._orders = bytearray()
        self.acknowledged = 0
        self.read_back = 0
        """Distinct orders that were read back."""
        self.duplicates = 0
        self._unacknowledged = 0
        """Orders that were read back and are not acknowledged yet."""

    def add_acknowledged(self, number: int) -> None:
        self._grow(number)
        if not self._orders[number] & ACKNOWLEDGED:
            self._orders[number] |= ACKNOWLEDGED
            self.acknowledged += 1
            # An order can be read back before its acknowledgement arrives.
            self._unacknowledged -= self._orders[number] != ACKNOWLEDGED

    def add_read_back(self, number: int) -> None:
        self._grow(number)
        times = self._orders[number] & MAX_COUNT
        if times:
            self.duplicates += 1
        else:
            self.read_back += 1
            self._unacknowledged += not self._orders[number] & ACKNOWLEDGED
        if times < MAX_COUNT:
            self._orders[number] += 1

    @property
    def outstanding(self) -> int:
        """Orders that were acknowledged and not read back: in flight, or lost."""
        return self.acknowledged - (self.read_back - self._unacknowledged)

    @property
    def is_complete(self) -> bool:
        """Whether every acknowledged order was read back exactly once."""
        return not self.outstanding and not self.duplicates

    def _grow(self, number: int) -> None:
        if number >= len(self._orders):
            self._orders.extend(bytes(max(1024, number + 1 - len(self._orders))))
