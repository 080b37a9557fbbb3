"""A banner that another process writes: a sentence at the top of every page.

    the demo ─▶ FILE ─▶ GET /api/v1/banner ─▶ "19,380 acknowledged, 19,380 read back, 0 missing"
       {"text": "…", "level": "ok"}

The writer replaces the file (`write_banner`), so a reader never sees half of it.  A banner that was
not written again for a while is old: its writer may have ended.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

MOST_BYTES = 4096
OLD_S = 15.0
LEVELS = ("ok", "warn", "bad", "off")


def write_banner(path: Path, text: str, level: str = "ok") -> None:
    """Publish a sentence to the consoles that were started with `--banner-file` and this path."""
    if level not in LEVELS:
        raise ValueError(f"a level is one of {', '.join(LEVELS)}, not {level!r}")
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps({"text": text, "level": level}), "utf-8")
    new.replace(path)


def read_banner(path: Path) -> dict[str, Any] | None:
    """The banner as the pages show it; None if there is none, or if it cannot be read."""
    try:
        with path.open("rb") as file:
            written_s = os.fstat(file.fileno()).st_mtime
            found = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("text"), str):
        return None
    level = found.get("level")
    return {
        "text": found["text"],
        "level": level if level in LEVELS else "off",
        "time_ms": round(written_s * 1000),
        "is_old": time.time() - written_s > OLD_S,
    }
