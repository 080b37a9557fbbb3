"""A partition's log on a simulated disk: entries, and how many of them are synced.

The epochs are the real ones (`LeaderEpochs`), kept as the real log keeps them: rebuilt from the
entries after a power cut.  A power cut may lose any unsynced entry, tear the entry that was being
written, and yet keep later entries: the disk writes in any order.  Recovery keeps the entries
before the first torn one (I22).

`entries` is indexed by offset.  Deleted entries are below `start_offset`; a log that restarted at a
higher offset has nothing there.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from hightide.log.leader_epochs import LeaderEpochs


class Entry(NamedTuple):
    """A record: its leader epoch, and its value."""

    epoch: int
    value: str


NOTHING = Entry(-1, "")


class SimLog:
    """A log that survives its process; a power cut may take entries from its end."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.synced = 0
        self.epochs = LeaderEpochs()
        self.start_offset = 0
        self.checkpointed_hw = 0
        self._checkpointed_start = 0
        self._damaged: dict[int, None] = {}

    @property
    def end_offset(self) -> int:
        return len(self.entries)

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last entry, or -1."""
        return self.entries[-1].epoch if self.entries else -1

    def append(self, entry: Entry) -> None:
        assert entry.epoch >= self.last_epoch, "I4 epochs in a log never decrease"
        if entry.epoch != self.epochs.latest:
            self.epochs.assign(entry.epoch, len(self.entries))
        self.entries.append(entry)

    def truncate(self, end_offset: int) -> None:
        assert end_offset >= self.start_offset
        del self.entries[end_offset:]
        self._lower_checkpoint()
        self.synced = min(self.synced, end_offset)
        self.epochs.truncate_from_end(end_offset)

    def restart(self, offset: int) -> None:
        """Empty the log, and continue at `offset`."""
        self.entries = [NOTHING] * offset
        self.synced = self.start_offset = self._checkpointed_start = offset
        self.epochs = LeaderEpochs()

    def delete_before(self, offset: int) -> None:
        self.start_offset = offset
        self.epochs.truncate_from_start(offset)

    def sync(self) -> None:
        self.synced = self.end_offset

    def checkpoint(self, high_watermark: int) -> None:
        self.checkpointed_hw = high_watermark
        self._checkpointed_start = self.start_offset

    def lose_power(self, random: Random) -> int | None:
        """Lose, tear or keep unsynced entries at random; return the torn offset, if any."""
        unsynced = range(self.synced, self.end_offset)
        first = random.choice((*unsynced, self.end_offset))
        for offset in range(first, self.end_offset):
            if offset == first or random.random() < 0.7:
                self._damaged[offset] = None
        return first if first < self.end_offset else None

    def recover(self) -> int:
        """Truncate the log at the first torn entry; return how many entries are lost."""
        before, start_offset = len(self.entries), self.start_offset
        self.start_offset = self._checkpointed_start
        if self._damaged:
            kept = min(self._damaged)
            assert kept >= self.synced, "I22 what was synced is lost"
            del self.entries[kept:]
            self._lower_checkpoint()
        if self._damaged or self.start_offset != start_offset:
            self._damaged.clear()
            self._find_epochs()
        if self.start_offset > len(self.entries):
            self.restart(self.start_offset)
        return max(0, before - len(self.entries))

    def _lower_checkpoint(self) -> None:
        """Lower a checkpointed high watermark to the log end: it must not cover later records."""
        self.checkpointed_hw = min(self.checkpointed_hw, len(self.entries))

    def _find_epochs(self) -> None:
        self.epochs = LeaderEpochs()
        for offset in range(self.start_offset, len(self.entries)):
            epoch = self.entries[offset].epoch
            if epoch != self.epochs.latest:
                self.epochs.assign(epoch, offset)
