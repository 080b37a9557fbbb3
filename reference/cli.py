"""docs/reference/cli.md: every command with its arguments and options, as `--help` has them."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from typing import Any

from hightide.broker.main import _parser as broker_parser
from hightide.cli.app import COMMANDS, tree
from hightide.cli.parameters import word_for
from hightide.cli.up import parser as up_parser
from hightide.zookeeper.server.main import _parser as zookeeper_parser
from reference.pages import head, table

# These read their options without typer, to start sooner.
STARTERS = {
    "hightide up": up_parser,
    "hightide broker start": broker_parser,
    "hightide zookeeper start": zookeeper_parser,
}


def page() -> str:
    lines = head("Commands", "the declared commands")
    lines += [
        "Every command with its arguments and options; `hightide COMMAND --help` prints the same."
        " [Command line](../guide/command-line.md)",
        "has what commands share: the names of partitions, output, questions, exit codes.",
    ]
    root: Any = tree()
    panel = ""
    for name in COMMANDS:
        place = COMMANDS[name]
        if place.hidden:
            continue
        if place.panel != panel:
            panel = place.panel
            lines += ["", f"## {panel}"]
        for words, command in _leaves(f"hightide {name}", root.commands[name]):
            lines += ["", *_command(words, command)]
    return "\n".join(lines) + "\n"


def _leaves(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield words, command
        return
    for name, child in children.items():
        if not child.hidden:
            yield from _leaves(f"{words} {name}", child)


def _command(words: str, command: Any) -> list[str]:
    rows = []
    starter = STARTERS.get(words)
    if starter is not None:
        rows = [row for action in starter()._actions if (row := _argparse_row(action))]
        usage = f"{words} [OPTIONS]"
    else:
        context = command.make_context(words, [], resilient_parsing=True)
        usage = " ".join([words, *command.collect_usage_pieces(context)])
        rows = [
            row
            for parameter in command.get_params(context)
            if (row := _typer_row(parameter, context))
        ]
    text = inspect.cleandoc(command.help or "").replace("\f", "")
    lines = [f"### `{words}`", "", f"`{usage}`", "", text]
    return [*lines, "", *table(("option", "value", "default", "meaning"), rows)] if rows else lines


def _argparse_row(action: argparse.Action) -> tuple[str, ...] | None:
    if not action.option_strings or "--help" in action.option_strings:
        return None
    value = ""
    if action.nargs != 0:
        choices = "|".join(str(choice) for choice in action.choices or ())
        value = choices or str(action.metavar or action.dest.upper())
    # Some texts of help end with the default, and some are nothing else.
    meaning, _, said = re.sub(r"^default: (.*)", r"(default: \1)", action.help or "").partition(
        "(default: "
    )
    default = "" if action.default in (None, False, []) else str(action.default)
    if said and "%(" not in said:
        default = said.removesuffix(")")
    names = ", ".join(f"`{name}`" for name in action.option_strings)
    return names, _code(value), _code(default), meaning.strip()


def _typer_row(parameter: Any, context: Any) -> tuple[str, ...] | None:
    if getattr(parameter, "hidden", False) or "--help" in parameter.opts:
        return None
    is_argument = parameter.param_type_name == "argument"
    shown = [*parameter.opts, *parameter.secondary_opts]
    if is_argument:
        shown = [str(parameter.metavar or parameter.name.upper())]
    names = ", ".join(_code(name) for name in shown)
    value = "" if is_argument or getattr(parameter, "is_flag", False) else word_for(parameter)
    default = parameter.get_default(context, call=False)
    if callable(default) or default in (None, False, True, (), []):
        default = ""
    default = str(getattr(default, "value", default))
    return names, _code(value), _code(default), parameter.help or ""


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
