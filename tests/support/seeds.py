"""Where a random run begins.

A commit has seeds of its own: `make test` finds the same in a commit each time and everywhere, and
something new with each commit.  `make sim` and the like, which are asked for more, draw theirs.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path


def first_seed(*, is_new: bool = False) -> int:
    """`HIGHTIDE_SEED`, or that of the commit, or one nobody has had."""
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
