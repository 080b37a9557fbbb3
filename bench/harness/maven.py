"""Jars that Hightide is compared with, which Maven downloads into its cache.

Hightide itself needs no jar.  Without Maven, or without a repository, `NoMaven` says why, and the
comparison is left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

# Named one by one, because Spark's own description sends Maven to a mirror that may not be there.
# The newest of each that every copy of the repository has; they run on the Spark that we stand on.
SPARK_CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
APACHE_KAFKA = "org.apache.kafka:kafka_2.13:4.3.0"
APACHE_KAFKA_TOOLS = "org.apache.kafka:kafka-tools:4.3.0"
LIMIT_S = 300


class NoMaven(Exception):
    """The jars are not available here; the text says why."""


def jars_of(*coordinates: str) -> list[Path]:
    """Return the jar of one artefact with its dependencies, or the jars of several without."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hightide" / "jars"
    folder = cache / coordinates[0].replace(":", "-")
    if not folder.exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise NoMaven(f"Maven is not installed, so {coordinates[0]} cannot be had.")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as beside:
            _copy(maven, coordinates, Path(beside))
            # Atomic, although another process may do the same.
            if not folder.exists():
                (Path(beside) / "jars").rename(folder)
    return sorted(folder.glob("*.jar"))


def _copy(maven: str, coordinates: tuple[str, ...], folder: Path) -> None:
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    wanted = []
    for coordinate in coordinates:
        group, artefact, version = coordinate.split(":")
        wanted.append(
            f"<dependency><groupId>{group}</groupId><artifactId>{artefact}</artifactId>"
            f"<version>{version}</version>"
            f"{alone + '</exclusions>' if len(coordinates) > 1 else ''}</dependency>"
        )
    (folder / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>hightide</groupId>"
        "<artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{''.join(wanted)}</dependencies></project>"
    )
    command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
    command.append("-DincludeScope=runtime")
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoMaven(f"Maven did not bring {coordinates[0]} in {LIMIT_S} s.") from None
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise NoMaven(f"Maven could not bring {coordinates[0]}: {lines[0] if lines else 'no word'}")
