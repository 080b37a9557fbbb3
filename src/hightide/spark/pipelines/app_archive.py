"""How an app reaches the machines of a Spark cluster: in a zip that Spark adds to their path.

Only Python source is shipped. Its dependencies (pyarrow, numba and the rest of `hightide[spark]`)
contain machine code and must be installed on the workers; `explain` says so if they are not. On one
machine nothing is shipped, and the workers use this process's path.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("hightide", "pyspark_hightide")
ARCHIVE = "hightide.zip"
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
SHUFFLE_PARTITIONS = "16"
"""Spark's default of 200 suits large batches; each costs a stateful micro-batch some files."""


def is_local(master: str) -> bool:
    return master.startswith("local")


def settings(master: str, app_file: Path, folder: Path) -> dict[str, str]:
    """Make the app's code reachable for a master's workers; return the Spark settings."""
    if is_local(master):
        extend_pythonpath(app_file.absolute().parent)
        return {}
    made = {
        "spark.submit.pyFiles": str(pack(folder / ARCHIVE, app_file)),
        "spark.sql.shuffle.partitions": SHUFFLE_PARTITIONS,
    }
    if master.removeprefix("spark://").rpartition(":")[0] in LOOPBACK:
        made |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return made


def extend_pythonpath(*folders: Path) -> None:
    """Let child Python processes import what this process imports."""
    wanted = [str(folder) for folder in folders]
    root = _root("hightide")
    if root.name not in {"site-packages", "dist-packages"}:
        wanted.append(str(root))
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    added = [path for path in wanted if path not in known]
    os.environ["PYTHONPATH"] = os.pathsep.join((*added, *known))


def pack(archive: Path, app_file: Path) -> Path:
    """Write a zip of Hightide and of the modules that the app has imported from its own folder."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        for source, name in sorted(_contents(app_file)):
            made.write(source, name)
    return archive.absolute()


def _contents(app_file: Path) -> Iterator[tuple[Path, str]]:
    for package in PACKAGES:
        root = _root(package)
        for source in (root / package).rglob("*"):
            if source.is_file() and "__pycache__" not in source.parts:
                yield source, str(source.relative_to(root))
    yield from _beside(app_file.absolute())


def _root(package: str) -> Path:
    """Return the folder on Python's path that contains a package."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).resolve().parents[1]


def _beside(app_file: Path) -> Iterator[tuple[Path, str]]:
    folder = app_file.parent
    for module in list(sys.modules.values()):
        source = getattr(module, "__file__", None)
        if not source or not source.endswith(".py"):
            continue
        path = Path(source)
        if path == app_file or not path.is_relative_to(folder):
            continue
        name = path.relative_to(folder)
        # Only what can be imported from that folder, and not a virtual environment in it.
        top = (module.__name__ or "").partition(".")[0]
        if name.parts[0] in (top, f"{top}.py") and top not in PACKAGES:
            yield path, str(name)
