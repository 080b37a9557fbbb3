"""One micro-batch is one transaction, whatever fails.

    look        is this run still the owner?                  OffsetFetch
    fence       a new producer epoch for this attempt         InitProducerId
    decide      by the marker: write, replay, or stop         OffsetFetch
    write       tasks produce under the epoch                 AddPartitionsToTxn, Produce
    mark        the marker, in the transaction                AddOffsetsToTxn, TxnOffsetCommit
    end         commit                                        EndTxn

Every attempt at a batch has its own producer epoch. So nothing late can become a part of it: no
task that Spark believed dead, no earlier attempt, no other driver. InitProducerId returns when the
previous transaction is aborted or committed for good; only then is the marker reliable. It is also
the answer to every failure: whatever went wrong, even if the outcome of a commit is unknown, the
next attempt fences and reads the marker.

A run that begins takes over: it commits the marker unchanged except for its run id. From then on an
older driver that wakes up sees that it was replaced, and stops. If it wakes up in the middle of a
batch, it may fence the newer one once; but the newer one finds its own run id in the marker, and
continues.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from hightide.client.retry import Backoff
from hightide.spark.blocking_client import Fenced, Identity, TopicPartition
from hightide.spark.sink import marker as markers
from hightide.spark.sink.marker import Claim, Marker, Refused, Replaced, Verdict
from hightide.spark.sink.rows import Unwritable
from hightide.wire.errors import ErrorCode, KafkaError

GROUP_SUFFIX = "-batches"
PAUSE_S = 0.1


class Stopped(Exception):
    """The query was stopped in the middle of a batch."""


class GaveUp(Exception):
    """A batch that failed in all attempts; the text has the last reason."""


class Transactor(Protocol):
    """The requests to brokers that are needed here."""

    def committed(
        self, group: str, *, require_stable: bool
    ) -> dict[TopicPartition, tuple[int, str]]: ...

    def producer(self, transactional_id: str, timeout_ms: int) -> Identity: ...

    def commit_offsets_in_transaction(
        self,
        transactional_id: str,
        identity: Identity,
        group: str,
        offsets: Mapping[TopicPartition, tuple[int, str]],
    ) -> None: ...

    def end_transaction(
        self, transactional_id: str, identity: Identity, *, commit: bool
    ) -> None: ...


Write = Callable[[Identity], Sequence[str]]
"""Writes the rows of a batch under an identity, and returns the topics that it wrote to."""


class Transactions:
    """The batches of one query, under one transactional id.

    `home` is the topic whose partition holds the marker, if it is known before the first batch.
    """

    def __init__(
        self,
        brokers: Transactor,
        name: str,
        *,
        home: str | None = None,
        timeout_ms: int = 300_000,
        retries: int = 3,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self.group = name + GROUP_SUFFIX
        self._brokers = brokers
        self._home = home
        self._timeout_ms = timeout_ms
        self._retries = retries
        self._pause = pause
        self._owner = ""
        """The run whose id is in the marker, as far as this object wrote it."""

    def batch(self, claim: Claim, write: Write, replay: Callable[[], None]) -> Verdict:
        """Write a batch, or recognise that it is already written.

        `replay` computes the rows and drops them, so that the state that Spark keeps for
        aggregations is the same as if they had been written.
        """
        is_computed = False
        backoff = Backoff(PAUSE_S, math.inf, attempts=self._retries + 1)
        while True:
            try:
                identity, found = self._begin(claim)
                verdict = markers.decide(markers.newest(found, claim.query), claim)
                if verdict is Verdict.WRITE:
                    topics = write(identity)
                    is_computed = True
                    self._commit(identity, claim, self._home_of(found, claim, topics))
                elif not is_computed:
                    replay()
                return verdict
            except (Refused, Replaced):
                raise
            except Exception as error:
                pause_s = None if _is_final(error) else backoff.next_s()
                if pause_s is not None:
                    self._pause(pause_s)
                    continue
                # Abort, so that consumers do not wait for an abandoned transaction. If that fails
                # too, the first error is still the one to report.
                with suppress(Exception):
                    self._fence()
                if _is_final(error):
                    raise
                raise GaveUp(self._failure(claim, error)) from None

    # -- the steps ---------------------------------------------------------------------------

    def _begin(self, claim: Claim) -> tuple[Identity, dict[TopicPartition, Marker]]:
        if self._owner != claim.run:
            self._take_over(claim)
        if self._owner == claim.run:
            self._look(claim)
        identity = self._fence()
        found = self._read()
        if self._owner == claim.run:
            markers.check_owner(markers.newest(found, claim.query), claim)
        return identity, found

    def _look(self, claim: Claim) -> None:
        """Let a run that was replaced find out without disturbing the current one."""
        # The open transaction may be this run's own attempt, so do not wait for its end. But Kafka
        # answers EndTxn before the group has the offsets: a foreign marker may be out of date.
        found = self._read(require_stable=False)
        if not markers.is_owner(markers.newest(found, claim.query), claim):
            markers.check_owner(markers.newest(self._read(), claim.query), claim)

    def _take_over(self, claim: Claim) -> None:
        """Put this run's id into the marker.

        If the partition of the marker is not known yet, the first batch does it.
        """
        identity = self._fence()
        found = self._read()
        mark = markers.takeover_marker(markers.newest(found, claim.query), claim)
        self._mark(identity, self._home_of(found, claim, ()), mark)

    def _commit(self, identity: Identity, claim: Claim, home: TopicPartition | None) -> None:
        # Without a home, nothing was ever written; writing nothing again does no harm.
        self._mark(identity, home, markers.batch_marker(claim))

    def _mark(self, identity: Identity, home: TopicPartition | None, mark: Marker) -> None:
        if home is None:
            return
        offsets = {home: (mark.next_batch, mark.metadata)}
        self._brokers.commit_offsets_in_transaction(self.name, identity, self.group, offsets)
        self._brokers.end_transaction(self.name, identity, commit=True)
        self._owner = mark.run

    def _fence(self) -> Identity:
        try:
            return self._brokers.producer(self.name, self._timeout_ms)
        except KafkaError as error:
            if error.code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise
            raise Refused(
                f"The brokers allow no transaction of {self._timeout_ms / 1000:g} s. Give "
                "exactly_once a smaller timeout_s, or the brokers more transaction.max.timeout.ms."
            ) from None

    def _read(self, *, require_stable: bool = True) -> dict[TopicPartition, Marker]:
        return markers.read(self._brokers.committed(self.group, require_stable=require_stable))

    def _home_of(
        self, found: Mapping[TopicPartition, Marker], claim: Claim, topics: Sequence[str]
    ) -> TopicPartition | None:
        """Return the partition of the marker.

        It belongs to the output topic, else stays where it is, else goes to a topic that was
        written to.
        """
        if self._home is not None:
            return self._home, 0
        own = {
            where: marker for where, marker in found.items() if marker.query == claim.query
        } or found
        if own:
            return max(own, key=lambda where: (own[where].next_batch, where))
        return (min(topics), 0) if topics else None

    def _failure(self, claim: Claim, error: Exception) -> str:
        attempts = f"{self._retries + 1} attempts" if self._retries else "one attempt"
        text = f"Batch {claim.batch} of {self.name} was not written in {attempts}: {error}"
        if isinstance(error, Fenced):
            text += (
                f" Either its transaction was open for more than {self._timeout_ms / 1000:g} s, "
                "the limit of timeout_s, or another writer uses the same name."
            )
        return text


def _is_final(error: Exception) -> bool:
    """Return whether another attempt would end in the same way."""
    if isinstance(error, Stopped | Unwritable):
        return True
    if not isinstance(error, KafkaError) or isinstance(error, Fenced):
        return False
    return not error.code.retriable and error.code != ErrorCode.INVALID_TXN_STATE
