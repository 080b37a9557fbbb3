"""The source text keeps to the rules of CONTRIBUTING.md that a program can check.

Layout and naming belong to ruff, types to mypy, the direction of imports to import-linter; here is
what none of them looks at.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from hightide.cli.app import COMMANDS
from hightide.console.app import ROUTES
from hightide.wire.messages import APIS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "hightide"
MODULES = sorted(SOURCE.rglob("*.py"))
# The package that Spark finds by its name, and which has nothing in it but imports.
SPARK_LOOKS_FOR = ROOT / "src" / "pyspark_hightide"

FILE_LINES = 700
FUNCTION_LINES = 60
# A function may be longer if a comment above it or beside its definition says why.
LONG_FOR_A_REASON = re.compile(r"#\s*(hot path|One long function): \w+")

BANNED_NAME = re.compile(
    r"(?i)(^|_)(utils?|helpers?|common|misc)(_|$)|(Manager|Helper|Util|Impl)s?$"
)
# Kafka's own names for these two parts.
ALLOWED_NAMES = {"ReplicaManager", "replica_manager", "LogManager", "log_manager"}
# Calls that tie a part to the machine it runs on, and the only parts that may make them.
BANNED_CALLS = {
    "time.time": ("broker/", "cli/", "console/", "ingest/", "spark/", "testing/", "process.py"),
    "time.time_ns": (
        "broker/",
        "cli/",
        "console/",
        "testing/",
        "process.py",
        "event_log.py",
        "zookeeper/committer.py",
    ),
    "time.sleep": ("client/retry.py", "ingest/", "spark/", "testing/", "process.py"),
    "random.random": (),
    "random.randint": (),
    "random.choice": (),
    "uuid.uuid4": ("broker/", "cli/", "spark/", "testing/"),
    "datetime.now": ("cli/", "spark/"),
}
# The project must not show where it was written.
MACHINE_PATH = re.compile(r"/(home|Users|root|work|farm)/[\w.]")
REGISTRY = re.compile(r"https?://[\w.-]*(pypi|pythonhosted|npmjs|maven|debian|ubuntu)\b")
# Words of sentences that need a second reading. CONTRIBUTING.md says how to write instead.
IDIOM = re.compile(
    r"(?i)(?<![a-z])(nobody|somebody|everybody|whoever|whom|shall|anew|be it|that which)(?![a-z])"
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


@cache
def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def definition(path: Path, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """A function's decorators and parameters, with the comment above them."""
    text = lines(path)
    first = min([function.lineno, *(each.lineno for each in function.decorator_list)]) - 1
    while first and text[first - 1].lstrip().startswith("#"):
        first -= 1
    return "\n".join(text[first : function.body[0].lineno])


def dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{dotted(value)}.{name}"
    return ""


def texts() -> list[Path]:
    suffixes = {".py", ".md", ".toml", ".txt", ".cfg", ".ini", ".yaml", ".yml", ".sh", ".c"}
    found = [ROOT / "Makefile", ROOT / ".ci" / "run"]
    for folder in (
        SOURCE,
        *(ROOT / name for name in ("tests", "docs", "reference", "bench", "examples", ".github")),
    ):
        found += [path for path in folder.rglob("*") if path.suffix in suffixes]
    return found + [path for path in ROOT.glob("*") if path.suffix in suffixes]


def is_banned(name: str) -> bool:
    return bool(BANNED_NAME.search(name)) and name not in ALLOWED_NAMES


def test_every_module_says_what_it_is() -> None:
    assert [name_of(path) for path in MODULES if not ast.get_docstring(tree(path))] == []


def test_no_module_is_too_long() -> None:
    long = {name_of(path): len(lines(path)) for path in MODULES if len(lines(path)) > FILE_LINES}
    assert long == {}


def test_no_function_is_too_long_without_a_reason() -> None:
    long = []
    for path in MODULES:
        for function in functions(path):
            # Parameters are not counted: a command of the command line has its options there.
            length = (function.end_lineno or 0) - function.body[0].lineno + 1
            if length > FUNCTION_LINES and not LONG_FOR_A_REASON.search(definition(path, function)):
                long.append(f"{name_of(path)}:{function.lineno} {function.name}: {length} lines")
    assert not long, "\n".join(long)


def test_nothing_has_a_name_that_says_nothing() -> None:
    wrong = [name_of(path) for path in MODULES if is_banned(path.stem)]
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and is_banned(node.name):
                wrong.append(f"{name_of(path)}:{node.lineno} {node.name}")
    assert not wrong, "\n".join(wrong)


def test_clock_and_chance_are_read_only_at_the_edge() -> None:
    wrong = []
    for path in MODULES:
        part = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call):
                allowed = BANNED_CALLS.get(dotted(node.func))
                if allowed is not None and not part.startswith(allowed):
                    wrong.append(f"{name_of(path)}:{node.lineno} {dotted(node.func)}")
    assert not wrong, "\n".join(wrong)


def test_no_exception_is_swallowed_unnamed() -> None:
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_is_left_to_do_in_a_comment() -> None:
    mark = re.compile(
        "#.*\\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")) + ")\\b"
    )
    wrong = [
        f"{name_of(path)}:{number}"
        for path in MODULES
        for number, line in enumerate(lines(path), 1)
        if mark.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_text_names_a_machine_or_a_registry() -> None:
    wrong = [
        f"{name_of(path)}:{number}"
        for path in texts()
        for number, line in enumerate(lines(path), 1)
        if MACHINE_PATH.search(line) or REGISTRY.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_text_is_in_the_old_idiom() -> None:
    wrong = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in texts()
        if path != Path(__file__)
        for number, line in enumerate(lines(path), 1)
        if IDIOM.search(line.replace("_", " "))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_module_is_used() -> None:
    # Messages are imported when their API key is first asked for, and commands when they run. The
    # console serves every module of its routes.
    imported = {f"hightide.wire.messages.{module}" for _, module in APIS.values()}
    imported |= {place.module for place in COMMANDS.values()}
    imported |= {f"hightide.console.routes.{name}" for name in ROUTES}
    for path in [*MODULES, *SPARK_LOOKS_FOR.rglob("*.py")]:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
                imported.update(f"{node.module}.{alias.name}" for alias in node.names)
    unused = []
    for path in MODULES:
        module = ".".join(("hightide", *path.relative_to(SOURCE).with_suffix("").parts))
        # pytest finds the plugin by its entry point, and Python the others by their names. The
        # tree inside a process is the coordinator of simulations and tests.
        apart = ("hightide.testing.plugin", "hightide.zookeeper.in_memory")
        if path.stem in ("__init__", "__main__") or module in apart:
            continue
        if module not in imported:
            unused.append(module)
    assert not unused, "\n".join(unused)


@pytest.mark.parametrize("page", [path for path in texts() if path.suffix == ".md"], ids=name_of)
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(page.read_text("utf-8")):
        if not re.match(r"[a-z]+:", target):
            file, _, heading = target.partition("#")
            goal = page.parent / file if file else page
            if not goal.exists() or (heading and heading not in headings(goal)):
                broken.append(target)
    assert broken == []


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"(?ms)^ *```.*?^ *```", "", page.read_text("utf-8"))
    titles = re.findall(r"(?m)^#+ +(.+)$", text)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_rules_can_fail(tmp_path: Path) -> None:
    """The checks above find what they look for, so that an empty list means something."""
    assert is_banned("utils")
    assert is_banned("TopicManager")
    assert not is_banned("commit")
    assert IDIOM.search("It is told to whoever asks.")
    assert IDIOM.search("def test_nobody_waits".replace("_", " "))
    assert not IDIOM.search("shallow, marshalled")
    assert MACHINE_PATH.search("see /home" + "/me/x")
    assert REGISTRY.search("https://" + "files.pythonhosted.org/x")
    assert not MACHINE_PATH.search("https://host/path/root/")
    called = ast.parse("import time\ntime.time()").body[1]
    assert isinstance(called, ast.Expr)
    assert isinstance(called.value, ast.Call)
    assert dotted(called.value.func) in BANNED_CALLS
    assert LONG_FOR_A_REASON.search("def f():  # hot path: one call costs 50 ns")
    page = tmp_path / "page.md"
    page.write_text("# One & two\n```sh\n# a comment\n```\n")
    assert headings(page) == {"one--two"}
