"""A disk in memory whose files fail, or which has no space, when a test says so."""

from __future__ import annotations

from hightide.log.disk import Buffer, DiskFailed, MemoryDisk, MemoryFile


class FailingDisk(MemoryDisk):
    """Fails writes, syncs or reads of the files whose path holds `only`."""

    def __init__(self, name: str = "memory") -> None:
        super().__init__(name)
        self.capacity = -1
        """The number of bytes that the disk can hold; -1: any."""
        self.fails: set[str] = set()
        """Which of `write`, `sync`, `read` fail."""
        self.only = ""
        self.reserved: dict[str, int] = {}

    def fail(self, path: str, operation: str, doing: str) -> None:
        if operation in self.fails and self.only in path:
            raise DiskFailed(path, doing, "input/output error")

    def used(self) -> int:
        held = sum(file.size for file in self.files.values())
        return held + sum(size for path, size in self.reserved.items() if path in self.files)

    def take(self, path: str, size: int) -> None:
        if 0 <= self.capacity < self.used() + size:
            raise DiskFailed(path, "writing to", "no space left on device", harmless=True)

    def allocate(self, path: str, size: int) -> None:
        self.take(path, size)
        self.create(path)
        self.reserved[path] = size

    def create(self, path: str) -> MemoryFile:
        self.fail(path, "write", "opening")
        return super().create(path)

    def space(self) -> tuple[int, int]:
        if self.capacity < 0:
            return -1, -1
        return self.capacity, max(0, self.capacity - self.used())

    def _new_file(self, path: str) -> MemoryFile:
        return FailingFile(f"{self.name}/{path}", self)


class FailingFile(MemoryFile):
    __slots__ = ("disk",)

    def __init__(self, path: str, disk: FailingDisk) -> None:
        super().__init__(path)
        self.disk = disk

    def append(self, data: Buffer) -> None:
        self.disk.fail(self.path, "write", "writing to")
        self.disk.take(self.path, len(data))
        super().append(data)

    def sync(self) -> None:
        self.disk.fail(self.path, "sync", "syncing")

    def read(self, position: int, length: int) -> bytes:
        self.disk.fail(self.path, "read", "reading")
        return super().read(position, length)

    def read_into(self, buffer: memoryview, position: int) -> int:
        self.disk.fail(self.path, "read", "reading")
        return super().read_into(buffer, position)
