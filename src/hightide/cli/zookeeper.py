"""`hightide zookeeper …`: run the embedded ZooKeeper; back up, restore and copy its znodes.

`start` is here only for `--help`; the entry point runs it without loading this module. kazoo is
loaded when a command runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hightide.cli import render
from hightide.cli.options import DryRun, Failed, OutputOption, wrong_usage
from hightide.cli.render import Output, say
from hightide.zookeeper import CREDENTIALS, environment_credentials

if TYPE_CHECKING:
    from hightide.zookeeper.copy_tree import Report
    from hightide.zookeeper.snapshot_locations import Access, Location

LOCATION = "A LOCATION is host:port[,host:port][/chroot] of a running ZooKeeper, an ensemble or an \
embedded one; or the directory or the file of a stopped embedded ZooKeeper."
KEPT = (
    "All persistent znodes are copied with their data and ACLs; ephemerals are left out. Versions \
and times are kept only between the directories of stopped embedded ZooKeepers. In a running one \
every znode starts at version 0, except /brokers/seqid, whose version generates broker ids; \
sequence numbers continue."
)

From = Annotated[str, typer.Option("--from", metavar="LOCATION", help="Where to read the znodes.")]
To = Annotated[str, typer.Option("--to", metavar="LOCATION", help="Where to write the znodes.")]
AllowChanges = Annotated[
    bool,
    typer.Option(
        "--allow-changes", help="Accept a snapshot of znodes that change while they are read."
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Delete the cluster at the target first.")
]
Force = Annotated[bool, typer.Option("--force", help="Copy even while brokers are registered.")]
CredentialsFile = Annotated[
    Path | None,
    typer.Option(
        "--credentials",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help=f"File with lines of user:password for ZooKeeper; default: ${CREDENTIALS}.",
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Use TLS, and trust the CA certificates in this PEM file.",
    ),
]

app = typer.Typer(
    no_args_is_help=True, help="Run the embedded ZooKeeper; back up, restore and copy its znodes."
)


@dataclass(frozen=True, slots=True)
class BackupRow:
    """What a backup contains."""

    source: str
    file: str
    znodes: int
    data_bytes: int
    ephemerals_left_out: int
    zxid: int


@app.command(context_settings={"allow_extra_args": True})
def start() -> None:
    """Run the embedded ZooKeeper as a separate process."""


@app.command(help=f"Back up the znodes of a cluster to a file.\n\n{LOCATION} {KEPT}")
def backup(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Replaced when the backup is complete.")
    ],
    source: From,
    allow_changes: AllowChanges = False,
    credentials: CredentialsFile = None,
    tls_ca: TlsCa = None,
    output: OutputOption = Output.TABLE,
) -> None:
    from hightide.zookeeper import backup as files
    from hightide.zookeeper.copy_tree import take_snapshot

    with (
        readable_errors(),
        opened(source, _access(credentials, tls_ca), may_be_new=False) as location,
    ):
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
    report_ephemerals(snapshot.ephemeral_count)


@app.command(help=f"Restore a backup into a ZooKeeper.\n\n{LOCATION} {KEPT}")
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

    with readable_errors():
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
    help="Copy the znodes of a cluster to another ZooKeeper; stop the brokers first.\n\n"
    f"{LOCATION} {KEPT} The source is not changed. Then set zookeeper.connect of the brokers to the"
    " target."
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
    with readable_errors():
        with opened(source, access, may_be_new=False) as location:
            name = location.name
            snapshot = take_snapshot(location, allow_changes=allow_changes)
        if not force:
            refuse_while_brokers_run(snapshot, name)
        with opened(target, access, may_be_new=True) as location:
            if location.name == name:
                wrong_usage("--from and --to are the same location")
            report = write_snapshot(
                snapshot, name, location, overwrite=overwrite, force=force, dry_run=dry_run
            )
    _show(report, output)


def _show(report: Report, output: Output) -> None:
    render.show_one(report, output)
    report_ephemerals(report.ephemerals_left_out)
    if not report.done:
        say("Dry run: nothing was changed.")


def report_ephemerals(count: int) -> None:
    if count:
        what = "1 ephemeral znode was" if count == 1 else f"{count} ephemeral znodes were"
        say(f"{what} left out: their sessions are not copied.")


def _access(file: Path | None, tls_ca: Path | None) -> Access:
    from hightide.zookeeper.snapshot_locations import Access

    text = file.read_text() if file is not None else environment_credentials()
    lines = tuple(filter(None, (line.strip() for line in text.splitlines())))
    for line in lines:
        user, colon, password = line.partition(":")
        if not (user and colon and password):
            wrong_usage(f"{file or '$' + CREDENTIALS}: expected lines of user:password")
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
def readable_errors() -> Iterator[None]:
    """Report the errors of these commands as one line."""
    from hightide.zookeeper.backup import DamagedBackup
    from hightide.zookeeper.copy_tree import CopyFailed, CopyRefused
    from hightide.zookeeper.snapshot_locations import LocationFailed
    from hightide.zookeeper.zookeeper_errors import ZooKeeperError

    try:
        yield
    except (LocationFailed, CopyRefused, CopyFailed, DamagedBackup, ZooKeeperError) as failure:
        raise Failed(str(failure)) from failure
