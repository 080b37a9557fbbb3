"""docs/reference/python.md: the public Python API, from its signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from reference.pages import head, table

Definition = ast.FunctionDef | ast.AsyncFunctionDef

# Modules, and what users of each import; without names, its `__all__`.
PUBLIC: dict[str, tuple[str, ...]] = {
    "hightide.testing": ("Cluster",),
    "hightide.testing.plugin": ("hightide", "hightide_cluster"),
    "hightide.client.admin": ("Admin",),
    "hightide.client.admin.topics": ("TopicAdmin",),
    "hightide.client.admin.records": ("RecordAdmin",),
    "hightide.client.admin.groups": ("GroupAdmin",),
    "hightide.client.admin.replicas": ("ReplicaAdmin",),
    "hightide.client.admin.transactions": ("TransactionAdmin",),
    "hightide.client.admin.configs": ("ConfigAdmin",),
    "hightide.client.admin.cluster": ("ClusterAdmin",),
    "hightide.client.admin.events": ("EventAdmin", "EventReader"),
    "hightide.client.security": ("Security",),
    "hightide.spark.source": ("commit_progress",),
    "hightide.spark.sink": ("exactly_once", "ExactlyOnce"),
    "hightide.spark.streams": (),
    "hightide.spark.formats": (),
    "hightide.spark.tables": (),
}


def page() -> str:
    lines = head("Python", "the signatures and docstrings")
    lines += [
        "What programs may import. Everything else may change without a note in the changelog.",
        "[Testing](../guide/testing.md), [Spark](../guide/spark.md) and"
        " [Streams](../guide/streams.md) show it in use.",
    ]
    for name, chosen in PUBLIC.items():
        module = import_module(name)
        names = [*chosen] if chosen else sorted(module.__all__)
        summary = _paragraphs(inspect.getdoc(module) or "")[0]
        lines += ["", f"## `{name}`", "", summary]
        for public in names:
            lines += ["", *_described(getattr(module, public), public)]
    return "\n".join(lines) + "\n"


def _described(thing: Any, name: str) -> list[str]:
    thing = inspect.unwrap(thing)
    thing = getattr(thing, "_fixture_function", thing)
    node = _definition(thing)
    heading = [f"### `{name}`", ""]
    if isinstance(node, ast.ClassDef):
        return [*heading, *_class(node)]
    return [*heading, *_fenced(_signature(node)), "", *_doc(node)]


def _class(node: ast.ClassDef) -> list[str]:
    starts = [found for found in _methods(node) if found.name == "__init__"]
    fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
    lines = []
    if starts:
        lines = [*_fenced(_signature(starts[0], node.name)), ""]
    elif fields:
        text = ", ".join(ast.unparse(part) for part in fields if _is_public(ast.unparse(part)))
        lines = [*_fenced(_wrapped(f"{node.name}({text})")), ""]
    lines += _doc(node)
    rows = [
        (f"`{_shown(found)}`", _paragraphs(ast.get_docstring(found) or "")[0])
        for found in _methods(node)
        if _is_public(found.name)
    ]
    return [*lines, "", *table(("name", "meaning"), rows)] if rows else lines


def _methods(node: ast.ClassDef) -> Iterator[Definition]:
    for part in node.body:
        if isinstance(part, Definition):
            yield part


def _shown(found: Definition) -> str:
    decorators = {ast.unparse(decorator) for decorator in found.decorator_list}
    if decorators & {"property", "cached_property"}:
        returns = f": {ast.unparse(found.returns)}" if found.returns else ""
        return f"{found.name}{returns}"
    return " ".join(_signature(found).split()).replace("( ", "(").replace(", )", ")")


def _signature(node: Definition, name: str | None = None) -> str:
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
    prefix = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = ast.unparse(node.returns) if node.returns and name is None else ""
    end = f" -> {returns}" if returns not in ("", "None") else ""
    return _wrapped(f"{prefix}{name or node.name}({arguments}){end}")


def _wrapped(text: str, width: int = 100) -> str:
    """Break a signature that is too long at the commas between its arguments."""
    if len(text) <= width:
        return text
    start, _, rest = text.partition("(")
    depth, line, lines = 0, "", []
    body, end = rest[: rest.rindex(")")], rest[rest.rindex(")") :]
    if ") -> " in rest:
        cut = rest.rindex(") -> ")
        body, end = rest[:cut], rest[cut:]
    for letter in body:
        depth += (letter in "([{") - (letter in ")]}")
        line += letter
        if letter == "," and depth == 0:
            lines.append(line.strip())
            line = ""
    lines.append(line.strip() + ",")
    return "\n".join([f"{start}(", *(f"    {part}" for part in lines), end])


def _fenced(text: str) -> list[str]:
    return ["```", text, "```"]


def _doc(node: ast.ClassDef | Definition) -> list[str]:
    lines: list[str] = []
    for paragraph in _paragraphs(ast.get_docstring(node) or ""):
        lines += ["", paragraph] if lines else [paragraph]
    return lines


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a docstring; indented ones are code in Markdown too."""
    return [part.strip("\n") for part in text.split("\n\n") if part.strip()] or [""]


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _definition(thing: Any) -> ast.ClassDef | Definition:
    path = Path(inspect.getsourcefile(thing) or "")
    for node in _tree(path).body:
        if isinstance(node, ast.ClassDef | Definition) and node.name == thing.__name__:
            return node
    raise LookupError(f"{path} does not define {thing.__name__}")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))
