"""The command line without a broker: help, usage errors, and failures as sentences."""

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import typer

from hightide.__main__ import main
from hightide.cli import doctor
from hightide.cli.app import tree
from hightide.cli.options import LIMIT_S, Failed, confirm, pairs, spelt, wrong_usage
from hightide.cli.record.consume import line_template, read_output
from hightide.cli.topic import kafka_uuid
from hightide.process import environment
from hightide.wire import batch


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def hightide(capsys, monkeypatch):
    """Run one command in this process; a new process would take half a second."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("HIGHTIDE_BOOTSTRAP", raising=False)

    def run(*arguments):
        try:
            code: Any = main(list(arguments))
        except SystemExit as stopped:
            code = stopped.code
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return run


def closed_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def leaves(command, *words):
    """The words of all commands below this one that are not hidden."""
    if not isinstance(command, typer.core.TyperGroup):
        yield words
        return
    for name, child in command.commands.items():
        if not child.hidden:
            yield from leaves(child, *words, name)


COMMANDS = list(leaves(tree()))


def test_help_lists_every_command(hightide):
    done = hightide("--help")
    assert done.returncode == 0
    assert {words[0] for words in COMMANDS} >= {"up", "topic", "group", "doctor", "dump-log"}
    for name in {words[0] for words in COMMANDS}:
        assert f"│ {name} " in done.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(hightide, command):
    done = hightide(*command, "--help")
    assert done.returncode == 0
    assert f"usage: hightide {' '.join(command)}" in done.stdout.lower()
    assert done.stderr == ""
    # typer writes a type of Python as <list[str]>.
    assert not re.search(r"<\w", done.stdout)


def test_help_names_values_in_plain_words(hightide):
    shown = {
        line.split()[1]: " ".join(line.split())
        for line in hightide("consume", "--help").stdout.splitlines()
        if line.startswith("│ --")
    }
    assert "--count -n NUMBER [x>=1] Stop after" in shown["--count"]
    assert "--group -G GROUP Read as" in shown["--group"]
    assert "--follow Wait for" in shown["--follow"]
    assert "--help -h Show this" in shown["--help"]


def test_the_version_is_told(hightide):
    done = hightide("--version")
    assert done.stdout.startswith("hightide ")
    assert done.returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("frob",),
        ("topic", "frob"),
        ("topic", "create"),
        ("topic", "create", "t", "--partitions", "0"),
        ("topic", "create", "t", "--config", "nonsense"),
        ("topic", "alter", "t"),
        ("topic", "list", "-o", "yaml"),
        ("topic", "list", "--bootstrap", "no-port"),
        ("config", "get", "table/t"),
        ("partition", "show"),
        ("partition", "show", "t/x"),
        ("partition", "elect", "--topic", "/1"),
        ("partition", "reassign"),
        ("partition", "reassign", "t"),
        ("partition", "reassign", "--to", "1,2"),
        ("partition", "reassign", "t", "--to", "1,1"),
        ("partition", "reassign", "t", "--to", "one"),
        ("partition", "reassign", "t", "--to", "1", "--cancel"),
        ("partition", "reassign", "--cancel"),
        ("partition", "reassign", "t", "--list", "--throttle", "5"),
        ("partition", "reassign", "t", "--to", "1", "--throttle", "0"),
        ("partition", "reassign", "--file", os.devnull),
        ("group", "describe"),
        ("group", "list", "--state", "Fine"),
        ("group", "list", "--type", "new"),
        ("group", "reset", "g"),
        ("group", "reset", "g", "--to-earliest", "--to-latest"),
        ("group", "reset", "g", "--to-offset", "-1"),
        ("group", "reset", "g", "--to-time", "soon"),
        ("group", "reset", "g", "--to-latest", "--topic", "t:x"),
        ("group", "delete"),
        ("txn", "list", "--state", "open"),
        ("txn", "list", "--longer-than", "5"),
        ("txn", "describe"),
        ("txn", "producers", "t/x"),
        ("txn", "abort"),
        ("txn", "abort", "id", "--topic", "t", "--partition", "0"),
        ("txn", "abort", "id", "--start-offset", "5"),
        ("txn", "abort", "--topic", "t", "--start-offset", "5"),
        ("txn", "abort", "--topic", "t", "--partition", "0"),
        ("topic", "trim", "t"),
        ("topic", "trim", "t", "--to-end", "--to-offset", "5"),
        ("topic", "trim", "t/x", "--to-end"),
        ("group", "offset-delete", "g"),
        ("group", "offset-delete", "g", "t/x"),
        ("cluster", "logdirs", "--topic", "t/"),
        ("consume", "t", "--format", "%s %x"),
        ("consume", "t", "--format", "100%"),
        ("consume", "t/1", "--partition", "1"),
        ("consume", "t/x"),
        ("produce", "t/1", "v", "--partition", "1"),
        ("produce", "t/0,1", "v"),
        ("produce", "t", "v", "--acks", "most"),
        ("produce", "t", "v", "-X", "@/there/is/no/such/file"),
        ("perf", "produce", "t", "-X", "@/there/is/no/such/file"),
        ("consume", "t", "-X", "@/there/is/no/such/file"),
        ("pipeline", "run", "/there/is/no/such/file.py"),
        ("partition", "reassign", "--file", "/there/is/no/such/file"),
        ("dump-log", "/there/is/no/such/file"),
        ("consume", "t", "--from", "yesterday"),
        ("consume", "t", "--group", "g", "--from", "5"),
        ("consume", "t", "--group", "g", "--partition", "1"),
        ("consume", "t", "-o", "json", "-o", "table"),
        ("consume", "t", "-o", "table", "--follow"),
        ("produce", "t", "v", "--header", "=x"),
        ("perf", "latency", "t", "--rate", "0"),
        ("perf", "latency", "t", "--seconds", "0"),
        ("perf", "latency", "t", "--size", "8"),
        ("perf", "latency", "t", "--acks", "most"),
        ("perf", "latency", "t", "--rate", "1000000", "--seconds", "3600"),
        ("perf", "run", "--rounds", "0"),
        ("perf", "run", "--partitions", "0"),
        ("perf", "run", "--compression", "lz5"),
        ("perf", "run", "--compare", "localhost:9092"),
        ("perf", "run", "--compare", "localhost:9092,"),
        ("perf", "run", "--compare", "localhost:9092,no-port"),
        ("up", "--brokers", "0"),
        ("up", "--port", "70000"),
        ("up", "--memory", "--data", "x"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_no_traceback(hightide, arguments):
    done = hightide(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "list"),
        ("topic", "create", "t"),
        ("config", "get", "topic/t"),
        ("cluster", "info", "-o", "json"),
        ("cluster", "health"),
        ("partition", "show", "t/0"),
        ("partition", "list"),
        ("partition", "elect", "--dry-run"),
        ("partition", "reassign", "t", "--to", "1,2"),
        ("partition", "reassign", "--list"),
        ("group", "list"),
        ("group", "describe", "g"),
        ("group", "lag"),
        ("group", "lag", "g"),
        ("group", "reset", "g", "--to-latest"),
        ("group", "delete", "g", "--yes"),
        ("group", "offset-delete", "g", "t", "--yes"),
        ("topic", "delete", "t"),
        ("topic", "trim", "t", "--to-end"),
        ("cluster", "logdirs"),
        ("txn", "list"),
        ("txn", "describe", "id"),
        ("txn", "find-hanging"),
        ("txn", "abort", "id", "--dry-run"),
        ("consume", "t"),
        ("produce", "t", "v"),
        ("perf", "produce", "t"),
        ("perf", "latency", "t"),
        ("perf", "run"),
    ],
)
def test_a_broker_that_is_not_there_is_said_in_words_with_its_address(hightide, arguments):
    address = f"127.0.0.1:{closed_port()}"
    done = hightide(*arguments, "--bootstrap", address)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        f"hightide: Cannot connect to {address}: connection refused. Is a broker running there?\n"
    )


def test_a_listener_that_hangs_up_is_said_in_words():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        child = subprocess.Popen(
            [sys.executable, "-m", "hightide", "topic", "list", "--bootstrap", address],
            stderr=subprocess.PIPE,
            env=environment(),
        )
        accepted, _ = silent.accept()
        accepted.close()
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 1
    assert f"The connection to {address} was closed" in errors.decode()


def test_values_are_still_checked_and_converted(hightide):
    wrong = hightide("topic", "create", "t", "--partitions", "many")
    assert (wrong.returncode, "--partitions" in wrong.stderr) == (2, True)
    wrong = hightide("topic", "list", "-o", "yaml")
    assert "'table', 'json'" in wrong.stderr


@pytest.mark.parametrize("arguments", [("topic", "list"), ("consume", "t"), ("cluster", "info")])
def test_a_silent_server_costs_no_more_than_the_timeout(hightide, arguments):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = hightide(*arguments, "--timeout", "0.2", "--bootstrap", address)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"hightide: {address} did not answer ApiVersions within 200 ms.\n"


def test_a_silent_server_costs_five_seconds_by_default():
    assert LIMIT_S.get() <= 5
    assert doctor.LIMIT_MS <= 5_000
    for words in (("topic", "list"), ("group", "lag"), ("perf", "run")):
        command: Any = tree(words)
        for word in words:
            command = command.commands[word]
        (option,) = [one for one in command.params if "--timeout" in one.opts]
        assert option.default == 5.0


def test_a_shell_completes_nothing_without_a_cluster(hightide, monkeypatch):
    monkeypatch.setattr("hightide.cli.completion.LIMIT_S", 0.2)
    monkeypatch.setenv("_HIGHTIDE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_CWORD", "3")
    monkeypatch.setenv("COMP_WORDS", "hightide topic describe or")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (closed_port(), silent.getsockname()[1]):
            monkeypatch.setenv("HIGHTIDE_BOOTSTRAP", f"127.0.0.1:{port}")
            done = hightide()
            assert (done.stdout.strip(), done.stderr) == ("", "")


SLOW = {"typer", "rich", "confluent_kafka", "kazoo"}


@pytest.mark.parametrize(
    ("start", "slow"),
    [
        (("up", "--help"), SLOW | {"asyncio"}),
        (("--version",), SLOW | {"asyncio"}),
        (("zookeeper", "start", "--help"), SLOW | {"hightide.broker", "hightide.wire"}),
        (("coordinator", "start", "--help"), SLOW | {"hightide.broker", "hightide.wire"}),
    ],
)
def test_what_must_start_fast_loads_no_command_line_library(start, slow):
    assert not loaded(start) & slow


COMMAND_LINE = {
    f"hightide.cli.{name}" for name in ("topic", "group.commands", "cluster", "perf.commands")
}


@pytest.mark.parametrize(
    ("arguments", "own"),
    [
        (("topic", "list"), {"hightide.cli.topic"}),
        (("topic", "describe", "orders", "-o", "json"), {"hightide.cli.topic"}),
        (("group", "list"), {"hightide.cli.group.commands"}),
        (("cluster", "info"), {"hightide.cli.cluster"}),
    ],
)
def test_a_command_loads_what_it_uses(arguments, own):
    """`topic list` should need no more than 0.2 s of CPU, which the libraries alone would need."""
    address = f"127.0.0.1:{closed_port()}"
    found = loaded((*arguments, "--bootstrap", address))
    assert found & COMMAND_LINE == own
    assert not found & {"rich", "pydantic", "confluent_kafka", "kazoo", "pyspark", "numpy"}
    assert not found & {"hightide.broker", "hightide.log", "hightide.ingest", "hightide.spark"}
    assert "hightide.client.admin.transactions" not in found


def loaded(arguments):
    """The modules that a command has imported when it ends."""
    code = (
        "import sys\n"
        "from hightide.__main__ import main\n"
        "try:\n"
        f"    main({list(arguments)!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        "print('modules:', *sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, check=True, text=True
    )
    return {*done.stdout.partition("modules:")[2].split()}


def test_o_is_a_form_or_a_position():
    assert read_output([], None) == ("raw", "beginning")
    assert read_output(["json"], None) == ("json", "beginning")
    assert read_output(["-5"], None) == ("raw", "-5")
    assert read_output(["json", "end"], None) == ("json", "end")
    assert read_output(["json"], "42") == ("json", "42")
    with pytest.raises(type(_misuse()), match="one position"):
        read_output(["end"], "42")


def _misuse():
    try:
        wrong_usage("x")
    except Exception as error:
        return error


def test_flags_add_columns_before_the_value():
    assert line_template(False, False, False, False) == "%s\n"
    assert line_template(True, True, True, True) == "%p\t%o\t%T\t%h\t%k\t%s\n"


def test_pairs_are_parted_at_the_first_equals_sign():
    assert pairs(["a=b=c", "d = e"], "setting") == {"a": "b=c", "d": "e"}


def test_words_are_spelt_as_brokers_spell_them():
    assert spelt("ongoing ", ("Empty", "Ongoing"), "state") == "Ongoing"
    with pytest.raises(type(_misuse()), match="'open' is not a state; known are Empty, Ongoing"):
        spelt("open", ("Empty", "Ongoing"), "state")


def test_only_a_person_at_a_terminal_is_asked(monkeypatch):
    asked = []

    def answer(question, err):
        asked.append(question)
        return False

    monkeypatch.setattr("typer.confirm", answer)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))
    confirm("Sure?", yes=False)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    confirm("Sure?", yes=True)
    assert asked == []
    with pytest.raises(Failed, match="Nothing was changed"):
        confirm("Sure?", yes=False)
    assert asked == ["Sure?"]


def test_ids_are_written_as_kafka_writes_them():
    assert kafka_uuid(UUID("00112233-4455-6677-8899-aabbccddeeff")) == "ABEiM0RVZneImaq7zN3u_w"


def test_dump_log_prints_a_segment_and_says_what_is_damaged(hightide, tmp_path):
    records = [batch.Record(at, 1_700_000_000_000 + at, b"k", b"v", ()) for at in range(3)]
    file = tmp_path / "00000000000000000000.log"
    whole = bytes(batch.build(records))
    file.write_bytes(whole)
    done = hightide("dump-log", str(file), "--records")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4
    file.write_bytes(whole + whole[:30])
    done = hightide("dump-log", str(file), "-o", "json")
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 2
    assert "1 place is damaged" in done.stderr


def test_dump_log_takes_files_and_the_folder_of_a_partition(hightide, tmp_path):
    for base in (0, 3):
        records = [batch.Record(base + at, 0, None, b"v", ()) for at in range(3)]
        file = tmp_path / "orders-0" / f"{base:020}.log"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(batch.build(records, base_offset=base)))
    files = sorted(map(str, (tmp_path / "orders-0").iterdir()))
    whole = hightide("dump-log", str(tmp_path / "orders-0"))
    assert (whole.returncode, whole.stdout) == (0, hightide("dump-log", *files).stdout)
    assert [line for line in whole.stdout.splitlines() if line.endswith(".log")] == files
    printed = hightide("dump-log", *files, "-r", "-o", "json").stdout.splitlines()
    assert [record["offset"] for line in printed for record in json.loads(line)["records"]] == [
        *range(6)
    ]
    empty = hightide("dump-log", str(tmp_path))
    assert (empty.returncode, "has no .log files" in empty.stderr) == (2, True)


def test_a_reader_that_goes_away_is_no_failure(tmp_path):
    records = [batch.Record(at, 0, None, b"v" * 100, ()) for at in range(2000)]
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(
        b"".join(bytes(batch.build([record], base_offset=record.offset)) for record in records)
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "hightide", "dump-log", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    os.read(child.stdout.fileno(), 10)
    child.stdout.close()
    errors = child.stderr.read().decode()
    child.stderr.close()
    assert child.wait(60) == 0
    assert errors == ""


@pytest.mark.parametrize("arguments", [("--help",), ("topic", "--help"), ("--version",)])
def test_help_that_is_not_read_is_no_failure(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hightide", *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=environment(),
            check=False,
            timeout=60,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
