"""The start offset of each leader epoch in a log, and Kafka's leader-epoch-checkpoint file.

Each entry is an epoch and the offset of the first record written in it; both rise from entry to
entry. A follower asks by epoch where its log diverges from the leader's log, which makes truncation
safe (KIP-101). The file is written before the recovery point moves, so it has all entries before
the recovery point. Recovery finds later entries in the batches.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from threading import Lock

from hightide.log.checkpoint import decode_lines, encode_lines
from hightide.log.disk import Disk

EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1

_log = logging.getLogger(__name__)


class LeaderEpochs:
    """The leader epochs of one log."""

    __slots__ = ("_epochs", "_lock", "_saved", "_starts", "version")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        # Counts changes. Several threads may write the file; the newest version wins.
        self.version = 0
        self._saved = 0
        self._lock = Lock()

    @property
    def dirty(self) -> bool:
        """Whether the file lacks the newest changes."""
        return self._saved < self.version

    @property
    def latest(self) -> int:
        """The newest epoch; -1 if there is none."""
        return self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Add an epoch that begins at `start_offset`. Drop entries that contradict it: epochs
        without records, or epochs whose records have been truncated."""
        epochs, starts = self._epochs, self._starts
        if epochs and epochs[-1] == epoch and starts[-1] <= start_offset:
            return
        while epochs and (epochs[-1] >= epoch or starts[-1] >= start_offset):
            epochs.pop()
            starts.pop()
        epochs.append(epoch)
        starts.append(start_offset)
        self.version += 1

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest known epoch that is not above `epoch`, and its end offset.

        Return (-1, -1) if it is unknown, as in an OffsetForLeaderEpoch response.
        """
        if epoch == UNDEFINED_EPOCH or not self._epochs or epoch > self._epochs[-1]:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        i = bisect_right(self._epochs, epoch)
        # The records before the first entry are deleted, so nothing before it can diverge.
        return (self._epochs[i - 1] if i else epoch), self._starts[i]

    def epoch_for(self, offset: int) -> int:
        """Return the epoch in which the record at `offset` was written; -1 if unknown."""
        i = bisect_right(self._starts, offset)
        return self._epochs[i - 1] if i else UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop the epochs that begin at `end_offset` or later."""
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
            self.version += 1

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop the epochs that end before `start_offset`; the epoch that holds it begins there."""
        i = bisect_right(self._starts, start_offset)
        if i and (i > 1 or self._starts[0] != start_offset):
            del self._epochs[: i - 1], self._starts[: i - 1]
            self._starts[0] = start_offset
            self.version += 1

    def replace(self, entries: list[tuple[int, int]]) -> None:
        """Take these entries, which were found in the batches, instead of those of the file."""
        self._epochs = [epoch for epoch, _ in entries]
        self._starts = [start for _, start in entries]
        self.version += 1

    def encode(self) -> bytes:
        return encode_lines(f"{epoch} {start}" for epoch, start in self.entries)

    def save(self, disk: Disk, directory: str, version: int, data: bytes) -> None:
        """Write the encoded entries of `version`, unless a newer version has been written."""
        with self._lock:
            if version > self._saved:
                disk.replace(f"{directory}/{EPOCH_CHECKPOINT}", data)
                self._saved = version

    @classmethod
    def load(cls, disk: Disk, directory: str) -> LeaderEpochs:
        """Read the checkpoint file. If it is missing or damaged, begin without entries: recovery
        finds them in the batches."""
        epochs = cls()
        path = f"{directory}/{EPOCH_CHECKPOINT}"
        if not disk.exists(path):
            return epochs
        try:
            entries = [(int(e), int(s)) for e, s in decode_lines(disk.read_file(path))]
            if entries != sorted(set(entries)) or any(e < 0 or s < 0 for e, s in entries):
                raise ValueError("its entries do not rise")
        except ValueError as error:
            _log.warning("ignoring the damaged checkpoint %s/%s: %s", disk.name, path, error)
            epochs.version = 1
            return epochs
        for epoch, start in entries:
            epochs.assign(epoch, start)
        epochs._saved = epochs.version
        return epochs
