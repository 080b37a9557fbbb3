"""What typer's parameters do differently here: plain words in `--help`, no pydantic for values that
need none, and options that many commands share without declaring them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

import typer

T = TypeVar("T")

NUMBERS = (int, float)


def adapt(command: Any) -> None:
    """Adapt the parameters of a command, and of all commands below it."""
    original = command.get_params

    def get_params(context: Any) -> list[Any]:
        # Includes `--help`, which typer adds when it asks for the parameters.
        parameters: list[Any] = original(context)
        for parameter in parameters:
            if "get_runtime_param" not in vars(parameter):
                word, convert = word_for(parameter), Conversion(parameter.get_runtime_param)
                vars(parameter)["display_type_rich"] = partial(_constant, word)
                vars(parameter)["get_runtime_param"] = partial(_constant, convert)
        return parameters

    vars(command)["get_params"] = get_params
    for child in getattr(command, "commands", {}).values():
        adapt(child)


def add_option(command: Any, declaration: Callable[..., None]) -> None:
    """Give the option that a function declares to all commands with --bootstrap."""
    holder = typer.Typer(add_completion=False)
    holder.command()(declaration)
    _add(command, typer.main.get_command(holder).params[0])


def _add(command: Any, option: Any) -> None:
    known = {word for parameter in command.params for word in parameter.opts}
    if "--bootstrap" in known and not known & {*option.opts}:
        command.params.append(option)
    for child in getattr(command, "commands", {}).values():
        _add(child, option)


def _constant(value: T, **_: Any) -> T:
    return value


@dataclass(frozen=True, slots=True)
class Conversion:
    """Converts a value from the command line, with pydantic only if it has to be converted.

    The import of pydantic takes longer than most commands.
    """

    original: Callable[[], Any]

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        is_single = param.nargs == 1 and not getattr(param, "multiple", False)
        if value is None:
            return None if is_single else ()
        wanted = param.type_descriptor.annotation
        if not is_single:
            if wanted == list[str] and not isinstance(value, str):
                return [*value]
        elif isinstance(wanted, type):
            if type(value) is wanted:
                return value
            if issubclass(wanted, StrEnum) and value in {*wanted}:
                return wanted(value)
        return self.original().coerce(value, param=param, ctx=ctx)


def word_for(parameter: Any) -> str:
    """What stands for the value of a parameter: nothing for a flag, and for an argument, whose name
    says it."""
    if parameter.param_type_name == "argument" or parameter.is_flag:
        return ""
    if parameter.metavar is not None:
        return str(parameter.metavar)
    described = parameter.type_descriptor
    if described.choices:
        return "|".join(str(getattr(choice, "value", choice)) for choice in described.choices)
    kind = described.annotation
    while getattr(kind, "__args__", ()):
        kind = kind.__args__[0]
    return "NUMBER" if kind in NUMBERS else str(parameter.name).upper().replace("_", "-")
