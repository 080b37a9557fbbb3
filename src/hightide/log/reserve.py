"""Space that is kept for the time when a disk is full.

A log directory has a file that only takes space. When the disk is full, the file is removed, and
all logs of the directory refuse appends until there is space for the file again. So checkpoints,
indexes, recovery and a clean shutdown have the space that they need.
"""

from __future__ import annotations

import logging

from hightide.log.disk import Disk, DiskFailed

RESERVE = ".reserve"

_log = logging.getLogger(__name__)


class Reserve:
    """The reserve of one log directory."""

    def __init__(self, disk: Disk, size: int) -> None:
        self._disk = disk
        self.size = size

    @property
    def is_there(self) -> bool:
        return not self.size or self._disk.exists(RESERVE)

    def release(self) -> bool:
        """Free the reserved space; return whether there was any."""
        if not self._disk.exists(RESERVE):
            return False
        self._disk.remove(RESERVE)
        return True

    def release_if_short(self) -> None:
        """Free the reserved space at a start, if little other space is free."""
        _, free = self._disk.space()
        try:
            if 0 <= free < self.size and self.release():
                _log.warning(
                    "%s is full: %d bytes were free, and %d reserved bytes are used to start",
                    self._disk.name,
                    free,
                    self.size,
                )
        except DiskFailed as failure:
            _log.error("%s", failure)

    def restore(self) -> None:
        """Reserve the space again. Raise DiskFailed if there is too little."""
        if not self.is_there:
            self._disk.allocate(RESERVE, self.size)

    def has_room(self) -> bool:
        """Say whether there is space for the reserve, and as much for appends."""
        _, free = self._disk.space()
        needed = self.size if self.is_there else 2 * self.size
        return free < 0 or free >= needed
