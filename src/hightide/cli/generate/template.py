"""Texts with places such as `@name@`, and values that are quoted for the format of the text.

The generated files keep the comments of their templates, which a library that writes YAML would
lose. A value that could change the meaning of a file is refused or quoted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from hightide.cli.options import wrong_usage

FOLDER = Path(__file__).parent / "templates"
PLACE = re.compile(r"@([a-z_]+)@")
CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


def fill(name: str, values: Mapping[str, str]) -> str:
    """Return the template with this name; every place has a value, and every value a place."""
    text = (FOLDER / name).read_text("utf-8")
    places = set(PLACE.findall(text))
    assert places == set(values), f"{name}: {sorted(places ^ set(values))}"
    return PLACE.sub(lambda place: values[place[1]], text)


def double_quoted(text: str) -> str:
    """A string in JSON, which YAML and Dockerfiles read as well."""
    return json.dumps(one_line(text), ensure_ascii=False)


def systemd_word(text: str) -> str:
    """One word in a unit: no specifiers, no variables, and quotes where they are needed."""
    word = one_line(text).replace("%", "%%").replace("$", "$$")
    if re.search(r"[\s\"'\\;]", word):
        escaped = word.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return word


def systemd_path(text: str) -> str:
    """A path in a unit's setting that is not a command line: `$` has no meaning there."""
    return systemd_word(text).replace("$$", "$")


def one_line(text: str) -> str:
    if CONTROLS.search(text):
        wrong_usage(f"{text!r} has a control character")
    return text


def matching(pattern: str, text: str, what: str) -> str:
    """Return the text if it has the form of such a name."""
    if not re.fullmatch(pattern, text):
        wrong_usage(f"{text!r} is not {what}")
    return text
