"""`--reset`: what an app remembers of its past, and making it forget that.

Three things remember: the checkpoint of each query, the group that shows its lag, and the group
with the number of the last micro-batch that it has written.  The last two could stay, since the
sink sees by the checkpoint's own id that a query begins a new life; but they would tell people what
is no longer so.  Topics and tables that were written are results and not memory, and stay.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hightide.client.admin import Admin
from hightide.client.connection import ConnectionFailed
from hightide.client.security import security_of
from hightide.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from hightide.spark.streams import App

BATCHES = "-batches"
PREFIX = "kafka."
CHECKPOINT = "checkpoint"


class ResetFailed(Exception):
    """State that cannot be removed from here; the text says what to do."""


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """One thing that remembers."""

    query: str
    kind: str
    name: str
    result: str = "would be removed"


def stored_progress(app: App, only: Sequence[str] = ()) -> list[StoredProgress]:
    """What there is to forget.  The queries of an earlier version of the app are among it."""
    if "://" in app.state:
        raise ResetFailed(
            f"The state is in {app.state}, which only Spark can reach. Remove the folder "
            f"{app.name} there yourself, or use another --state."
        )
    folder = Path(app.state) / app.name
    found = sorted(path.parent for path in folder.glob(f"*/{CHECKPOINT}"))
    names = [folder.name for folder in found if not only or folder.name in only]
    groups = [
        f"{app.group(query)}{end}"
        for query in dict.fromkeys((*names, *(only or app.queries)))
        for end in ("", BATCHES)
    ]
    existing = asyncio.run(_existing(app, groups))
    return [
        *(StoredProgress(name, "checkpoint and state", str(folder / name)) for name in names),
        *(
            StoredProgress(_query(app, group), "group", group)
            for group in groups
            if group in existing
        ),
    ]


def _query(app: App, group: str) -> str:
    return group.removeprefix(f"{app.name}-").removesuffix(BATCHES)


def forget(app: App, due: Sequence[StoredProgress]) -> list[StoredProgress]:
    """Remove it; the groups first, because without them a second try still finds the rest."""
    asyncio.run(_delete(app, [entry.name for entry in due if entry.kind == "group"]))
    for entry in due:
        if entry.kind != "group":
            shutil.rmtree(entry.name)
    return [StoredProgress(entry.query, entry.kind, entry.name, "removed") for entry in due]


def _admin(app: App) -> Admin:
    options = {name.removeprefix(PREFIX): value for name, value in app.client_options().items()}
    return Admin(app.brokers, security=security_of(options))


async def _existing(app: App, groups: Sequence[str]) -> set[str]:
    async with _admin(app) as admin:
        try:
            listing = await admin.groups.list()
        except ConnectionFailed as error:
            raise ResetFailed(f"The groups of the app cannot be looked up: {error}") from None
    return {group.group for group in listing.groups} & set(groups)


async def _delete(app: App, groups: Sequence[str]) -> None:
    async with _admin(app) as admin:
        for group in groups:
            try:
                await admin.groups.delete(group)
            except KafkaError as error:
                if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                    raise
