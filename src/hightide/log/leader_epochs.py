"""Which leader epoch began at which offset, and Kafka's leader-epoch-checkpoint file for it.

Each entry is an epoch and the offset of the first record written in it; both rise from entry to
entry. A replica that comes back asks by epoch where its log parts from the leader's, which is what
makes truncation safe. The file is written before the records it speaks of count as recovered, so
it never lacks an entry below the recovery point; above that the entries come from the batches.
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
        # Counts the changes. The file may be written from several threads; the newest wins.
        self.version = 0
        self._saved = 0
        self._lock = Lock()

    @property
    def dirty(self) -> bool:
        """Whether the file does not say yet what is known here."""
        return self._saved < self.version

    @property
    def latest(self) -> int:
        """The newest epoch; -1 when there is none."""
        return self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`. Entries that contradict it are dropped:
        an epoch that wrote nothing, or one whose records have been truncated."""
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
        """The largest known epoch not above `epoch`, and the offset where it ends.

        (-1, -1) when that cannot be said, as OffsetForLeaderEpoch answers it.
        """
        if epoch == UNDEFINED_EPOCH or not self._epochs or epoch > self._epochs[-1]:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        i = bisect_right(self._epochs, epoch)
        # Before the first entry the records are gone, and so is everything that could differ.
        return (self._epochs[i - 1] if i else epoch), self._starts[i]

    def epoch_for(self, offset: int) -> int:
        """The epoch a record at `offset` was written in; -1 when unknown."""
        i = bisect_right(self._starts, offset)
        return self._epochs[i - 1] if i else UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that begin at or behind `end_offset`."""
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
            self.version += 1

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget the epochs that end before `start_offset`; the one that holds it begins there."""
        i = bisect_right(self._starts, start_offset)
        if i and (i > 1 or self._starts[0] != start_offset):
            del self._epochs[: i - 1], self._starts[: i - 1]
            self._starts[0] = start_offset
            self.version += 1

    def encode(self) -> bytes:
        return encode_lines(f"{epoch} {start}" for epoch, start in self.entries)

    def save(self, disk: Disk, directory: str, version: int, data: bytes) -> None:
        """Write what `encode` gave at `version`, unless something newer is written already."""
        with self._lock:
            if version > self._saved:
                disk.replace(f"{directory}/{EPOCH_CHECKPOINT}", data)
                self._saved = version

    @classmethod
    def load(cls, disk: Disk, directory: str) -> LeaderEpochs:
        """Read the checkpoint. A damaged one gives what its readable beginning says: the rest is
        found again in the batches."""
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
