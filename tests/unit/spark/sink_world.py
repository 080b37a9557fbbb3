"""A small world in which drivers write batches in transactions, and anything may fail.

    Broker          one transactional id: epochs, an open transaction, what is committed
    Checkpoint      Spark's: the input of each batch, decided once, and how many batches are done
    Driver          the shipped `Transactions`, called as Spark would call it, in its own thread
    World           lets one driver at a time make one request, and chooses its fate

Only one thread runs at a time, so a world is as deterministic as the choices that are made in it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum

from hightide.client.broker_connection import ConnectionFailed
from hightide.spark.blocking_client import Fenced, Identity, TopicPartition
from hightide.spark.sink.marker import Claim, Refused, Replaced
from hightide.spark.sink.transactions import GaveUp, Transactions
from hightide.wire.errors import ErrorCode, KafkaError

BATCHES = 4
SIZE = 2


class Fate(Enum):
    """What happens to a request."""

    DONE = "done"
    LOST = "lost"  # it is lost; no response
    UNHEARD = "unheard"  # it is executed; the response is lost
    LATE = "late"  # no response; it arrives at any later time
    KILLED = "killed"  # the sender dies before it
    KILLED_AFTER = "killed after"  # the sender dies after it


class Killed(BaseException):
    """The driver is dead; no exception handler of the code under test may catch it."""


class Broker:
    """What InitProducerId, Produce, TxnOffsetCommit and EndTxn do, for one transactional id."""

    def __init__(self) -> None:
        self.epoch = -1
        self.open: list[str] | None = None
        self.open_marker: dict[TopicPartition, tuple[int, str]] = {}
        self.records: list[str] = []
        self.marker: dict[TopicPartition, tuple[int, str]] = {}
        self.decided: dict[TopicPartition, tuple[int, str]] = {}
        """What is committed, but the group has not heard of it."""
        self._last_commit = -1

    def complete(self) -> None:
        """Make the committed offsets visible to the group."""
        self.marker |= self.decided
        self.decided = {}

    def init(self) -> Identity:
        self.complete()
        self._drop()
        self.epoch += 1
        return Identity(1, self.epoch)

    def produce(self, identity: Identity, record: str) -> None:
        self._check(identity)
        self.open = [*(self.open or []), record]

    def mark(self, identity: Identity, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        self._check(identity)
        self.open = self.open or []
        self.open_marker |= offsets

    def end(self, identity: Identity) -> None:
        self._check(identity)
        if self.open is None:
            if self._last_commit == identity.epoch:
                return
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)
        self.records += self.open
        self.decided |= self.open_marker
        self._last_commit = identity.epoch
        self._drop()

    def time_out(self) -> None:
        """Abort a transaction that was open for too long, and fence its producer."""
        if self.open is not None:
            self._drop()
            self.epoch += 1

    def _check(self, identity: Identity) -> None:
        if identity.epoch != self.epoch:
            raise Fenced(ErrorCode.PRODUCER_FENCED)

    def _drop(self) -> None:
        self.open, self.open_marker = None, {}


class Checkpoint:
    """What Spark stores of a query."""

    def __init__(self, query: str = "q") -> None:
        self.query = query
        self.inputs: list[tuple[str, ...]] = []
        self.done = 0

    def planned(self, batch: int) -> tuple[str, ...]:
        if batch == len(self.inputs):
            self.inputs.append(tuple(f"{batch}.{row}" for row in range(SIZE)))
        return self.inputs[batch]


class Driver(threading.Thread):
    """Runs the batches of a query until it is done, dies or is stopped."""

    def __init__(self, world: World, name: str, home: str | None) -> None:
        super().__init__(name=name, daemon=True)
        self.world = world
        self.fate = Fate.DONE
        self.is_over = False
        self.failure: BaseException | None = None
        self.replayed: list[int] = []
        self._turn = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._sink = Transactions(self, "sink", home=home, pause=lambda _: None)

    # -- turns -------------------------------------------------------------------------------

    def step(self, fate: Fate) -> None:
        """Let it run to its next request, which has this fate."""
        self.fate = fate
        self._turn.release()
        self._back.acquire()
        if self.is_over:
            self.join()

    def run(self) -> None:
        self._turn.acquire()
        try:
            self._batches()
        except (Killed, Refused, Replaced, GaveUp, KafkaError) as failure:
            self.failure = failure
        finally:
            self.is_over = True
            self._back.release()

    def _request(self, work):
        """Wait for the turn, and execute the request or not, by its fate."""
        self._back.release()
        self._turn.acquire()
        match self.fate:
            case Fate.DONE:
                return work()
            case Fate.KILLED:
                raise Killed
            case Fate.KILLED_AFTER:
                self._try(work)
                raise Killed
            case Fate.UNHEARD:
                self._try(work)
            case Fate.LATE:
                self.world.late.append(work)
        raise ConnectionFailed("no response")

    @staticmethod
    def _try(work) -> None:
        with suppress(KafkaError):
            work()

    # -- Spark -------------------------------------------------------------------------------

    def _batches(self) -> None:
        checkpoint = self.world.checkpoint
        batch = checkpoint.done
        while batch < BATCHES:
            rows = checkpoint.planned(batch)
            claim = Claim(checkpoint.query, self.name, batch, str(rows))

            def write(identity, rows=rows):
                for row in rows:
                    self._request(lambda row=row: self.world.broker.produce(identity, row))
                return ["out"]

            def replay(batch=batch):
                self.replayed.append(batch)

            self._sink.batch(claim, write, replay)
            with suppress(ConnectionFailed):
                self._request(
                    lambda: None
                )  # It may die here, before Spark's commit log has the batch.
            batch += 1
            checkpoint.done = max(checkpoint.done, batch)

    # -- the broker, as `Transactions` asks it -----------------------------------------------

    def committed(self, group, *, require_stable):
        broker = self.world.broker
        # The real client asks again until no open transaction could change the response.
        while require_stable and broker.open_marker:
            self._request(lambda: None)
        if require_stable:
            broker.complete()
        return self._request(lambda: dict(broker.marker))

    def producer(self, transactional_id, timeout_ms):
        return self._request(self.world.broker.init)

    def commit_offsets_in_transaction(self, transactional_id, identity, group, offsets):
        self._request(lambda: self.world.broker.mark(identity, offsets))

    def end_transaction(self, transactional_id, identity, *, commit):
        assert commit
        self._request(lambda: self.world.broker.end(identity))


class World:
    """All drivers, the broker and the checkpoint."""

    def __init__(self, home: str | None = "out") -> None:
        self.broker = Broker()
        self.checkpoint = Checkpoint()
        self.drivers: list[Driver] = []
        self.late: list = []
        self._home = home

    def start(self) -> Driver:
        driver = Driver(self, f"run-{len(self.drivers)}", self._home)
        driver.start()
        self.drivers.append(driver)
        driver.step(Fate.DONE)
        return driver

    def alive(self) -> list[Driver]:
        return [driver for driver in self.drivers if not driver.is_over]

    def deliver(self, at: int) -> None:
        """Deliver one of the late requests now."""
        if self.late:
            Driver._try(self.late.pop(at % len(self.late)))

    def kill_all(self) -> None:
        for driver in self.alive():
            driver.step(Fate.KILLED)

    def finish(self) -> None:
        """Kill all drivers, and let one without failures do the rest."""
        self.kill_all()
        last = self.start()
        while not last.is_over:
            last.step(Fate.DONE)
        assert last.failure is None, last.failure
        self.broker.complete()
        while self.late:
            self.deliver(0)

    def check(self) -> None:
        """Check that no row is there twice, and that batches are whole and in order."""
        everything = [row for rows in self.checkpoint.inputs for row in rows]
        assert self.broker.records == everything[: len(self.broker.records)]
        assert len(self.broker.records) % SIZE == 0
