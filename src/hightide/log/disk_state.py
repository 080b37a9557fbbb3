"""Whether the disk of a log directory works: the decisions, without the disk.

    WORKS ──refused──▶ FULL ──probed, with enough space──▶ WORKS
      └────probed, failed────▶ FAILED ──probed, works────▶ WORKS

A full disk refuses the append of one log first, and soon of all. So the state belongs to the disk:
while it is FULL, all logs on it refuse appends and serve reads, and the space that is left is for
checkpoints, indexes and a clean shutdown. The disk leaves FULL when enough space is free and a
probe has been written.

A follower that cannot be written to leaves the ISR at once, because the high watermark waits for
it. A leader waits for `handover_ms`, because space may return, and another leader costs more. A
disk that works only for moments counts as full for the whole time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from hightide.core.events import Event, Severity

FIRST_PROBE_MS = 500
LONGEST_PROBE_MS = 8_000
RELAPSE_MS = 10_000


class DiskStatus(Enum):
    """What can be done with a disk."""

    WORKS = auto()
    FULL = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class DiskChanged(Event):
    """The disk of a log directory is full, has failed, or works again."""

    log_dir: str
    status: DiskStatus
    why: str

    @property
    def level(self) -> Severity:
        return Severity.INFO if self.status is DiskStatus.WORKS else Severity.ERROR

    def __str__(self) -> str:
        if self.status is DiskStatus.WORKS:
            return f"the disk of {self.log_dir} works again"
        word = "is full" if self.status is DiskStatus.FULL else "has failed"
        return f"the disk of {self.log_dir} {word}: {self.why}"


class DiskState:
    """The state of one disk."""

    __slots__ = ("_full_since_ms", "_pause_ms", "_probe_ms", "_worked_since_ms", "status", "why")

    def __init__(self) -> None:
        self.status = DiskStatus.WORKS
        self.why = ""
        self._full_since_ms = 0
        self._worked_since_ms: int | None = None
        self._probe_ms: int | None = None
        self._pause_ms = FIRST_PROBE_MS

    def refused(self, why: str, now_ms: int) -> None:
        """The disk has no space for an append, or for the reserve."""
        if self.status is not DiskStatus.WORKS:
            return
        worked_since_ms = self._worked_since_ms
        if worked_since_ms is None or now_ms - worked_since_ms >= RELAPSE_MS:
            self._full_since_ms = now_ms
        self._enter(DiskStatus.FULL, why, now_ms)

    def suspected(self, now_ms: int) -> None:
        """A file operation failed: look soon whether the whole disk has failed."""
        if self.status is DiskStatus.WORKS:
            self._probe_ms = now_ms

    def is_probe_due(self, now_ms: int) -> bool:
        return self._probe_ms is not None and now_ms >= self._probe_ms

    def probed(self, has_space: bool, now_ms: int) -> None:
        """A file was written, synced and removed. `has_space`: enough is free to accept appends."""
        if self.status is DiskStatus.FULL and not has_space:
            self._probe_ms = now_ms + FIRST_PROBE_MS
            return
        if self.status is not DiskStatus.WORKS:
            self._worked_since_ms = now_ms
        self.status, self.why = DiskStatus.WORKS, ""
        self._probe_ms = None
        self._pause_ms = FIRST_PROBE_MS

    def probe_failed(self, why: str, is_full: bool, now_ms: int) -> None:
        """The probe could not be written."""
        if is_full:
            self.refused(why, now_ms)
            if self.status is DiskStatus.FAILED:
                self._full_since_ms = now_ms
                self._enter(DiskStatus.FULL, why, now_ms)
            self._probe_ms = now_ms + FIRST_PROBE_MS
            return
        self._enter(DiskStatus.FAILED, why, now_ms)
        self._probe_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, LONGEST_PROBE_MS)

    def _enter(self, status: DiskStatus, why: str, now_ms: int) -> None:
        self.status, self.why = status, why
        self._probe_ms = now_ms + FIRST_PROBE_MS

    def leaders_hand_over(self, handover_ms: int, now_ms: int) -> bool:
        """Say whether the disk has been full for so long that others must lead."""
        return self.status is DiskStatus.FULL and now_ms - self._full_since_ms >= handover_ms
