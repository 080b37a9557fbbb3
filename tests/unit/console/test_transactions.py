"""Open transactions in the console: what each blocks, which hang, and what an abort does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from hightide.client.model.cluster import OffsetAt, PartitionDescription
from hightide.client.model.transactions import (
    ActiveProducer,
    TransactionDescription,
    TransactionListing,
    TransactionsListing,
)
from hightide.console import open_transactions
from hightide.console.context import Console, Options
from hightide.console.group_reset import Refused
from hightide.console.replies import on_failure
from hightide.console.routes import transactions
from hightide.wire.errors import ErrorCode, KafkaError

NOW_MS = 1_700_000_100_000


def transaction(name: str = "shop-1", state: str = "Ongoing", **changed: Any) -> Any:
    known: dict[str, Any] = {
        "transactional_id": name,
        "state": state,
        "coordinator": 1,
        "producer_id": 7,
        "producer_epoch": 2,
        "timeout_ms": 60_000,
        "started_ms": NOW_MS - 90_000,
        "partitions": (("orders", 0), ("orders", 1)),
    }
    return TransactionDescription(**{**known, **changed})


def producer(partition: int, start: int | None, producer_id: int = 7) -> ActiveProducer:
    return ActiveProducer("orders", partition, producer_id, 2, 5, NOW_MS - 80_000, 0, start)


class FakeTransactions:
    def __init__(self, known: list[Any], producers: list[ActiveProducer]) -> None:
        self.known = {one.transactional_id: one for one in known}
        self.active = producers
        self.silent: dict[int, str] = {}
        self.done: list[Any] = []
        self.asked = 0
        self.ended_at = -1
        """The number of the look from which on nothing is open."""

    async def list(self, states: Any = (), producer_ids: Any = ()) -> TransactionsListing:
        found = [
            TransactionListing(one.transactional_id, one.state, one.producer_id, 1)
            for one in self.known.values()
            if (not states or one.state in states)
            and (not producer_ids or one.producer_id in producer_ids)
        ]
        return TransactionsListing(found, self.silent, frozenset())

    async def describe(self, name: str) -> TransactionDescription:
        if name not in self.known:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"There is no {name!r}.")
        return self.known[name]

    async def producers(self, partitions: Any) -> Sequence[ActiveProducer]:
        self.asked += 1
        if 0 <= self.ended_at <= self.asked:
            return []
        return [one for one in self.active if (one.topic, one.partition) in {*partitions}]

    async def fence_producer(self, known: TransactionDescription) -> tuple[int, int]:
        self.done.append(("fence", known.transactional_id))
        return 7, 3

    async def abort_hanging(self, meant: ActiveProducer) -> None:
        self.done.append(("abort", meant.topic, meant.partition, meant.start_offset))


class FakeCluster:
    """Partitions with a last stable offset and a high watermark."""

    def __init__(self, **ends: tuple[int, int]) -> None:
        self.ends = {("orders", int(name[1:])): both for name, both in ends.items()}
        self.router = SimpleNamespace(
            nodes={1: None}, timeout_ms=1000, ask_leaders=self.ask_leaders
        )
        self.records = SimpleNamespace(offsets=self.offsets)
        self.topics = SimpleNamespace(list=self.list)

    async def ask_leaders(self, wanted: Any, _ask: Any) -> dict[Any, OffsetAt]:
        return {key: OffsetAt(self.ends[key][0], -1, 0) for key in wanted}

    async def offsets(self, wanted: Any) -> dict[Any, OffsetAt]:
        return {key: OffsetAt(self.ends[key][1], -1, 0) for key in wanted}

    async def list(self) -> Sequence[Any]:
        partitions = [PartitionDescription(n, 1, 1, [1], [1], []) for _, n in self.ends]
        return [SimpleNamespace(name="orders", partitions=partitions)]


def admin_of(known: FakeTransactions, **ends: tuple[int, int]) -> Any:
    admin: Any = FakeCluster(**ends)
    admin.transactions = known
    return admin


def client(admin: Any) -> TestClient:
    console = Console(admin, None, Options("kafka:9092"))  # type: ignore[arg-type]
    app = Starlette(
        routes=transactions.routes(console), exception_handlers={KafkaError: on_failure}
    )
    return TestClient(app)


OPEN = [producer(0, 20), producer(1, 40)]


def test_a_transaction_holds_the_partitions_that_begin_with_it() -> None:
    known = FakeTransactions([transaction()], OPEN)
    found = asyncio.run(open_transactions.look(admin_of(known, p0=(20, 50), p1=(30, 60)), NOW_MS))
    (row,) = found["transactions"]
    first, second = row["partitions"]
    assert (first["start_offset"], first["last_stable_offset"], first["holds"]) == (20, 20, True)
    assert first["blocked"] == 30
    # Another transaction begins before this one, and holds the partition.
    assert (second["start_offset"], second["last_stable_offset"], second["holds"]) == (
        40,
        30,
        False,
    )
    assert (row["holds"], row["blocked"]) == (1, 30)
    assert (row["age_ms"], row["is_late"], row["can_abort"]) == (90_000, True, True)


def test_the_oldest_comes_first_and_what_has_ended_is_left_out() -> None:
    known = FakeTransactions(
        [
            transaction("new", started_ms=NOW_MS - 10, partitions=()),
            transaction("old", started_ms=NOW_MS - 99_000, partitions=()),
            transaction("done", "CompleteCommit"),
            transaction("ending", "PrepareCommit", started_ms=NOW_MS - 5, partitions=()),
        ],
        [],
    )
    found = asyncio.run(open_transactions.look(admin_of(known), NOW_MS))["transactions"]
    assert [row["transactional_id"] for row in found] == ["old", "new", "ending"]
    assert [row["can_abort"] for row in found] == [True, True, False]


def test_a_partition_without_a_leader_is_listed_without_numbers() -> None:
    known = FakeTransactions([transaction(partitions=(("orders", 0), ("gone", 3)))], OPEN)
    (row,) = asyncio.run(open_transactions.look(admin_of(known, p0=(20, 50)), NOW_MS))[
        "transactions"
    ]
    (gone,) = [one for one in row["partitions"] if one["topic"] == "gone"]
    assert (gone["last_stable_offset"], gone["holds"], gone["blocked"]) == (None, False, 0)


def test_what_no_coordinator_knows_hangs() -> None:
    known = FakeTransactions([transaction()], [*OPEN, producer(2, 5, producer_id=99)])
    admin = admin_of(known, p0=(20, 50), p1=(40, 60), p2=(5, 9))
    (found,) = asyncio.run(open_transactions.hanging(admin))
    assert (found["partition"], found["producer_id"], found["start_offset"]) == (2, 99, 5)
    assert (found["holds"], found["blocked"]) == (True, 4)


def test_what_ends_meanwhile_does_not_hang() -> None:
    known = FakeTransactions([], [producer(2, 5, producer_id=99)])
    known.ended_at = 2
    assert asyncio.run(open_transactions.hanging(admin_of(known, p2=(5, 9)))) == []


def test_without_all_coordinators_nothing_is_called_hanging() -> None:
    known = FakeTransactions([], [producer(2, 5, producer_id=99)])
    known.silent = {2: "It did not answer."}
    with pytest.raises(Refused, match="all brokers"):
        asyncio.run(open_transactions.hanging(admin_of(known, p2=(5, 9))))
    assert client(admin_of(known, p2=(5, 9))).get("/api/v1/transactions/hanging").status_code == 503


def test_partitions_that_nothing_holds_are_not_asked() -> None:
    known = FakeTransactions([], [])
    assert asyncio.run(open_transactions.hanging(admin_of(known, p0=(9, 9)))) == []
    assert known.asked == 0


URL = "/api/v1/transactions/abort"


def test_an_abort_by_id_fences_the_producer() -> None:
    known = FakeTransactions([transaction()], OPEN)
    browser = client(admin_of(known))
    dry = browser.post(f"{URL}?dry_run=1", json={"transactional_id": "shop-1"}).json()
    assert (dry["result"], known.done) == ("would be aborted", [])
    done = browser.post(URL, json={"transactional_id": "shop-1"}).json()
    assert done["result"] == "aborted"
    assert done["command"] == "hightide txn abort shop-1 --bootstrap kafka:9092"
    assert known.done == [("fence", "shop-1")]


@pytest.mark.parametrize(
    ("state", "status", "text"),
    [("PrepareCommit", 409, "being committed"), ("CompleteAbort", 409, "no open transaction")],
)
def test_what_cannot_be_aborted_is_refused(state: str, status: int, text: str) -> None:
    known = FakeTransactions([transaction(state=state)], [])
    reply = client(admin_of(known)).post(URL, json={"transactional_id": "shop-1"})
    assert (reply.status_code, known.done) == (status, [])
    assert text in reply.json()["error"]


def test_an_unknown_id_is_not_found() -> None:
    reply = client(admin_of(FakeTransactions([], []))).post(URL, json={"transactional_id": "x"})
    assert reply.status_code == 404


HANGING = {"topic": "orders", "partition": 2, "producer_id": 99, "start_offset": 5}


def test_a_hanging_transaction_is_aborted_in_its_partition() -> None:
    known = FakeTransactions([], [producer(2, 5, producer_id=99)])
    found = client(admin_of(known)).post(URL, json=HANGING).json()
    assert found["result"] == "aborted"
    assert found["command"] == (
        "hightide txn abort --topic orders/2 --producer-id 99 --start-offset 5"
        " --bootstrap kafka:9092"
    )
    assert known.done == [("abort", "orders", 2, 5)]


def test_one_that_a_coordinator_knows_is_not_aborted_behind_its_back() -> None:
    mine = transaction(producer_id=99, partitions=(("orders", 2),))
    known = FakeTransactions([mine], [producer(2, 5, producer_id=99)])
    reply = client(admin_of(known)).post(URL, json=HANGING)
    assert (reply.status_code, known.done) == (409, [])
    assert "by its id" in reply.json()["error"]


@pytest.mark.parametrize("body", [{}, {"topic": "orders"}, {**HANGING, "partition": True}])
def test_an_abort_of_nothing_is_refused(body: dict[str, Any]) -> None:
    assert client(admin_of(FakeTransactions([], []))).post(URL, json=body).status_code == 400
