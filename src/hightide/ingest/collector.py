"""The loops of `ingest files` and `ingest stdin`."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hightide.ingest.file_follower import FileFollower, OpenFile
from hightide.ingest.file_identity import Identity
from hightide.ingest.lines import Line, Splitter
from hightide.ingest.positions import StateFile, to_json
from hightide.ingest.records import Record, RecordFormat, key_of
from hightide.ingest.sender import Sender, Stopped

SCAN_S = 1.0
PAUSE_S = 0.1
ROUND_BYTES = 4 << 20
STDIN_BYTES = 1 << 18


@dataclass(slots=True)
class Collector:
    """Follows files, and sends their new lines in rounds.

    A round is what there is to read, up to some megabytes. It waits for nothing, so a line is sent
    at once, and under load rounds are large.
    """

    follower: FileFollower
    sender: Sender
    shape: RecordFormat
    # None if the sender stores positions with the records.
    state: StateFile | None
    # Positions of deleted files; the sender deletes them if it stores positions in a topic.
    forgotten: list[Identity] = field(default_factory=list)
    is_stopping: Callable[[], bool] = lambda: False
    sent: int = 0
    _scanned_s: float = field(default=-SCAN_S)

    def run(self, *, once: bool = False) -> int:
        """Collect until it is time to stop; with `once`, until the existing data is read."""
        try:
            while not self.is_stopping():
                found = self._round()
                if once and not found:
                    self._send(list(self.follower.finish()))
                    break
                if not found:
                    time.sleep(PAUSE_S)
        except Stopped:
            pass  # Undelivered lines are read again at the next start.
        finally:
            self.follower.close()
            if self.state is not None:
                self.state.close()
        return self.sent

    def _round(self) -> int:
        now_s = time.monotonic()
        if now_s - self._scanned_s >= SCAN_S:
            self.follower.scan(now_s)
            self._scanned_s = now_s
        found = list(self.follower.lines(now_s, ROUND_BYTES))
        self._send(found)
        return len(found)

    def _send(self, found: list[tuple[OpenFile, Line]]) -> None:
        if not found:
            return
        now_s = time.time()
        records = [self.shape.record(it.path, line, now_s) for it, line in found]
        read = {id(it): it for it, _ in found}
        places = self.follower.places(read.values())
        positions: dict[str, bytes | None] = {str(key): None for key in self.forgotten}
        positions |= {str(key): to_json(it) for key, it in places.items()}
        self.sender.send(records, positions)
        self.forgotten.clear()
        self.follower.known.update(places)
        if self.state is not None:
            self.state.save(self.follower.known)
        self.sent += len(found)


def collect_stdin(
    sender: Sender, key: str, line_bytes: int, is_stopping: Callable[[], bool]
) -> int:
    """Send the lines of stdin until its end, and return how many; librdkafka sends meanwhile."""
    splitter = Splitter(line_bytes=line_bytes)
    sent = 0
    data = b"-"
    while data and not is_stopping():
        if not select.select([0], [], [], PAUSE_S)[0]:
            continue
        data = os.read(0, STDIN_BYTES)
        lines = splitter.feed(data) if data else splitter.finish()
        sender.queue(Record(line.text, key_of(key, line.text)) for line in lines)
        sent += len(lines)
    sender.flush()
    return sent
