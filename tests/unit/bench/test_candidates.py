"""What `--against` and `--subject` of the benchmark accept."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench.harness.candidates import CommandLine, Hightide, parse


@pytest.mark.parametrize(
    "text",
    ["", "name", "name=", "=x --port {port}", "old=command", "x=checkout:/"],
)
def test_what_cannot_be_measured_is_refused_in_words(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--against", type=parse)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--against", text])
    assert ended.value.code == 2
    assert repr(text) in capsys.readouterr().err


def test_a_checkout_is_hightide_with_its_source(tmp_path: Path) -> None:
    (tmp_path / "src" / "hightide").mkdir(parents=True)
    found = parse(f"old=checkout:{tmp_path}")
    assert isinstance(found, Hightide)
    assert (found.name, found.source) == ("old", tmp_path / "src")


def test_everything_else_is_a_command() -> None:
    found = parse("other = broker --port {port} --override a=b")
    assert found == CommandLine("other", "broker --port {port} --override a=b")
