"""The page cache: drop files from it, and query how much of a file it has."""

import ctypes
import mmap
import os
from pathlib import Path


def drop_from_cache(path: Path) -> None:
    """Sync the file, and drop it from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def cached_share(path: Path) -> float:
    """Return the share of the file in the page cache, from 0 to 1."""
    size = path.stat().st_size
    if size == 0:
        return 0.0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    fd = os.open(path, os.O_RDONLY)
    try:
        at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    finally:
        os.close(fd)
    if at == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap", str(path))
    pages = -(-size // mmap.PAGESIZE)
    found = ctypes.create_string_buffer(pages)
    try:
        if libc.mincore(at, size, found):
            raise OSError(ctypes.get_errno(), "mincore", str(path))
    finally:
        libc.munmap(at, size)
    # Only the lowest bit of each byte is defined.
    return sum(byte & 1 for byte in found.raw) / pages
