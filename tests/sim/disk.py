"""A partition's log on a simulated disk: entries, and how many of them a power cut cannot take.

The epochs are the real ones (`LeaderEpochs`), kept as the real log keeps them: made again from the
entries after a crash.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from hightide.log.epochs import LeaderEpochs


class Entry(NamedTuple):
    """A record: the leader epoch it was written in, and what it says."""

    epoch: int
    value: str


class SimLog:
    """What survives; a process that dies leaves it, a power cut takes of its end."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.synced = 0
        self.epochs = LeaderEpochs()
        self.checkpointed_hw = 0
        self.start_offset = 0

    @property
    def end_offset(self) -> int:
        return len(self.entries)

    def append(self, entry: Entry) -> None:
        assert entry.epoch >= self.last_epoch, "epochs in a log never decrease"
        if entry.epoch != self.epochs.latest:
            self.epochs.assign(entry.epoch, self.end_offset)
        self.entries.append(entry)

    @property
    def last_epoch(self) -> int:
        """Of the last entry, or -1."""
        return self.entries[-1].epoch if self.entries else -1

    def truncate(self, end_offset: int) -> None:
        del self.entries[end_offset:]
        self.synced = min(self.synced, end_offset)
        self.epochs.truncate_from_end(end_offset)

    def sync(self) -> None:
        self.synced = self.end_offset

    def lose_power(self, random: Random) -> int:
        """How many entries are lost."""
        kept = random.randint(self.synced, self.end_offset)
        lost = self.end_offset - kept
        del self.entries[kept:]
        self._recover()
        return lost

    def wipe(self) -> None:
        self.entries.clear()
        self.checkpointed_hw = 0
        self._recover()

    def _recover(self) -> None:
        self.synced = min(self.synced, self.end_offset)
        self.epochs = LeaderEpochs()
        for offset, entry in enumerate(self.entries):
            if entry.epoch != self.epochs.latest:
                self.epochs.assign(entry.epoch, offset)
