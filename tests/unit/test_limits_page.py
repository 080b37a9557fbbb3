"""docs/guide/limits.md says what the settings and options say."""

from __future__ import annotations

import inspect
import re

import pytest

from hightide.cli import ingest
from hightide.settings import Broker
from hightide.zookeeper.server.main import _parser
from tests.support.pages import ROOT

PAGE = (ROOT / "docs/guide/limits.md").read_text("utf-8")
ROWS = re.findall(r"^\| `([^`]+)`(?: \((ours)\))? \| ([^|]*?) \|", PAGE, re.MULTILINE)
SETTINGS = [row for row in ROWS if not row[0].startswith("--")]
OPTIONS = [row for row in ROWS if row[0].startswith("--")]


@pytest.mark.parametrize(("name", "default"), [(name, default) for name, _, default in SETTINGS])
def test_a_setting_has_the_default_of_the_page(name: str, default: str) -> None:
    about = Broker.declared[name]
    assert about.text(about.default) == default


def test_options_have_the_defaults_of_the_page() -> None:
    known = {
        (option, str(action.default))
        for action in _parser()._actions
        for option in action.option_strings
    }
    for parameter in inspect.signature(ingest.http, eval_str=True).parameters.values():
        for declared in getattr(parameter.annotation, "__metadata__", ()):
            # In an annotation, typer takes the first name for the default.
            names = (declared.default, *(declared.param_decls or ()))
            known |= {(option, str(parameter.default)) for option in names}
    assert [(name, default) for name, _, default in OPTIONS if (name, default) not in known] == []
