"""`--reset`: find and delete the stored progress of an app.

Progress is stored in three places: the checkpoint of each query, the group that shows its lag, and
the group with the number of its last written micro-batch. The groups could stay, because the sink
recognises a new checkpoint by its id; but they would show outdated offsets. Topics and tables are
results and stay.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hightide.client.admin import Admin
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.security import security_of
from hightide.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from hightide.spark.streams import App

BATCHES = "-batches"
PREFIX = "kafka."
CHECKPOINT = "checkpoint"


class ResetFailed(Exception):
    """Progress that cannot be deleted from here; the text says what to do."""


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """One place where progress is stored."""

    query: str
    kind: str
    name: str
    result: str = "would be removed"


def stored_progress(app: App, only: Sequence[str] = ()) -> list[StoredProgress]:
    """Find the stored progress, also of queries of an earlier version of the app."""
    if "://" in app.state:
        raise ResetFailed(
            f"The state is in {app.state}, which only Spark can reach. Delete the folder "
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


def delete(app: App, progress: Sequence[StoredProgress]) -> list[StoredProgress]:
    """Delete progress; the groups first, because without them a second try still finds the rest."""
    asyncio.run(_delete_groups(app, [entry.name for entry in progress if entry.kind == "group"]))
    for entry in progress:
        if entry.kind != "group":
            shutil.rmtree(entry.name)
    return [StoredProgress(entry.query, entry.kind, entry.name, "removed") for entry in progress]


def _admin(app: App) -> Admin:
    options = {name.removeprefix(PREFIX): value for name, value in app.client_options().items()}
    return Admin(app.brokers, security=security_of(options))


async def _existing(app: App, groups: Sequence[str]) -> set[str]:
    async with _admin(app) as admin:
        try:
            listing = await admin.groups.list()
        except ConnectionFailed as error:
            raise ResetFailed(f"The groups of the app cannot be listed: {error}") from None
    return {group.group for group in listing.groups} & set(groups)


async def _delete_groups(app: App, groups: Sequence[str]) -> None:
    async with _admin(app) as admin:
        for group in groups:
            try:
                await admin.groups.delete(group)
            except KafkaError as error:
                if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                    raise
