"""Damaged files: flipped bits, zeros, lost and cut segments, of running and of stopped brokers.

A broker must find the damage and copy from a good replica, without any command.  Two of three
replicas stay whole.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.chaos.faults import SHORT, Chaos, Happening, fault

PAGE = 4096
FLIPS = 3
"""Bits that are flipped in one cycle, each in another partition."""


def _segments(chaos: Chaos, broker_id: int, *, sealed: bool = True) -> list[Path]:
    """Return segments of the topic with records; the newest one of each partition is not sealed."""
    found = []
    for index in range(chaos.partitions):
        files = sorted(chaos.room.folder(broker_id, chaos.topic, index).glob("*.log"))
        found += [file for file in (files[:-1] if sealed else files) if file.stat().st_size > 200]
    assert found, f"broker {broker_id} has no segments to damage yet"
    return found


def _flip(chaos: Chaos, file: Path) -> str:
    with file.open("r+b") as damaged:
        size = damaged.seek(0, os.SEEK_END)
        at = chaos.dice.randrange(size)
        byte = os.pread(damaged.fileno(), 1, at)[0]
        bit = chaos.dice.randrange(8)
        os.pwrite(damaged.fileno(), bytes([byte ^ (1 << bit)]), at)
        os.fsync(damaged.fileno())
    chaos.damages += 1
    return f"bit {bit} of byte {at:,} of {file.parent.name}/{file.name}"


def _flip_some(chaos: Chaos, files: list[Path]) -> str:
    by_partition = {file.parent: file for file in chaos.dice.sample(files, len(files))}
    chosen = list(by_partition.values())[:FLIPS]
    return ", ".join(_flip(chaos, file) for file in chosen)


@fault("damage", loses=True, hold_s=SHORT)
def flip_bits_of_a_running_broker(chaos: Chaos) -> Happening:
    broker_id, role = chaos.victim()
    said = _flip_some(chaos, _segments(chaos, broker_id))
    yield f"flipped at broker {broker_id} ({role}): {said}"


@fault("damage", loses=True, hold_s=SHORT)
def flip_bits_of_a_stopped_broker(chaos: Chaos) -> Happening:
    """After a clean stop, the newest segment is not read at the start either."""
    broker_id, role = chaos.victim()
    chaos.room.terminate(broker_id)
    said = _flip_some(chaos, _segments(chaos, broker_id, sealed=False))
    yield f"flipped at broker {broker_id} ({role}), which was stopped: {said}"
    chaos.room.start_missing()


@fault("damage", loses=True, hold_s=SHORT)
def flip_bits_of_a_killed_broker(chaos: Chaos) -> Happening:
    broker_id, role = chaos.victim()
    chaos.room.kill(broker_id)
    said = _flip_some(chaos, _segments(chaos, broker_id, sealed=False))
    yield f"flipped at broker {broker_id} ({role}), which was killed: {said}"
    chaos.room.start_missing()


@fault("damage", loses=True, hold_s=SHORT)
def zero_a_page(chaos: Chaos) -> Happening:
    broker_id, role = chaos.victim()
    file = chaos.dice.choice(_segments(chaos, broker_id))
    page = chaos.dice.randrange(max(1, file.stat().st_size // PAGE))
    with file.open("r+b") as damaged:
        os.pwrite(damaged.fileno(), bytes(PAGE), page * PAGE)
        os.fsync(damaged.fileno())
    chaos.damages += 1
    yield f"zeros in page {page} of {file.parent.name}/{file.name} of broker {broker_id} ({role})"


@fault("files", loses=True, hold_s=SHORT)
def lose_a_segment_of_a_stopped_broker(chaos: Chaos) -> Happening:
    broker_id, role = chaos.victim()
    chaos.room.terminate(broker_id)
    file = chaos.dice.choice(_segments(chaos, broker_id))
    file.unlink()
    chaos.damages += 1
    yield f"removed {file.parent.name}/{file.name} of broker {broker_id} ({role})"
    chaos.room.start_missing()


@fault("files", loses=True, hold_s=SHORT)
def cut_a_segment_of_a_stopped_broker(chaos: Chaos) -> Happening:
    broker_id, role = chaos.victim()
    chaos.room.terminate(broker_id)
    file = chaos.dice.choice(_segments(chaos, broker_id))
    os.truncate(file, file.stat().st_size // 2)
    chaos.damages += 1
    yield f"cut {file.parent.name}/{file.name} of broker {broker_id} ({role}) to half"
    chaos.room.start_missing()


@fault("files", loses=True, hold_s=SHORT)
def cut_a_segment_of_a_running_broker(chaos: Chaos) -> Happening:
    broker_id, role = chaos.victim()
    file = chaos.dice.choice(_segments(chaos, broker_id))
    os.truncate(file, file.stat().st_size // 2)
    chaos.damages += 1
    yield f"cut {file.parent.name}/{file.name} of broker {broker_id} ({role}) to half, running"
