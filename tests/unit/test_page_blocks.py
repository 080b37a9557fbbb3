"""Every command and snippet of the documents is run by a test, or has a reason why not."""

from __future__ import annotations

import json

import pytest
import yaml

from hightide.settings import Broker
from hightide.settings.properties import parse
from tests.support.page_blocks import LANGUAGES, NOT_RUN, PART, RUN_BY, reason, starts, to_run
from tests.support.pages import ROOT, Block, blocks, pages

EVERY = [block for page in pages() for block in blocks(page)]


def of(language: str) -> list[Block]:
    return [block for block in EVERY if block.language == language]


def test_every_block_is_run_or_has_a_reason() -> None:
    untested = [page for page in pages() if page not in RUN_BY]
    assert [block for page in untested for block in to_run(page, *LANGUAGES)] == []


def test_every_reason_is_for_a_block() -> None:
    for page, reasons in NOT_RUN.items():
        for text in reasons:
            assert [block for block in blocks(page) if starts(block, text)], (page, text)


@pytest.mark.parametrize("page", RUN_BY)
def test_the_test_of_a_page_reads_it(page: str) -> None:
    """It names the page, with or without the folder and the suffix."""
    text = (ROOT / RUN_BY[page]).read_text("utf-8")
    name = page.rpartition("/")[2]
    assert name in text or f'"{name.removesuffix(".md")}"' in text


@pytest.mark.parametrize("block", of("json"), ids=lambda block: block.page)
def test_json_is_json(block: Block) -> None:
    for line in block.text.splitlines():
        json.loads(line)


@pytest.mark.parametrize("block", of("yaml"), ids=lambda block: block.page)
def test_yaml_is_yaml(block: Block) -> None:
    assert isinstance(yaml.safe_load(block.text), dict)


@pytest.mark.parametrize("block", of("properties"), ids=lambda block: block.page)
def test_properties_are_settings_of_a_broker(block: Block) -> None:
    Broker.read({found.name: found.value for found in parse(block.text)})


@pytest.mark.parametrize("block", of("python"), ids=lambda block: block.page)
def test_python_is_python(block: Block) -> None:
    if reason(block) != PART:
        compile(block.text, block.page, "exec")
