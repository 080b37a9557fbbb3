"""The first seed of a random run.

`make test` takes its seeds from the commit: one commit always runs the same seeds, everywhere, and
a new commit runs others.  `make sim` and other long runs draw new seeds.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path


def first_seed(*, is_new: bool = False) -> int:
    """Return `HIGHTIDE_SEED`, or the seed of the commit, or a new random one."""
    given = os.environ.get("HIGHTIDE_SEED")
    if given:
        return int(given)
    commit = "" if is_new else _commit()
    return int(commit[:10], 16) if commit else secrets.randbits(40)


def _commit() -> str:
    try:
        asked = ["git", "rev-parse", "HEAD"]
        here = Path(__file__).parent
        return subprocess.run(asked, cwd=here, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""  # not a checkout
