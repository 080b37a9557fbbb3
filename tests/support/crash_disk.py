"""A simulated disk that loses power, for tests.

It counts every step that changes something. `cut_at(n)` lets the power fail in step n: a write may
be partial, and every later operation fails. `after_crash` returns the disk as the next process
finds it. Synced bytes are there. Each file has all of its unsynced bytes, or none, or the first
few, or some with a gap of zeros or garbage between them. Of the changes to names in a directory
since its last sync, the first few have happened, some renames and removals among them perhaps not.
(Files are created in order: all file systems in use for logs do that.)

With `kill=True` only the process died: all of its writes are there.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from hightide.log.disk import Buffer, DiskFailed, replace

Change = Callable[[dict[str, Any]], object]


class PowerCut(Exception):
    """The power has failed."""


class CrashFile:
    def __init__(self, disk: CrashDisk, path: str) -> None:
        self.disk = disk
        self.path = path
        self.data = bytearray()
        self.size = 0
        self.durable = b""
        self.untouched = 0

    def append(self, data: Buffer) -> None:
        if self.disk.is_next_cut():
            self.data += bytes(data)[: self.disk.random.randint(0, len(data))]
        self.disk.step()
        self.data += data
        self.size = len(self.data)

    def read(self, position: int, length: int) -> bytes:
        self.disk.look()
        return bytes(self.data[position : position + length])

    def read_now_into(self, buffer: memoryview, position: int) -> int | None:
        return self.read_into(buffer, position)

    def read_into(self, buffer: memoryview, position: int) -> int:
        part = self.read(position, len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def sync(self) -> None:
        self.disk.step()
        self.durable = bytes(self.data)
        self.untouched = len(self.durable)

    def truncate(self, size: int) -> None:
        self.disk.step()
        del self.data[size:]
        self.size = len(self.data)
        self.untouched = min(self.untouched, self.size)

    def crash(self, random: Random) -> None:
        kept, new = self.untouched, bytearray(self.data)
        fate = random.choice(("all", "none", "first", "hole", "rubbish"))
        if fate == "none":
            new = bytearray(self.durable)
        elif fate == "first":
            del new[random.randint(kept, len(new)) :]
        elif fate in ("hole", "rubbish") and len(new) > kept:
            start = random.randint(kept, len(new) - 1)
            end = random.randint(start + 1, len(new))
            hole = bytes(end - start) if fate == "hole" else random.randbytes(end - start)
            new[start:end] = hole
        self.data = new


class Directory:
    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.durable: dict[str, Any] = {}
        self.pending: list[tuple[bool, Change]] = []

    def change(self, change: Change, creates: bool = False) -> None:
        change(self.names)
        self.pending.append((creates, change))

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.pending.clear()

    def crash(self, random: Random) -> None:
        self.names = dict(self.durable)
        loses_some = random.random() < 0.5
        for creates, change in self.pending[: random.randint(0, len(self.pending))]:
            if creates or not loses_some or random.random() < 0.7:
                change(self.names)


class CrashDisk:
    """A log directory with two levels, which is enough for logs."""

    def __init__(self, seed: int = 0) -> None:
        self.name = "crash"
        self.random = Random(seed)
        self.root = Directory()
        self.steps = 0
        self.cut = -1
        self.is_off = False

    # ---- the power

    def cut_at(self, step: int) -> None:
        self.cut = step

    def is_next_cut(self) -> bool:
        return self.steps + 1 == self.cut and not self.is_off

    def look(self) -> None:
        if self.is_off:
            raise PowerCut

    def step(self) -> None:
        self.look()
        self.steps += 1
        if self.steps == self.cut:
            self.is_off = True
            raise PowerCut

    def after_crash(self, kill: bool = False) -> CrashDisk:
        disk = CrashDisk()
        disk.random = self.random
        if not kill:
            self.root.crash(self.random)
        disk.root.names = self._settled(disk, self.root.names, "", kill)
        disk.root.sync()
        return disk

    def _settled(
        self, disk: CrashDisk, names: dict[str, Any], prefix: str, kill: bool
    ) -> dict[str, Any]:
        settled: dict[str, Any] = {}
        for name, node in names.items():
            if isinstance(node, Directory):
                if not kill:
                    node.crash(self.random)
                directory = Directory()
                directory.names = self._settled(disk, node.names, f"{prefix}{name}/", kill)
                directory.sync()
                settled[name] = directory
            else:
                if not kill:
                    node.crash(self.random)
                file = CrashFile(disk, prefix + name)
                file.data = bytearray(node.data)
                file.size = len(file.data)
                file.durable = bytes(file.data)
                file.untouched = file.size
                settled[name] = file
        return settled

    # ---- the disk

    def _at(self, path: str) -> tuple[Directory, str]:
        self.look()
        directory, _, name = path.rpartition("/")
        if not directory:
            return self.root, name
        node = self.root.names.get(directory)
        if not isinstance(node, Directory):
            raise DiskFailed(path, "finding", "no such directory")
        return node, name

    def open(self, path: str) -> CrashFile:
        directory, name = self._at(path)
        node = directory.names.get(name)
        if not isinstance(node, CrashFile):
            raise DiskFailed(path, "opening", "no such file")
        return node

    def create(self, path: str) -> CrashFile:
        directory, name = self._at(path)
        self.step()
        file = CrashFile(self, path)
        directory.change(lambda names: names.__setitem__(name, file), creates=True)
        return file

    def allocate(self, path: str, size: int) -> None:
        self.create(path)

    def list(self, path: str) -> dict[str, int]:
        directory = self._at(f"{path}/x" if path else "x")[0]
        return {
            name: -1 if isinstance(node, Directory) else node.size
            for name, node in directory.names.items()
        }

    def exists(self, path: str) -> bool:
        directory, name = self._at(path)
        return name in directory.names

    def modified_ms(self, path: str) -> int:
        self.open(path)
        return 0

    def read_file(self, path: str) -> bytes:
        return bytes(self.open(path).data)

    def replace(self, path: str, data: bytes) -> None:
        replace(self, path, data)

    def rename(self, old: str, new: str) -> None:
        directory, old_name = self._at(old)
        other, new_name = self._at(new)
        if old_name not in directory.names:
            raise DiskFailed(old, "renaming", "no such file")
        self.step()
        if directory is not other:
            # Each directory may lose its half of the change.
            node = directory.names[old_name]
            other.change(lambda names: names.__setitem__(new_name, node), creates=True)
            directory.change(lambda names: names.pop(old_name, None))
            return

        def move(names: dict[str, Any]) -> None:
            # The change that created the old name may have been lost.
            if old_name in names:
                names[new_name] = names.pop(old_name)

        directory.change(move)

    def remove(self, path: str) -> None:
        directory, name = self._at(path)
        if name in directory.names:
            self.step()
            directory.change(lambda names: names.pop(name, None))

    def make_directory(self, path: str) -> None:
        if path not in self.root.names:
            self.step()
            node = Directory()
            self.root.change(lambda names: names.__setitem__(path, node), creates=True)

    def remove_directory(self, path: str) -> None:
        for name in self.list(path):
            self.remove(f"{path}/{name}")
        self.step()
        self.root.change(lambda names: names.pop(path, None))

    def sync_directory(self, path: str) -> None:
        directory = self._at(f"{path}/x" if path else "x")[0]
        self.step()
        directory.sync()

    def lock(self) -> bool:
        self.look()
        return True

    def unlock(self) -> None:
        return

    def space(self) -> tuple[int, int]:
        return -1, -1
