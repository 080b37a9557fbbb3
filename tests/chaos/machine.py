"""One machine of the room: an address, a disk of its own, and a library that harms its programs.

The disk is an ext4 file system in a file, mounted through a loop device.  A power cut is real in
what matters: `FS_IOC_SHUTDOWN` stops the file system at once, so that everything that was not
synced is gone after the next mount, and everything that was synced is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import uuid
from pathlib import Path

from tests.chaos.network import command

SHUT_DOWN, WITHOUT_THE_JOURNAL = 0x8004587D, 2
MEDDLER = Path(__file__).with_name("meddler.c")
BOOT_ID = "/proc/sys/kernel/random/boot_id"
FILLING = "filling"
EIO = 5


class Disk:
    """A file system of one machine, at `path`."""

    def __init__(self, folder: Path, name: str, size_mb: int) -> None:
        self.path = folder / name
        self._image = folder / f"{name}.ext4"
        self._is_mounted = False
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(size_mb * 2**20)
        command("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1", str(self._image))
        self.mount()

    def mount(self) -> None:
        if not self._is_mounted:
            command("mount", "-o", "loop", str(self._image), str(self.path))
            self._is_mounted = True

    def unmount(self) -> None:
        if self._is_mounted:
            command("umount", str(self.path))
            self._is_mounted = False

    def die(self) -> None:
        """Stop the file system: what is not synced is lost, and every use fails with EIO."""
        place = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(place, SHUT_DOWN, struct.pack("I", WITHOUT_THE_JOURNAL))
        finally:
            os.close(place)

    def renew(self) -> None:
        """Mount it again; no process may have a file open."""
        self.unmount()
        self.mount()

    def fill(self, leave_bytes: int = 0) -> None:
        """Leave so much free space, or less."""
        with (self.path / FILLING).open("ab") as filling:
            for chunk in (2**24, 2**20, 2**16, 2**12):
                with contextlib.suppress(OSError):
                    while self.free_bytes() - chunk >= leave_bytes:
                        end = filling.seek(0, os.SEEK_END)
                        os.posix_fallocate(filling.fileno(), end, chunk)

    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_bsize

    def empty(self) -> None:
        """Free the space that `fill` took."""
        (self.path / FILLING).unlink(missing_ok=True)


class Meddler:
    """The faults of `meddler.c` in one machine's processes; they change while these run."""

    _library: Path | None = None

    def __init__(self, file: Path, disk: Path) -> None:
        self._file = file
        self.heal()
        self.environment = {
            "LD_PRELOAD": str(self.library()),
            "HIGHTIDE_MEDDLER": str(file),
            "HIGHTIDE_MEDDLER_DISK": str(disk),
        }

    @classmethod
    def library(cls) -> Path:
        """Compile the library, once for each run."""
        if cls._library is None:
            made = Path(tempfile.mkdtemp(prefix="hightide-meddler-")) / "meddler.so"
            command("cc", "-shared", "-fPIC", "-O2", "-o", str(made), str(MEDDLER), "-ldl")
            cls._library = made
        return cls._library

    @classmethod
    def remove(cls) -> None:
        if cls._library is not None:
            shutil.rmtree(cls._library.parent, ignore_errors=True)
            cls._library = None

    def harm(
        self,
        *,
        read_error: int = 0,
        write_error: int = 0,
        sync_error: int = 0,
        delay_ms: float = 0,
        clock_s: float = 0,
    ) -> None:
        """Set all faults: errors of the disk, the delay of each use, and the clock's error."""
        values = (read_error, write_error, sync_error, int(delay_ms * 1000), int(clock_s * 10**9))
        with self._file.open("r+b" if self._file.exists() else "w+b") as file:
            file.write(struct.pack("=iiiiq", *values))

    def heal(self) -> None:
        self.harm()


class Machine:
    """A namespace, a disk and a meddler; each of them may be missing where the run has no right."""

    def __init__(
        self, name: str, address: str, path: Path, disk: Disk | None, meddler: Meddler | None
    ) -> None:
        self.name = name
        self.address = address
        self.path = path
        self.disk = disk
        self.meddler = meddler
        self._boot = path.parent / f"{name}.boot-id"
        self.boot()

    def boot(self) -> None:
        """Take a new boot id, as a machine does that was switched off."""
        self._boot.write_text(f"{uuid.uuid4()}\n")

    def wrapper(self) -> list[str]:
        """Return the command that runs another one on this machine, in the same process."""
        words = []
        if self.disk is not None:
            script = f'mount --bind "$0" {BOOT_ID} && exec "$@"'
            words += ["ip", "netns", "exec", self.name, "sh", "-c", script, str(self._boot)]
        if self.meddler is not None:
            found = self.meddler.environment
            words += ["env", *(f"{name}={value}" for name, value in found.items())]
        return words


def missing() -> list[str]:
    """Return what the room needs and this machine lacks, in words."""
    found = [
        f"the program {name} (Debian package: {package})"
        for name, package in (
            ("ip", "iproute2"),
            ("iptables-legacy", "iptables"),
            ("mkfs.ext4", "e2fsprogs"),
            ("unshare", "util-linux"),
        )
        if shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is None
    ]
    if os.geteuid() != 0:
        found.insert(0, "root's rights")
    elif not found:
        trial = ["unshare", "--net", "--mount", "--pid", "--fork", "true"]
        done = subprocess.run(trial, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            found.append(f"new namespaces ({done.stderr.strip()})")
    return found
