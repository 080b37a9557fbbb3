"""The command of the Java client, compiled with the jars that Maven fetches."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from bench.harness.maven import NoMaven, jars_of

SOURCE = Path(__file__).parent / "JavaClient.java"
CLIENT = "org.apache.kafka:kafka-clients:4.3.0"


@cache
def command() -> tuple[str, ...]:
    """Return the command that runs the client; raise NoMaven, which says why it cannot run here."""
    compiler, java = shutil.which("javac"), shutil.which("java")
    if compiler is None or java is None:
        raise NoMaven("A JDK is not installed.")
    jars = jars_of(CLIENT)
    path = os.pathsep.join(map(str, jars))
    name = hashlib.sha256(SOURCE.read_bytes() + path.encode()).hexdigest()[:16]
    classes = jars[0].parents[1] / f"chaos-client-{name}"
    if not classes.exists():
        with tempfile.TemporaryDirectory(dir=classes.parent) as beside:
            made = Path(beside) / "classes"
            run = [compiler, "-cp", path, "-d", str(made), str(SOURCE)]
            subprocess.run(run, check=True)
            if not classes.exists():
                made.rename(classes)
    small = ("-Xmx96m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return (java, *small, "-cp", f"{classes}{os.pathsep}{path}", "JavaClient")


def arguments(job: dict[str, Any]) -> list[str]:
    """Return the fields of a job as the client expects them."""
    return [f"{name}={value}" for name, value in job.items()]


def missing() -> str:
    """Return why the Java client cannot run here, or an empty text."""
    try:
        command()
    except NoMaven as reason:
        return str(reason)
    return ""
