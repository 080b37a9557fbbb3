"""The disk of a simulated machine: the one that the log's own tests cut the power of.

A process that dies leaves it as it is, bytes that were never synced included, and so they can still
be lost when the power goes later.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "unit" / "log"))

from crash_disk import CrashDisk

__all__ = ["CrashDisk"]
