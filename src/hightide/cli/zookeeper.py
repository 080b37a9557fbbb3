"""`hightide coordinator …`: run the embedded coordinator, save its tree, and move it elsewhere.

`start` stands here for `--help` only; the entry point runs it without loading this module. kazoo
is loaded when a command runs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hightide.cli import render
from hightide.cli.options import DryRun, Failed, OutputOption, misused
from hightide.cli.render import Output, say

if TYPE_CHECKING:
    from hightide.zookeeper.copy_tree import Report
    from hightide.zookeeper.snapshot_locations import Access, Location

CREDENTIALS = "HIGHTIDE_COORDINATOR_CREDENTIALS"
LOCATION = "A PLACE is host:port[,host:port][/chroot] of a coordinator that runs, embedded or a \
ZooKeeper ensemble; or the directory or the file of an embedded one that is stopped."
KEPT = "Kept are all persistent znodes with their data and access lists. Ephemerals are left out. \
Versions and times are kept only from a stopped coordinator's directory to another's; over the \
wire every znode begins at version 0, but for /brokers/seqid, whose version makes broker ids, and \
sequence numbers go on where they were."

From = Annotated[str, typer.Option("--from", metavar="PLACE", help="Where the tree is.")]
To = Annotated[str, typer.Option("--to", metavar="PLACE", help="Where the tree shall be.")]
AllowChanges = Annotated[
    bool,
    typer.Option("--allow-changes", help="Take the tree though it changes while it is read."),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Delete the cluster that is at the target first.")
]
Force = Annotated[bool, typer.Option("--force", help="Also while brokers are registered.")]
CredentialsFile = Annotated[
    Path | None,
    typer.Option(
        "--credentials",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help=f"Lines of user:password to show to coordinators; else ${CREDENTIALS}.",
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Talk TLS, and trust the certificates in this PEM file.",
    ),
]

app = typer.Typer(
    no_args_is_help=True, help="Run the embedded coordinator; save and move what it knows."
)


@dataclass(frozen=True, slots=True)
class BackupRow:
    """What went into a file."""

    source: str
    file: str
    znodes: int
    data_bytes: int
    ephemerals_left_out: int
    zxid: int


@app.command(context_settings={"allow_extra_args": True})
def start() -> None:
    """Run the embedded coordinator alone."""


@app.command(help=f"Save a coordinator's tree in a file.\n\n{LOCATION} {KEPT}")
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Replaced when all is written.")],
    source: From,
    allow_changes: AllowChanges = False,
    credentials: CredentialsFile = None,
    tls_ca: TlsCa = None,
    output: OutputOption = Output.TABLE,
) -> None:
    from hightide.zookeeper import backup as files
    from hightide.zookeeper.copy_tree import take_snapshot

    with in_words(), opened(source, _access(credentials, tls_ca), may_be_new=False) as location:
        snapshot = take_snapshot(location, allow_changes=allow_changes)
        files.write(files.Backup(snapshot, location.name, time.time_ns() // 1_000_000), file)
    render.show_one(
        BackupRow(
            source=source,
            file=str(file),
            znodes=len(snapshot.nodes),
            data_bytes=snapshot.data_bytes,
            ephemerals_left_out=snapshot.ephemeral_count,
            zxid=snapshot.zxid,
        ),
        output,
    )
    say_what_was_left_out(snapshot.ephemeral_count)


@app.command(help=f"Put a saved tree into a coordinator.\n\n{LOCATION} {KEPT}")
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False)],
    target: To,
    overwrite: Overwrite = False,
    force: Force = False,
    dry_run: DryRun = False,
    credentials: CredentialsFile = None,
    tls_ca: TlsCa = None,
    output: OutputOption = Output.TABLE,
) -> None:
    from hightide.zookeeper import backup as files
    from hightide.zookeeper.copy_tree import write_snapshot

    with in_words():
        saved = files.read(file)
        with opened(target, _access(credentials, tls_ca), may_be_new=True) as location:
            report = write_snapshot(
                saved.snapshot,
                str(file),
                location,
                overwrite=overwrite,
                force=force,
                dry_run=dry_run,
            )
    _show(report, output)


@app.command(
    help=f"Move a cluster's tree to another coordinator; stop the brokers first.\n\n{LOCATION} {KEPT}"
    " The source is not changed. Then give the brokers the new zookeeper.connect."
)
def copy(
    source: From,
    target: To,
    overwrite: Overwrite = False,
    force: Force = False,
    allow_changes: AllowChanges = False,
    dry_run: DryRun = False,
    credentials: CredentialsFile = None,
    tls_ca: TlsCa = None,
    output: OutputOption = Output.TABLE,
) -> None:
    from hightide.zookeeper.copy_tree import refuse_while_brokers_run, take_snapshot, write_snapshot

    access = _access(credentials, tls_ca)
    with in_words():
        with opened(source, access, may_be_new=False) as location:
            name = location.name
            snapshot = take_snapshot(location, allow_changes=allow_changes)
        if not force:
            refuse_while_brokers_run(snapshot, name)
        with opened(target, access, may_be_new=True) as location:
            if location.name == name:
                misused("--from and --to are the same place")
            report = write_snapshot(
                snapshot, name, location, overwrite=overwrite, force=force, dry_run=dry_run
            )
    _show(report, output)


def _show(report: Report, output: Output) -> None:
    render.show_one(report, output)
    say_what_was_left_out(report.ephemerals_left_out)
    if not report.done:
        say("Nothing was changed.")


def say_what_was_left_out(count: int) -> None:
    if count:
        what = "1 ephemeral znode was" if count == 1 else f"{count} ephemeral znodes were"
        say(f"{what} left out: those who made them make them again.")


def _access(file: Path | None, tls_ca: Path | None) -> Access:
    from hightide.zookeeper.snapshot_locations import Access

    text = file.read_text() if file is not None else os.environ.get(CREDENTIALS, "")
    lines = tuple(filter(None, (line.strip() for line in text.splitlines())))
    for line in lines:
        user, colon, password = line.partition(":")
        if not (user and colon and password):
            misused(f"{file or '$' + CREDENTIALS} should have user:password")
    return Access(lines, tls_ca)


@contextlib.contextmanager
def opened(text: str, access: Access, *, may_be_new: bool) -> Iterator[Location]:
    from hightide.zookeeper.snapshot_locations import location

    found = location(text, access, may_be_new=may_be_new)
    try:
        yield found
    finally:
        found.close()


@contextlib.contextmanager
def in_words() -> Iterator[None]:
    """What can go wrong here, as the command line says it."""
    from hightide.zookeeper.backup import DamagedBackup
    from hightide.zookeeper.copy_tree import CopyFailed, CopyRefused
    from hightide.zookeeper.errors import ZooKeeperError
    from hightide.zookeeper.snapshot_locations import LocationFailed

    try:
        yield
    except (LocationFailed, CopyRefused, CopyFailed, DamagedBackup, ZooKeeperError) as failure:
        raise Failed(str(failure)) from failure
