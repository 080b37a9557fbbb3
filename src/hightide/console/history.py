"""The last fifteen minutes of every partition, as differences.

    chunk:  frame │ time, which numbers changed, by how much │ time, which …, by how much │ …

A frame becomes a list of numbers.  Texts and lists of brokers, which rarely change, become indexes
into tables of the chunk.  A frame that equals the one before takes no space: a frame holds until
the next one.  A chunk ends when it is full, so that old chunks can be dropped as a whole.  When all
of them together exceed the limit, the oldest are dropped, and the history is shorter.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

from hightide.client.model.cluster import Partition
from hightide.client.xray.frames import Hold, PartitionFrame, ReplicaFrame, TimedFrame

KEPT_MS = 15 * 60 * 1000
MOST_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 4096
CHUNK_MS = 60_000
COARSE_MS = 500
COARSE_FROM_MS = 60_000
"""Longer ranges are read at this resolution, unless all frames are wanted."""

_CHUNK_BYTES, _TRACK_BYTES = 700, 2_600
"""What a chunk and a partition take besides the differences, measured."""
_ROLES = ("none", "waiting", "leader", "follower")
_UNKNOWN = -2
"""Stands for None: offsets and epochs are -1 or more."""
_HEAD, _PER_REPLICA = 6, 7


class _Table:
    """Values of a chunk that are stored as their indexes."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._indexes: dict[Hashable, int] = {}

    def close(self) -> None:
        """No value is added any more."""
        self._indexes.clear()

    def index(self, value: Hashable) -> int:
        found = self._indexes.get(value)
        if found is None:
            found = self._indexes[value] = len(self.values)
            self.values.append(value)
        return found


class Chunk:
    """Frames of one partition, one after the other."""

    def __init__(self, time_ms: int, replica_count: int) -> None:
        self.first_ms = self.last_ms = time_ms
        self.replica_count = replica_count
        self._shapes, self._texts = _Table(), _Table()
        self._is_closed = False
        self._data: bytearray | bytes = bytearray()
        self._numbers = [0] * (_HEAD + _PER_REPLICA * replica_count)
        self._coarse: list[TimedFrame] | None = None

    @property
    def byte_count(self) -> int:
        return len(self._data) + _CHUNK_BYTES

    def close(self) -> None:
        """No frame is added any more: keep what reading needs."""
        self._data = bytes(self._data)
        self._numbers = []
        self._shapes.close()
        self._texts.close()
        self._is_closed = True

    @property
    def is_full(self) -> bool:
        return len(self._data) >= CHUNK_BYTES or self.last_ms - self.first_ms >= CHUNK_MS

    def add(self, time_ms: int, frame: PartitionFrame) -> None:
        numbers = self._numbers_of(frame)
        before, changed, deltas = self._numbers, 0, bytearray()
        for at, number in enumerate(numbers):
            if number != before[at]:
                changed |= 1 << at
                _write(deltas, _zigzag(number - before[at]))
        out = bytearray()
        _write(out, time_ms - self.last_ms)
        _write(out, changed)
        self._data += out + deltas
        self._numbers, self.last_ms = numbers, time_ms

    def coarse(self) -> list[TimedFrame]:
        """The frames thinned to a few a second; those of a full chunk are kept for the next time.

        A page asks for the whole range every few seconds.
        """
        if self._coarse is not None:
            return self._coarse
        found = thinned([*self.frames()], (self.last_ms - self.first_ms) // COARSE_MS)
        if self._is_closed:
            self._coarse = found
        return found

    def frames(self) -> Iterator[TimedFrame]:
        data, at, time_ms = self._data, 0, self.first_ms
        numbers = [0] * (_HEAD + _PER_REPLICA * self.replica_count)
        while at < len(data):
            past_ms, at = _read(data, at)
            changed, at = _read(data, at)
            time_ms += past_ms
            while changed:
                lowest = changed & -changed
                delta, at = _read(data, at)
                numbers[lowest.bit_length() - 1] += (delta >> 1) ^ -(delta & 1)
                changed ^= lowest
            yield TimedFrame(time_ms, self._frame_of(numbers))

    def _numbers_of(self, frame: PartitionFrame) -> list[int]:
        shape = (
            frame.partition,
            tuple(replica.broker for replica in frame.replicas),
            frame.isr,
            frame.elr,
            frame.adding,
            frame.removing,
            frame.min_isr,
            frame.held,
            frame.held_by,
        )
        numbers = [
            self._shapes.index(shape),
            frame.leader,
            frame.leader_epoch,
            frame.partition_epoch,
            _number(frame.high_watermark),
            _number(frame.last_stable_offset),
        ]
        for replica in frame.replicas:
            numbers += (
                _number(replica.start_offset),
                _number(replica.high_watermark),
                _number(replica.end_offset),
                _number(replica.lag),
                _number(replica.lag_ms),
                _ROLES.index(replica.role)
                | replica.in_sync << 2
                | replica.eligible << 3
                | replica.alive << 4
                | replica.silent << 5
                | replica.approximate << 6,
                self._texts.index(replica.why),
            )
        return numbers

    def _frame_of(self, numbers: Sequence[int]) -> PartitionFrame:
        partition, brokers, isr, elr, adding, removing, min_isr, held, held_by = (
            self._shapes.values[numbers[0]]
        )
        replicas = tuple(
            self._replica_of(broker, numbers[at : at + _PER_REPLICA])
            for broker, at in zip(brokers, range(_HEAD, len(numbers), _PER_REPLICA), strict=True)
        )
        return PartitionFrame(
            partition=partition,
            leader=numbers[1],
            leader_epoch=numbers[2],
            partition_epoch=numbers[3],
            isr=isr,
            elr=elr,
            adding=adding,
            removing=removing,
            min_isr=min_isr,
            high_watermark=_known(numbers[4]),
            last_stable_offset=_known(numbers[5]),
            held=Hold(held),
            held_by=held_by,
            replicas=replicas,
        )

    def _replica_of(self, broker: int, numbers: Sequence[int]) -> ReplicaFrame:
        start, mark, end, lag, lag_ms, bits, why = numbers
        return ReplicaFrame(
            broker=broker,
            role=_ROLES[bits & 3],
            in_sync=bool(bits & 4),
            eligible=bool(bits & 8),
            alive=bool(bits & 16),
            silent=bool(bits & 32),
            start_offset=_known(start),
            high_watermark=_known(mark),
            end_offset=_known(end),
            lag=_known(lag),
            lag_ms=_known(lag_ms),
            why=self._texts.values[why],
            approximate=bool(bits & 64),
        )


class _Track:
    """The chunks of one partition, oldest first, and its last frame."""

    def __init__(self) -> None:
        self.chunks: deque[Chunk] = deque()
        self.last: PartitionFrame | None = None


class History:
    """Frames of all partitions, and when the cluster was away."""

    def __init__(self, kept_ms: int = KEPT_MS, most_bytes: int = MOST_BYTES) -> None:
        self.byte_count = 0
        self.away: deque[tuple[int, int]] = deque()
        """From when to when the cluster was not seen, in ms."""
        self._kept_ms, self._most_bytes = kept_ms, most_bytes
        self._tracks: dict[Partition, _Track] = {}
        self._newest_ms = 0

    @property
    def partitions(self) -> list[Partition]:
        return list(self._tracks)

    def add(self, time_ms: int, topic: str, frame: PartitionFrame) -> None:
        """Keep a frame, unless the one before is the same."""
        # The time of day may be set back; the order of frames stays.
        self._newest_ms = time_ms = max(time_ms, self._newest_ms)
        track = self._tracks.setdefault((topic, frame.partition), _Track())
        if frame == track.last:
            return
        chunks, count = track.chunks, len(frame.replicas)
        if not chunks or chunks[-1].is_full or chunks[-1].replica_count != count:
            if chunks:
                chunks[-1].close()
            else:
                self.byte_count += _TRACK_BYTES
            chunks.append(Chunk(time_ms, count))
            self.byte_count += _CHUNK_BYTES
        before = chunks[-1].byte_count
        chunks[-1].add(time_ms, frame)
        self.byte_count += chunks[-1].byte_count - before
        track.last = frame

    def was_away(self, from_ms: int, to_ms: int) -> None:
        """Note that the cluster was not seen; a note that continues the last one extends it."""
        if self.away and self.away[-1][0] == from_ms:
            self.away.pop()
        self.away.append((from_ms, to_ms))

    def trim(self, now_ms: int) -> None:
        """Drop what is too old, and the oldest of all if it is too much."""
        oldest_ms = now_ms - self._kept_ms
        self._drop(oldest_ms)
        while self.byte_count > self._most_bytes and oldest_ms < now_ms:
            oldest_ms += max(1, self._kept_ms // 15)
            self._drop(oldest_ms)
        while self.away and self.away[0][1] < oldest_ms:
            self.away.popleft()

    def _drop(self, oldest_ms: int) -> None:
        for track in self._tracks.values():
            chunks = track.chunks
            # The last frame of a chunk holds until the next chunk begins.
            while len(chunks) > 1 and chunks[1].first_ms <= oldest_ms:
                self.byte_count -= chunks.popleft().byte_count

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Drop partitions that do not exist any more."""
        for key in partitions:
            track = self._tracks.pop(key, None)
            if track is not None:
                self.byte_count -= sum(chunk.byte_count for chunk in track.chunks) + _TRACK_BYTES

    def frames(
        self,
        partition: Partition,
        from_ms: int | None = None,
        to_ms: int | None = None,
        most: int | None = None,
    ) -> list[TimedFrame]:
        """The frames of a range, oldest first: the one that holds at its start, and all after it.

        With `most` they are thinned, by time.  A frame in which more than offsets and lags
        changed always stays.
        """
        track = self._tracks.get(partition)
        if track is None:
            return []
        chunks = list(track.chunks)
        start = 0
        if from_ms is not None:
            starts = [chunk.first_ms for chunk in chunks]
            start = max(0, bisect_right(starts, from_ms) - 1)
        found: list[TimedFrame] = []
        past_ms = (self._newest_ms if to_ms is None else to_ms) - (from_ms or 0)
        is_coarse = most is not None and past_ms >= COARSE_FROM_MS
        for chunk in chunks[start:]:
            if to_ms is not None and chunk.first_ms > to_ms:
                break
            for timed in chunk.coarse() if is_coarse else chunk.frames():
                if to_ms is not None and timed.time_ms > to_ms:
                    break
                if from_ms is not None and timed.time_ms <= from_ms:
                    found.clear()
                found.append(timed)
        return found if most is None else thinned(found, most)


def thinned(frames: Sequence[TimedFrame], most: int) -> list[TimedFrame]:
    """At most `most` frames by time, and all in which more than offsets and lags changed."""
    if len(frames) <= max(most, 2):
        return list(frames)
    first_ms, last_ms = frames[0].time_ms, frames[-1].time_ms
    step_ms = max(1.0, (last_ms - first_ms) / max(1, most - 2))
    kept, before = [frames[0]], frames[0]
    for timed, after in zip(frames[1:], [*frames[2:], None], strict=True):
        is_last_of_step = after is None or _step(after, first_ms, step_ms) != _step(
            timed, first_ms, step_ms
        )
        if is_last_of_step or structure(timed.frame) != structure(before.frame):
            kept.append(timed)
        before = timed
    return kept


def _step(timed: TimedFrame, first_ms: int, step_ms: float) -> int:
    return int((timed.time_ms - first_ms) / step_ms)


def structure(frame: PartitionFrame) -> tuple[Any, ...]:
    """All of a frame but its offsets and lags."""
    return (
        frame.leader,
        frame.leader_epoch,
        frame.isr,
        frame.elr,
        frame.adding,
        frame.removing,
        frame.accepts_all,
        tuple(
            (one.broker, one.role, one.in_sync, one.eligible, one.alive, one.silent)
            for one in frame.replicas
        ),
    )


def _number(value: int | None) -> int:
    return _UNKNOWN if value is None else value


def _known(number: int) -> int | None:
    return None if number == _UNKNOWN else number


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _write(out: bytearray, number: int) -> None:
    """Seven bits a byte, the lowest first."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _read(data: bytearray | bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
