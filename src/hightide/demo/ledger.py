"""What was acknowledged and what was read back, number by number: the proof that nothing is lost.

Orders are numbered, and the pipeline hands each on exactly once, enriched or as a dead letter.  So
a number that was acknowledged and does not come back was lost, and one that comes back twice was
doubled.
"""

from __future__ import annotations

ACKNOWLEDGED = 0x80
MOST = 0x7F


class Ledger:
    """One byte for each order: whether it was acknowledged, and how often it has come back."""

    def __init__(self) -> None:
        self._orders = bytearray()
        self.acknowledged = 0
        self.read_back = 0
        """Different orders that have come back."""
        self.duplicates = 0
        self._unasked = 0

    def acknowledge(self, number: int) -> None:
        self._grow(number)
        if not self._orders[number] & ACKNOWLEDGED:
            self._orders[number] |= ACKNOWLEDGED
            self.acknowledged += 1
            # Its result may have been faster than its acknowledgement.
            self._unasked -= self._orders[number] != ACKNOWLEDGED

    def arrive(self, number: int) -> None:
        self._grow(number)
        times = self._orders[number] & MOST
        if times:
            self.duplicates += 1
        else:
            self.read_back += 1
            self._unasked += not self._orders[number] & ACKNOWLEDGED
        if times < MOST:
            self._orders[number] += 1

    @property
    def outstanding(self) -> int:
        """Acknowledged and not read back: on the way, or lost."""
        return self.acknowledged - (self.read_back - self._unasked)

    @property
    def is_settled(self) -> bool:
        return not self.outstanding and not self.duplicates

    def _grow(self, number: int) -> None:
        if number >= len(self._orders):
            self._orders.extend(bytes(max(1024, number + 1 - len(self._orders))))
