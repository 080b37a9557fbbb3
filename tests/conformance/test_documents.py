"""The commands and programs of the documents run as they are, and do what the pages say.

`tests/support/page_blocks.py` has what is not run, and why.
"""

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
from tests.conformance.page_terminal import BASH, Terminal, up, up_options
from tests.support.eventually import eventually
from tests.support.page_blocks import to_run
from tests.support.pages import ROOT, Statement, blocks, commands, shell_blocks, statements

PREPARATION = shell_blocks(ROOT / "docs" / "internals" / "classic.md")[0]
README = ROOT / "README.md"
SETTINGS = {"group.initial.rebalance.delay.ms": 0, "default.replication.factor": 3}

needs_bash = pytest.mark.skipif(BASH is None, reason="the commands of pages need bash")


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


@needs_bash
@pytest.mark.timeout(400)
def test_the_tutorial(tmp_path: Path) -> None:
    page = to_run("docs/tutorial.md", "sh", "python")
    with up(tmp_path, *up_options(page)) as bootstrap:
        terminal = Terminal(tmp_path, bootstrap)
        outputs = [
            terminal.python(block) if block.language == "python" else terminal.sh(block)
            for block in page
        ]
    killed = next(output for output in outputs if "under-replicated,not-preferred" in output)
    assert killed.count("under-replicated") == 3
    assert "exit code 3\n" in "".join(outputs)
    said = next(output for output in outputs if '"total": 63' in output)
    assert [f'{{"id": {number}, ' in said for number in range(1, 10)] == [True] * 9


@needs_bash
@pytest.mark.extended
@pytest.mark.timeout(600)
def test_replication_in_pictures(tmp_path: Path) -> None:
    page = to_run("docs/guide/replication-in-pictures.md", "sh")
    with up(tmp_path, *up_options(page)) as bootstrap:
        terminal = Terminal(tmp_path, bootstrap)
        outputs = [terminal.sh(block) for block in page]
    said = "".join(outputs)
    # What the captions explain, scene by scene.
    assert "not known to be committed" in said
    assert "isr_shrunk: scenes/0: broker 3 leaves the ISR" in said
    assert "broker 2 leads after 1" in said
    assert "[broker 1] log_truncated" in said
    assert "too few: nothing is committed" in said
    assert "not written\n" in said
    assert "unclean_leader_elected: UNCLEAN ELECTION" in said
    assert "records_lost" not in said
    assert outputs[-1].count("ISR       1,3\n") == 1


@needs_bash
@pytest.mark.extended
@pytest.mark.timeout(300)
def test_troubleshooting(tmp_path: Path) -> None:
    with up(tmp_path, "--brokers", "3") as bootstrap:
        terminal = Terminal(tmp_path, bootstrap)
        terminal.sh(PREPARATION)
        for block in to_run("docs/guide/troubleshooting.md", "sh"):
            terminal.sh(block)


@needs_bash
@pytest.mark.timeout(300)
def test_migration(tmp_path: Path) -> None:
    """Both clusters are Hightide's: a Kafka cluster has the same protocol."""
    with Cluster(settings=SETTINGS | {"default.replication.factor": 1}) as kafka, Cluster() as ours:
        Terminal(tmp_path, kafka.bootstrap).sh(PREPARATION)
        terminal = Terminal(tmp_path, ours.bootstrap, {"kafka-1.example:9092": kafka.bootstrap})
        # The replaced addresses are those of clients: this broker does not start.
        refused, create, copy, group, dump = to_run("docs/guide/migrate.md", "sh")
        assert "exit code 2\n" in terminal.sh(refused.text.replace("127.0.0.1:9092", "127.0.0.1:0"))
        terminal.sh(create)
        terminal.sh(copy)
        assert terminal.sh("hightide consume orders --format '%k %s\\n'") == "ann one\n"
        terminal.sh("hightide consume orders --group billing")
        terminal.sh(group)
        partition = next(
            path
            for path in ours.data().glob("orders-*")
            if any(found.stat().st_size for found in path.glob("*.log"))
        )
        terminal.sh(dump.text.replace("./orders-0", str(partition)))
        assert terminal.sh("hightide consume orders --format '%k %s\\n'") == "ann one\n" * 2


@needs_bash
@pytest.mark.extended
@pytest.mark.timeout(300)
def test_the_guide_to_testing(tmp_path: Path) -> None:
    tests, without_pytest = to_run("docs/guide/testing.md", "python")
    (tmp_path / "test_page.py").write_text(tests.text)
    [settings] = blocks("docs/guide/testing.md", "ini")
    (tmp_path / "pytest.ini").write_text(settings.text)
    with up(tmp_path, "--brokers", "3") as bootstrap:
        terminal = Terminal(tmp_path, bootstrap)
        assert "2 passed" in terminal.sh("python -m pytest -q -p no:cacheprovider test_page.py")
        terminal.python(without_pytest)
        for block in to_run("docs/guide/testing.md", "sh"):
            terminal.sh(block)


@needs_bash
@pytest.mark.timeout(300)
def test_the_guides_to_events_logs_and_generated_files(tmp_path: Path) -> None:
    with Cluster(brokers=3, settings=SETTINGS) as cluster:
        terminal = Terminal(tmp_path, cluster.bootstrap)
        terminal.sh(PREPARATION)
        for page in ("events", "logs", "generate"):
            for block in to_run(f"docs/guide/{page}.md", "sh"):
                terminal.sh(block)
        [program] = to_run("docs/guide/events.md", "python")
        said = terminal.python(program, after="import asyncio\nasyncio.run(failovers())")
        assert "group_rebalanced" in said
        assert (tmp_path / "hightide-dashboard.json").exists()


@needs_bash
def test_the_guide_to_metrics(tmp_path: Path) -> None:
    with Cluster(metrics=True) as cluster:
        terminal = Terminal(tmp_path, cluster.bootstrap)
        outputs = [terminal.sh(block) for block in to_run("docs/guide/metrics.md", "sh")]
    assert "producers" in outputs[-1]


@needs_bash
@pytest.mark.extended
@pytest.mark.timeout(300)
def test_the_guide_to_groups(tmp_path: Path) -> None:
    with Cluster(brokers=3, settings=SETTINGS) as cluster:
        terminal = Terminal(tmp_path, cluster.bootstrap)
        terminal.sh(PREPARATION)
        terminal.sh("hightide consume orders --group billing")
        [program] = to_run("docs/guide/groups.md", "python")
        read = "message = consumer.poll(60)\nprint(message.value())\nconsumer.close()"
        terminal.sh("hightide group reset billing --topic orders --to-earliest")
        assert terminal.python(program, after=read) == "b'one'\n"
        for block in to_run("docs/guide/groups.md", "sh"):
            terminal.sh(block)


@needs_bash
@pytest.mark.extended
@pytest.mark.timeout(300)
def test_the_guide_to_transactions(tmp_path: Path) -> None:
    with Cluster(brokers=3, settings=SETTINGS) as cluster:
        terminal = Terminal(tmp_path, cluster.bootstrap)
        terminal.sh(PREPARATION)
        cluster.create_topic("invoices")
        [program] = to_run("docs/guide/transactions.md", "python")
        copier = terminal.start_python(
            program, before="def invoice_of(order):\n    return b'invoice of ' + order"
        )
        try:
            terminal.sh("hightide produce orders two three --key ann")
            invoices = "hightide consume invoices -X isolation.level=read_committed"
            eventually(lambda: terminal.sh(invoices).count("invoice of t") == 2, every_s=0.2)
            for block in to_run("docs/guide/transactions.md", "sh"):
                terminal.sh(block)
        finally:
            copier.kill()
            copier.wait()


@needs_bash
@pytest.mark.extended
@pytest.mark.timeout(300)
def test_the_guide_to_replication(tmp_path: Path) -> None:
    with Cluster(brokers=3, settings=SETTINGS) as cluster:
        terminal = Terminal(
            tmp_path, cluster.bootstrap, {"/data/orders-0": f"{cluster.data()}/orders-0"}
        )
        create, dump, plans = to_run("docs/guide/replication.md", "sh")
        terminal.sh(create)
        terminal.sh("hightide produce orders/0 one")
        move = "hightide partition reassign orders/0 --to 3,1,2 --wait --save"
        terminal.sh(f"{move} back.json && cp back.json plan.json")
        terminal.sh(dump)
        assert terminal.sh("hightide consume restored") == "one\n"
        terminal.sh(plans)


@needs_bash
def test_the_restore_of_a_damaged_zookeeper(tmp_path: Path) -> None:
    with Cluster(zookeeper=True) as cluster:
        terminal = Terminal(tmp_path, cluster.bootstrap, {"/var/lib/hightide": f"{tmp_path}"})
        terminal.sh(f"hightide zookeeper backup --from {cluster.zookeeper} cluster.backup")
    [restore] = to_run("docs/guide/zookeeper.md", "sh")
    (tmp_path / "zookeeper").mkdir()
    terminal.sh(restore)
    assert (tmp_path / "zookeeper" / "zookeeper.db").exists()


def test_the_program_of_the_readme() -> None:
    [program] = to_run("README.md", "python")
    with Cluster() as cluster:
        cluster.create_topic("orders")
        Terminal(ROOT, cluster.bootstrap).python(program)
        command = [sys.executable, "-m", "hightide", "consume", "orders"]
        variables = {**os.environ, "HIGHTIDE_BOOTSTRAP": cluster.bootstrap}
        said = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert said.stdout == '{"id": 2}\n'
