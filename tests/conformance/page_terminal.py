"""A terminal in which the blocks of a page are run as they are, against a cluster of the test."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hightide.process import environment
from tests.support.eventually import LIMIT_S
from tests.support.pages import Block

BASH = shutil.which("bash")
# The addresses in the documents, the longest first.
DOCUMENTED = (
    "localhost:9092,localhost:9093,localhost:9094",
    "localhost:9092",
    "127.0.0.1:9092",
)
UP = re.compile(r"(?m)^hightide up\b(?P<options>[^#\n]*).*\n")
# Runs until Ctrl-C.
ENDLESS = re.compile(r"(?m)^(hightide [^#\n]*--(?:follow|watch)\b[^#\n]*).*\n")


class Terminal:
    """Runs blocks in a folder. Addresses of the page are replaced by those of the cluster."""

    def __init__(
        self, folder: Path, bootstrap: str, replaced: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self._replaced = {**dict.fromkeys(DOCUMENTED, bootstrap), **(replaced or {})}
        scripts = Path(sys.executable).parent
        self._environment = {
            **environment(),
            "HIGHTIDE_BOOTSTRAP": bootstrap,
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        }

    def sh(self, block: Block | str) -> str:
        """Run a block, all of whose commands must succeed; return its output.

        What starts brokers is left out, because the test has started them. What runs until Ctrl-C
        gets it after its first line of output.
        """
        text = UP.sub("", self._local(block))
        for line in ENDLESS.findall(text):
            self._interrupted(line)
        return self._run([str(BASH), "-euo", "pipefail", "-c", ENDLESS.sub("", text)], text)

    def python(self, block: Block | str, before: str = "", after: str = "") -> str:
        """Run a program; `before` and `after` is what the page leaves to the reader."""
        text = f"{before}\n{self._local(block)}\n{after}"
        return self._run([sys.executable, "-W", "error", "-c", text], text)

    def start_python(self, block: Block | str, before: str = "") -> subprocess.Popen[str]:
        """Start a program that runs until it is killed."""
        text = f"{before}\n{self._local(block)}"
        return subprocess.Popen(
            [sys.executable, "-c", text], env=self._environment, cwd=self.folder, text=True
        )

    def _local(self, block: Block | str) -> str:
        text = block if isinstance(block, str) else block.text
        for documented, real in self._replaced.items():
            text = text.replace(documented, real)
        return text

    def _run(self, command: list[str], text: str) -> str:
        done = subprocess.run(
            command,
            env=self._environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def _interrupted(self, line: str) -> None:
        with subprocess.Popen(
            [str(BASH), "-c", f"exec {line}"],
            env=self._environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline(), line
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT_S) in (0, 130), line


@contextmanager
def up(folder: Path, *options: str) -> Iterator[str]:
    """Run `hightide up` in a folder, on free ports; the value is its bootstrap addresses."""
    with subprocess.Popen(
        [sys.executable, "-m", "hightide", "up", *options, "--port", "0", "--no-console"],
        env=environment(),
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("bootstrap: "), line
            yield line.removeprefix("bootstrap: ").strip()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(LIMIT_S)


def up_options(blocks: list[Block]) -> list[str]:
    """The options with which a page starts its brokers."""
    for block in blocks:
        if found := UP.search(block.text):
            return found["options"].split()
    raise AssertionError("the page starts no brokers")
