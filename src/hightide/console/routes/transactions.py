"""Transactions: the open ones, what each blocks, those that hang, and how to abort them.

GET  /api/v1/transactions
GET  /api/v1/transactions/hanging     asks every partition, so only when a person wants it
POST /api/v1/transactions/abort       transactional_id, or topic, partition, producer_id and
                                      start_offset of one that hangs
"""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hightide.console import open_transactions
from hightide.console.commands import command
from hightide.console.context import Console
from hightide.console.group_reset import Refused
from hightide.console.json_body import flag, json_body
from hightide.console.replies import failed, ok


def routes(console: Console) -> list[Route]:
    admin, bootstrap = console.admin, console.options.bootstrap

    async def look(_request: Request) -> Response:
        found = await open_transactions.look(admin, time.time_ns() // 1_000_000)
        for row in found["transactions"]:
            row["command"] = command(bootstrap, "txn", "abort", row["transactional_id"])
        return ok(found)

    async def hanging(_request: Request) -> Response:
        try:
            found = await open_transactions.hanging(admin)
        except Refused as refusal:
            return failed(503, str(refusal))
        for row in found:
            row["command"] = _abort_hanging(
                bootstrap, row["topic"], row["partition"], row["producer_id"], row["start_offset"]
            )
        return ok({"hanging": found, "command": command(bootstrap, "txn", "find-hanging")})

    async def abort(request: Request) -> Response:
        given, dry_run = await json_body(request), flag(request, "dry_run")
        name = given.get("transactional_id")
        topic = given.get("topic")
        numbers = [given.get(key) for key in ("partition", "producer_id", "start_offset")]
        line = ""
        try:
            if isinstance(name, str) and name:
                line = command(bootstrap, "txn", "abort", name)
                done = await open_transactions.abort_id(admin, name, dry_run=dry_run)
            elif isinstance(topic, str) and all(type(number) is int for number in numbers):
                partition, producer_id, start_offset = map(int, numbers)  # type: ignore[arg-type]
                line = _abort_hanging(bootstrap, topic, partition, producer_id, start_offset)
                done = await open_transactions.abort_hanging(
                    admin, (topic, partition), producer_id, start_offset, dry_run=dry_run
                )
            else:
                return failed(
                    400,
                    "Name a transactional_id, or the topic, partition, producer_id and "
                    "start_offset of a transaction that hangs.",
                )
        except Refused as refusal:
            return failed(409, str(refusal), command=line)
        return ok({"command": line, "dry_run": dry_run, **done})

    return [
        Route("/api/v1/transactions", look, methods=["GET"]),
        Route("/api/v1/transactions/hanging", hanging, methods=["GET"]),
        Route("/api/v1/transactions/abort", abort, methods=["POST"]),
    ]


def _abort_hanging(
    bootstrap: str, topic: str, partition: int, producer_id: int, start_offset: int
) -> str:
    place = ("--topic", f"{topic}/{partition}", "--producer-id", producer_id)
    return command(bootstrap, "txn", "abort", *place, "--start-offset", start_offset)
