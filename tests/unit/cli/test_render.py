"""Tables for people and JSON for programs, from the same rows."""

import json
from dataclasses import dataclass
from enum import IntEnum

import pytest

from hightide.cli.render import Output, json_line, say, show, show_one, table, visible, write


class Source(IntEnum):
    DEFAULT_CONFIG = 5


@dataclass
class Row:
    name: str
    end_offset: int
    replicas: list[int]
    rack: str | None
    source: Source = Source.DEFAULT_CONFIG


ROWS = [Row("orders", 7, [1, 2, 3], None), Row("a", 12345, [], "eu-1")]


@dataclass
class Whole:
    cluster_id: str
    ok: bool
    rows: list[Row]


def test_a_table_has_headings_aligned_columns_and_numbers_to_the_right():
    assert table(ROWS).splitlines() == [
        "NAME    END-OFFSET  REPLICAS  RACK  SOURCE",
        "orders           7  1,2,3     -     default_config",
        "a            12345  -         eu-1  default_config",
    ]


def test_a_table_can_show_some_columns_only():
    assert table(ROWS, ("name", "rack")).splitlines()[0] == "NAME    RACK"


def test_json_has_every_field(capsys):
    show(ROWS, Output.JSON, columns=("name",))
    found = json.loads(capsys.readouterr().out)
    assert found[0] == {
        "name": "orders",
        "end_offset": 7,
        "replicas": [1, 2, 3],
        "rack": None,
        "source": "default_config",
    }


def test_no_rows_are_an_empty_table_and_an_empty_list(capsys):
    show([], Output.TABLE)
    assert capsys.readouterr().out == ""
    show([], Output.JSON)
    assert json.loads(capsys.readouterr().out) == []


def test_one_thing_is_its_fields_and_then_its_rows(capsys):
    show_one(Whole("c1", True, ROWS), Output.TABLE)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["cluster-id  c1", "ok          yes", ""]
    assert lines[3].startswith("NAME")
    show_one(Whole("c1", True, ROWS), Output.JSON)
    assert json.loads(capsys.readouterr().out)["rows"][1]["name"] == "a"


DANGEROUS = "\x1b]0;title\x07 \x9b2J \x7f \r\n\t \u202e \u2028 \ud800"


@pytest.mark.parametrize("output", list(Output))
def test_data_cannot_drive_a_terminal(output, capsys):
    row = Row(DANGEROUS, 1, [], DANGEROUS)
    show([row], output)
    show_one(Whole(DANGEROUS, True, [row]), output)
    write(f"{DANGEROUS}\n")
    say(DANGEROUS)
    printed = "".join(capsys.readouterr())
    assert "\x1b" not in printed
    assert visible(printed, keep="\n\t") == printed


def test_a_row_is_one_line_whatever_is_in_it():
    (_, line) = table([Row("a\nb\x1b[2J", 1, [], None)], ("name", "end_offset")).splitlines()
    assert line.split() == [r"a\nb\x1b[2J", "1"]


def test_json_means_the_same_with_control_characters_escaped():
    value = {"key": "\x9b\x7f\u202e\ud800 ordinary ä"}
    line = json_line(value)
    assert json.loads(line) == value
    assert r"\u009b\u007f\u202e\ud800 ordinary ä" in line
