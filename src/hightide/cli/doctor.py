"""`hightide doctor`: check that this machine has what Hightide needs, and say what to do if not.

Each check has two parts: look up a fact, and judge it in a pure function.  What only some commands
need is checked only if it is installed: a broker runs without Spark, but Spark needs Java.
"""

from __future__ import annotations

import asyncio
import re
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated

import typer

from hightide import __version__
from hightide.cli import render
from hightide.cli.options import LOCALHOST, OutputOption, wrong_usage
from hightide.cli.render import Output
from hightide.client.admin import Admin
from hightide.client.broker_connection import Connection, ConnectionFailed
from hightide.client.model.cluster import Node
from hightide.client.routing import addresses
from hightide.wire.errors import KafkaError

UNHEALTHY = 3
LIMIT_MS = 5_000
GIB = 1 << 30
LITTLE_DISK, LOW_DISK = GIB, 5 * GIB
FEW_FILES, LOW_FILES = 256, 4096
INSTALL = "pip install 'hightide[spark]'"


class Verdict(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    BAD = "bad"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Check:
    check: str
    verdict: Verdict
    found: str
    advice: str | None = None


def doctor(
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "-b",
            envvar="HIGHTIDE_BOOTSTRAP",
            metavar="HOST:PORT",
            help=f"A broker that must answer. Default: {LOCALHOST}, which need not answer.",
        ),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="The folder for data and state.")
    ] = Path(),
    output: OutputOption = Output.TABLE,
) -> None:
    """Check Python, Java, Spark, compiled loops, disk, open files and the brokers.

    Each broker of the cluster must be reachable at the address that it advertises.

    Exit code 3 if something would not work; warnings and missing optional parts do not count.
    """
    try:
        addresses(bootstrap or LOCALHOST)
    except ValueError as error:
        wrong_usage(str(error))
    found = [
        Check("hightide", Verdict.OK, __version__),
        judge_python(sys.version_info[:2]),
        *_spark(),
        judge_disk(shutil.disk_usage(_existing(folder)).free, folder),
        judge_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        *_brokers(bootstrap),
    ]
    render.show(found, output, _columns(found))
    if any(check.verdict is Verdict.BAD for check in found):
        raise typer.Exit(UNHEALTHY)


def _columns(found: list[Check]) -> tuple[str, ...]:
    """The columns; without advice there is no such column."""
    has_advice = any(check.advice for check in found)
    return ("check", "verdict", "found", *(("advice",) if has_advice else ()))


# -- judgements ----------------------------------------------------------------------------------


def judge_python(found: tuple[int, int]) -> Check:
    text = f"{found[0]}.{found[1]}"
    if found < (3, 11):
        return Check("python", Verdict.BAD, text, "Use Python 3.11 or newer.")
    return Check("python", Verdict.OK, text)


def judge_java(found: int | None, oldest: int) -> Check:
    advice = f"Install Java {oldest} or newer; on Debian: apt install openjdk-17-jre-headless."
    if found is None:
        return Check("java", Verdict.BAD, "none", advice)
    if found < oldest:
        return Check("java", Verdict.BAD, str(found), advice)
    return Check("java", Verdict.OK, str(found))


def judge_packages(wanted: Mapping[str, str], found: Mapping[str, str]) -> Iterator[Check]:
    """`wanted` has version ranges by package, `found` the installed versions."""
    for name, versions in wanted.items():
        if name not in found:
            yield Check(name, Verdict.BAD, "none", INSTALL)
        elif not is_within(found[name], versions):
            yield Check(name, Verdict.BAD, found[name], f"It should be {versions}: {INSTALL}")
        else:
            yield Check(name, Verdict.OK, found[name])


def is_within(found: str, versions: str) -> bool:
    """Whether a version is in a range such as `>=4.3,<4.4`, the only form in pyproject.toml."""
    return all(
        _numbers(found) < _numbers(bound[1:])
        if bound.startswith("<")
        else _numbers(found) >= _numbers(bound.removeprefix(">="))
        for bound in filter(None, versions.split(","))
    )


def _numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: 4.3.0rc1 counts as 4.3.0."""
    return tuple(int(number) for number in re.findall(r"(?:^|\.)(\d+)", text))


def judge_loops(is_compiled: bool) -> Check:
    if is_compiled:
        return Check("loops", Verdict.OK, "compiled")
    return Check(
        "loops",
        Verdict.WARNING,
        "not compiled",
        "Records are decoded slowly, because numba does not work: pip install numba",
    )


def judge_disk(free_bytes: int, folder: Path) -> Check:
    text = f"{free_bytes / GIB:,.1f} GiB free in {folder.absolute()}"
    if free_bytes < LITTLE_DISK:
        return Check("disk", Verdict.BAD, text, "Make room, or choose another folder.")
    if free_bytes < LOW_DISK:
        return Check("disk", Verdict.WARNING, text, "Logs and state will fill this soon.")
    return Check("disk", Verdict.OK, text)


def judge_files(limit: int) -> Check:
    unlimited = limit == resource.RLIM_INFINITY
    text = "no limit" if unlimited else f"{limit} at once"
    if not unlimited and limit < LOW_FILES:
        advice = "A broker keeps files and connections open: ulimit -n 65536"
        few = limit < FEW_FILES
        return Check("open files", Verdict.BAD if few else Verdict.WARNING, text, advice)
    return Check("open files", Verdict.OK, text)


def judge_broker(asked_for: str | None, answer: str | int) -> Check:
    """`answer` is the number of brokers, or why none answered."""
    where = asked_for or LOCALHOST
    if isinstance(answer, int):
        return Check("broker", Verdict.OK, f"{answer} at {where}")
    if asked_for is None:
        return Check("broker", Verdict.ABSENT, f"none at {where}", "To start one: hightide up")
    return Check("broker", Verdict.BAD, f"none at {where}", answer)


def judge_addresses(found: Mapping[int, str | None], where: Mapping[int, str]) -> Check:
    """`found` has why each broker could not be reached at the address that it advertises."""
    failures = {broker: why for broker, why in found.items() if why is not None}
    if not failures:
        return Check("addresses", Verdict.OK, ", ".join(where[broker] for broker in sorted(where)))
    named = ", ".join(f"{where[broker]} of broker {broker}" for broker in sorted(failures))
    return Check(
        "addresses",
        Verdict.BAD,
        f"cannot be used from here: {named}",
        " ".join(failures[broker] for broker in sorted(failures))
        + " Clients connect to the address that a broker advertises: set its advertised.listeners"
        " to one that they can resolve and reach.",
    )


# -- facts ---------------------------------------------------------------------------------------


def _spark() -> Iterator[Check]:
    """The checks of Spark pipelines, if Spark is installed."""
    wanted = dict(_wanted("spark"))
    found = {name: held for name in wanted if (held := _version(name)) is not None}
    if "pyspark" not in found:
        yield Check("pyspark", Verdict.ABSENT, "none", f"For pipelines and tables: {INSTALL}")
        return
    yield from judge_packages(wanted, found)
    from hightide.spark.session import OLDEST_JAVA, java_version

    yield judge_java(java_version(), OLDEST_JAVA)
    if _version("pyarrow") and _version("numpy"):
        from hightide.spark.columns import kernels

        yield judge_loops(kernels.is_compiled)


def _wanted(extra: str) -> Iterator[tuple[str, str]]:
    """The packages of one extra, and their version ranges."""
    pattern = re.compile(rf"([\w.-]+)(?:\[.*?\])?([^;]*);.*extra == ['\"]{extra}['\"]")
    try:
        declared = requires("hightide") or ()
    except PackageNotFoundError:
        # A source tree that is not installed: only Spark itself can be checked.
        declared = [f"pyspark; extra == '{extra}'"]
    for text in declared:
        if match := pattern.fullmatch(text):
            yield match[1], match[2].strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    absolute = folder.absolute()
    return next(path for path in (absolute, *absolute.parents) if path.exists())


def _brokers(bootstrap: str | None) -> Iterator[Check]:
    """Ask a broker for the others, and connect to each at the address that it advertises."""

    async def describe() -> Sequence[Node]:
        async with Admin(bootstrap or LOCALHOST, connect_timeout_ms=LIMIT_MS) as admin:
            return (await admin.cluster.describe()).nodes

    try:
        nodes = asyncio.run(describe())
    except (ConnectionFailed, KafkaError, OSError) as error:
        yield judge_broker(bootstrap, str(error))
        return
    yield judge_broker(bootstrap, len(nodes))
    where = {node.id: f"{node.host}:{node.port}" for node in nodes}
    yield judge_addresses(asyncio.run(_reach(nodes)), where)


async def _reach(nodes: Sequence[Node]) -> dict[int, str | None]:
    async def reach(node: Node) -> str | None:
        try:
            (await Connection.open(node.host, node.port, timeout_ms=LIMIT_MS)).close()
        except (ConnectionFailed, KafkaError) as error:
            return str(error)
        return None

    reasons = await asyncio.gather(*(reach(node) for node in nodes))
    return {node.id: why for node, why in zip(nodes, reasons, strict=True)}
