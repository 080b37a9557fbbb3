"""`hightide doctor`: its judgements, and that it runs on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hightide.cli import doctor
from hightide.cli.doctor import (
    GIB,
    Verdict,
    is_within,
    judge_addresses,
    judge_broker,
    judge_disk,
    judge_files,
    judge_java,
    judge_loops,
    judge_packages,
    judge_python,
)


def test_a_missing_or_old_java_is_bad_and_says_what_to_install() -> None:
    for found in (None, 11):
        check = judge_java(found, 17)
        assert check.verdict is Verdict.BAD
        assert "openjdk-17" in (check.advice or "")
    assert judge_java(21, 17).verdict is Verdict.OK


def test_an_old_python_is_bad() -> None:
    assert judge_python((3, 10)).verdict is Verdict.BAD
    assert judge_python((3, 13)).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("found", "versions", "is_good"),
    [
        ("4.3.0", ">=4.3,<4.4", True),
        ("4.3.0rc1", ">=4.3,<4.4", True),
        ("4.4.0", ">=4.3,<4.4", False),
        ("4.2.9", ">=4.3,<4.4", False),
        ("10.0", ">=9", True),
        ("1", "", True),
    ],
)
def test_versions_are_compared_as_numbers(found: str, versions: str, is_good: bool) -> None:
    assert is_within(found, versions) is is_good


def test_a_package_that_is_missing_or_too_new_is_bad() -> None:
    wanted = {"pyspark": ">=4.3,<4.4", "pandas": "<3,>=2.2", "numba": ">=0.61"}
    found = {"pyspark": "4.3.0", "pandas": "3.1.1"}
    assert [check.verdict for check in judge_packages(wanted, found)] == [
        Verdict.OK,
        Verdict.BAD,
        Verdict.BAD,
    ]


def test_little_disk_and_few_files_are_bad_and_low_ones_a_warning() -> None:
    disks = [judge_disk(free, Path()).verdict for free in (GIB // 2, 2 * GIB, 90 * GIB)]
    files = [judge_files(limit).verdict for limit in (64, 1024, 65536, -1)]
    assert disks == [Verdict.BAD, Verdict.WARNING, Verdict.OK]
    assert files == [Verdict.BAD, Verdict.WARNING, Verdict.OK, Verdict.OK]


def test_a_broker_must_answer_only_if_it_was_asked_for() -> None:
    assert judge_broker("host:1", "Connection refused.").verdict is Verdict.BAD
    assert judge_broker(None, "Connection refused.").verdict is Verdict.ABSENT
    assert judge_broker("host:1", 3).verdict is Verdict.OK


def test_brokers_must_be_reachable_where_they_advertise_themselves() -> None:
    where = {1: "a:9092", 2: "db:9092"}
    assert judge_addresses({1: None, 2: None}, where).found == "a:9092, db:9092"
    check = judge_addresses({1: None, 2: "Cannot connect to db:9092: unknown name."}, where)
    assert check.verdict is Verdict.BAD
    assert "db:9092 of broker 2" in check.found
    assert "unknown name. Clients connect to" in (check.advice or "")
    assert "advertised.listeners" in (check.advice or "")


def test_loops_that_are_not_compiled_are_a_warning() -> None:
    assert judge_loops(False).verdict is Verdict.WARNING
    assert judge_loops(True).verdict is Verdict.OK


def test_the_command_prints_every_check_and_exits_with_3_if_one_is_bad() -> None:
    app = typer.Typer()
    app.command()(doctor.doctor)
    # Port 1 has no listener, and a broker that was asked for must answer.
    answer = CliRunner().invoke(app, ["--bootstrap", "127.0.0.1:1", "-o", "json"])
    checks = {check["check"]: check for check in json.loads(answer.stdout)}
    assert answer.exit_code == 3
    assert checks["broker"]["verdict"] == "bad"
    assert {"hightide", "python", "pyspark", "disk", "open files"} <= set(checks)
