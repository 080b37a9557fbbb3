"""Files and directories that only their owner can read: records, offsets, session keys, logs.

Every place that creates one passes these modes. A process that serves also has a umask, for files
that a library creates. What an earlier version or an administrator has created is not changed,
apart from files with secrets; a warning says so.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_OTHERS = 0o077

_reported: set[Path] = set()

log = logging.getLogger(__name__)


def by_default() -> None:
    """Create private files only, in this process and its children."""
    os.umask(_OTHERS)


def make_directory(path: Path) -> None:
    """Create a directory and its parents; warn if it exists and others have access to it."""
    path.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS and path not in _reported:
        _reported.add(path)
        log.warning("other users have access to %s (mode %o): `chmod 700` closes it", path, mode)


def append_to(path: Path) -> int:
    """Open a file to append to it; create it private."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)


def create(path: Path) -> None:
    """Create an empty file unless it exists.

    A file that exists is not opened: to close it would drop every lock that this process holds on
    it, SQLite's among them.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, flags, FILE_MODE))


def close_to_others(secrets: Iterable[Path]) -> None:
    """Take the access to files with secrets from other users; files that are missing are left."""
    for path in secrets:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & _OTHERS:
                path.chmod(FILE_MODE)
                log.warning("other users had access to %s (mode %o): now mode 600", path, mode)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("cannot close %s to other users: %s", path, error.strerror)
