"""docs/internals/classic.md names files and tests that exist, for all thirty statements."""

from __future__ import annotations

import re

import pytest

from tests.support.pages import ROOT, Statement, statements

STATEMENTS = statements()


def test_all_thirty_statements_are_there() -> None:
    assert [statement.number for statement in STATEMENTS] == list(range(1, 31))


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: str(statement.number))
def test_files_and_tests_of_a_statement_exist(statement: Statement) -> None:
    for file in statement.files:
        assert (ROOT / "src" / "hightide" / file).is_file(), file
    assert statement.files
    assert statement.tests
    for test in statement.tests:
        file, _, name = test.partition("::")
        path = ROOT / "tests" / file
        assert path.is_file(), test
        if name:
            assert re.search(rf"^(async )?def {name}\(", path.read_text("utf-8"), re.M), test
