"""The commands of the README, the guide to the command line and docs/internals/classic.md do what
the pages say."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hightide.testing import Cluster
from tests.conformance.commands import runner
from tests.support.pages import ROOT, Statement, commands, shell_blocks, statements

PREPARATION = shell_blocks(ROOT / "docs" / "internals" / "classic.md")[0]
README = ROOT / "README.md"


def run(line: str, cluster: Cluster, folder: Path) -> str:
    """Run a line of a page that may feed a command from `echo`; return its output."""
    echo, pipe, command = line.rpartition(" | ")
    fed = shlex.split(echo)[1] + "\n" if pipe else None
    words = shlex.split(command)
    assert words[0] == "hightide"
    done = subprocess.run(
        [sys.executable, "-m", "hightide", *words[1:]],
        env={**os.environ, "HIGHTIDE_BOOTSTRAP": cluster.bootstrap},
        cwd=folder,
        input=fed,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def three_with_orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers after the commands that docs/internals/classic.md starts with."""
    folder = tmp_path_factory.mktemp("pages")
    settings = {"default.replication.factor": 3, "group.initial.rebalance.delay.ms": 0}
    with Cluster(brokers=3, settings=settings) as cluster:
        for line in commands(PREPARATION):
            run(line, cluster, folder)
        yield cluster


@pytest.mark.parametrize("statement", statements(), ids=lambda statement: str(statement.number))
def test_the_command_of_a_statement_shows_it(
    statement: Statement,
    three_with_orders: Cluster,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("a line\n")
    command = runner(three_with_orders.bootstrap, capfd, monkeypatch)
    done = command(*shlex.split(statement.command)[1:])
    assert done.code == 0, done
    # Messages go to stderr, so a command that only acts prints nothing else.
    assert done.out or done.err, done


def test_thirty_seconds_of_the_readme(tmp_path: Path) -> None:
    """All lines but those that start brokers: `Cluster` starts them here."""
    [block] = [block for block in shell_blocks(README) if "hightide up" in block]
    lines = [line for line in commands(block) if not line.startswith("hightide up")]
    assert len(lines) > 5
    with Cluster(settings={"group.initial.rebalance.delay.ms": 0}) as cluster:
        outputs = [run(line.split(" --bootstrap")[0], cluster, tmp_path) for line in lines]
    assert 'ann\t{"id": 1, "total": 42}\n' in outputs


def test_the_commands_of_the_guide_to_the_command_line(tmp_path: Path) -> None:
    block = shell_blocks(ROOT / "docs" / "guide" / "command-line.md")[0]
    with Cluster(settings={"group.initial.rebalance.delay.ms": 0}) as cluster:
        outputs = [run(line, cluster, tmp_path) for line in commands(block)]
    assert len(outputs) > 8
    assert '0 0 {"id": 1, "total": 42}\n' in outputs
