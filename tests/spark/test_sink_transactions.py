"""The exactly-once protocol on real brokers, without Spark: fast enough for every moment."""

from __future__ import annotations

import pyarrow as pa
import pytest

from hightide.spark.blocking_client import Fenced, shared_client
from hightide.spark.sink.delivery import deliver
from hightide.spark.sink.marker import Claim, Replaced, Verdict
from hightide.spark.sink.row_routing import Routes, encoded
from hightide.spark.sink.transactions import GaveUp, Transactions
from tests.spark.copying_queries import (
    ENDING,
    LOSSES,
    TAKING_OVER,
    WRITING,
    Dead,
    Mortal,
    committed,
)

ROWS = 30
PARTITIONS = 3


class Driver:
    """One run of a driver, which writes batches of numbers."""

    def __init__(self, cluster, name, life, moment=None, timeout_ms=60_000):
        self.real = shared_client({"bootstrap.servers": cluster.bootstrap})
        self.name, self.life = name, life
        asked = self.real if moment is None else Mortal(self.real, *moment)
        self.transactions = Transactions(
            asked, name, home=name, timeout_ms=timeout_ms, retries=1, pause=lambda _: None
        )
        self.replayed = []

    def batch(self, number, meanwhile=lambda: None) -> Verdict:
        rows = pa.RecordBatch.from_pydict(
            {"value": [b"%d" % row for row in range(number * ROWS, (number + 1) * ROWS)]}
        )
        routes = Routes({self.name: PARTITIONS}, self.name, is_transactional=True)

        def write(identity):
            batches = list(encoded([rows.slice(0, 7), rows.slice(7)], routes, round_bytes=1))
            deliver(self.real, batches[:1], identity, transactional_id=self.name)
            meanwhile()
            deliver(self.real, batches[1:], identity, transactional_id=self.name)
            return [self.name]

        claim = Claim("query", self.life, number)
        return self.transactions.batch(claim, write, lambda: self.replayed.append(number))


def create(cluster, name):
    shared_client({"bootstrap.servers": cluster.bootstrap}).create_topic(name, PARTITIONS)


def check(cluster, name, batches):
    seen = [int(record.value()) for record in committed(cluster.bootstrap, name, PARTITIONS)]
    assert sorted(seen) == list(range(batches * ROWS))


@pytest.mark.extended
def test_a_driver_may_die_at_every_request(broker):
    """As with Spark, each run starts with the batch that the last one did not finish."""
    create(broker, "requests")
    done = 0
    moments = [*TAKING_OVER, *WRITING, *ENDING[:-1]]
    for life, moment in enumerate(moments):
        with pytest.raises(GaveUp, match=Dead.__name__.lower()):
            Driver(broker, "requests", f"life-{life}", moment).batch(done)
        healthy = Driver(broker, "requests", f"healthy-{life}")
        healthy.batch(done)
        assert healthy.replayed == ([done] if moment == ("end_transaction", "after", 2) else [])
        done += 1
        check(broker, "requests", done)
    assert done == len(moments)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_an_attempt_of_unknown_end_is_cleared_up_by_the_next(broker, loss):
    name = f"unknown-{loss[0]}-{loss[1]}".replace("_", "-")
    create(broker, name)
    driver = Driver(broker, name, "life", loss)
    driver.batch(0)
    driver.batch(1)
    assert driver.replayed == []
    check(broker, name, 2)


def test_a_driver_that_sleeps_in_mid_batch_is_replaced_and_the_newer_goes_on(broker):
    create(broker, "asleep")
    older, newer = Driver(broker, "asleep", "older"), Driver(broker, "asleep", "newer")
    older.batch(0)

    def meanwhile():
        assert newer.batch(0) is Verdict.REPLAY
        newer.batch(1)

    with pytest.raises(Replaced, match="Run newer of this query has taken over"):
        older.batch(1, meanwhile)
    newer.batch(2)
    with pytest.raises(Replaced, match="Run newer"):
        older.batch(2)
    check(broker, "asleep", 3)


def test_a_newer_driver_that_is_fenced_once_by_an_older_one_goes_on(broker):
    create(broker, "woken")
    newer = Driver(broker, "woken", "newer")
    fences = []

    def meanwhile():
        if not fences:
            fences.append(newer.real.producer("woken"))

    newer.batch(0, meanwhile)
    check(broker, "woken", 1)
    assert len(fences) == 1
    with pytest.raises(Fenced):
        newer.real.end_transaction("woken", fences[0], commit=True)
