"""Every `hightide` command in the documents exists, with the options that it is shown with."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from hightide.cli.app import tree
from tests.support.pages import ROOT, commands, shell_blocks

# Commands that start servers read their options without typer, to start sooner.
STARTERS = (("up",), ("broker", "start"), ("zookeeper", "start"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def documented() -> Iterator[tuple[str, str]]:
    """Pairs of page and command line."""
    for page in PAGES:
        for block in shell_blocks(page):
            joined = block.replace("\\\n", " ")
            for line in commands(joined):
                for part in re.split(r"\s(?:\||&&|;)\s", line):
                    text = part.strip().removesuffix("&").strip()
                    if text.startswith("hightide ") and "…" not in text and "..." not in text:
                        yield str(page.relative_to(ROOT)), text


def mistakes(words: list[str]) -> list[str]:
    """Follow the words down the tree of commands; name options that the command does not have."""
    for start in STARTERS:
        if tuple(words[: len(start)]) == start:
            return [f"no option {word}" for word in options(words) if word not in help_of(start)]
    command: Any = tree()
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        found = command.commands.get(words[0])
        if found is None:
            return [f"no command {words[0]!r}"]
        command, words = found, words[1:]
    known = {"--help", "-h", "--version"}
    for parameter in command.params:
        known |= {*parameter.opts, *parameter.secondary_opts}
    return [f"no option {word}" for word in options(words) if word not in known]


def options(words: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if re.match(r"--[a-z]|-[a-zA-Z]$", word)]


@cache
def help_of(start: tuple[str, ...]) -> str:
    command = [sys.executable, "-m", "hightide", *start, "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


CASES = list(documented())


def test_there_are_documented_commands() -> None:
    assert len(CASES) > 50


@pytest.mark.parametrize(("page", "line"), CASES, ids=[f"{page}: {line}" for page, line in CASES])
def test_a_documented_command_exists(page: str, line: str) -> None:
    assert not mistakes(shlex.split(line)[1:]), f"{page}: {line}"


def test_mistakes_are_found() -> None:
    assert mistakes(["topic", "destroy"]) == ["no command 'destroy'"]
    assert mistakes(["topic", "list", "--colour"]) == ["no option --colour"]
    assert not mistakes(["topic", "list", "-o", "json"])
