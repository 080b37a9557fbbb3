"""One micro-batch is one transaction, whoever dies when.

    look        is this run still the one that writes?        OffsetFetch
    fence       an epoch for this attempt                     InitProducerId
    judge       the marker: write, replay, or stop            OffsetFetch
    write       tasks produce under the epoch                 AddPartitionsToTxn, Produce
    mark        the marker, in the transaction                AddOffsetsToTxn, TxnOffsetCommit
    end         commit                                        EndTxn

Every attempt at a batch has an epoch of its own.  So nothing that comes late, be it of a task that
Spark believed dead, of an earlier attempt or of another driver, can be taken for a part of it.
InitProducerId returns when whatever was open before is aborted or committed for good; only then
does the marker tell the truth.  It is also the answer to every failure: whatever went wrong, and
also if nobody knows whether a commit has come through, the next attempt fences and looks at the
marker.

A run that begins takes over: it commits the marker as it is, with its run id in it.  From then on
an older driver that wakes up sees that it was replaced, and stops.  If it wakes up in the middle of
a batch it may fence the newer one once; but the newer one finds its own run id in the marker, and
goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from hightide.spark.blocking_client import Fenced, Identity, TopicPartition
from hightide.spark.sink import marker as markers
from hightide.spark.sink.marker import Claim, Marker, Refused, Replaced, Verdict
from hightide.spark.sink.rows import Unwritable
from hightide.wire.errors import ErrorCode, KafkaError

GROUP_SUFFIX = "-batches"
PAUSE_S = 0.1


class Stopped(Exception):
    """Somebody has stopped the query in the middle of a batch."""


class GaveUp(Exception):
    """A batch that failed as often as it may; the text has the last reason."""


class Transactor(Protocol):
    """What is asked of brokers here."""

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
"""Writes the rows of a batch under an identity; the topics that it wrote to."""


class Transactions:
    """The batches of one query, in the name that its transactions have.

    `home` is the topic that the marker is kept with, if it is known before the first batch.
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
        """The run that has taken over."""

    def batch(self, claim: Claim, write: Write, replay: Callable[[], None]) -> Verdict:
        """Write a batch, or recognise that it has been written.

        `replay` has its rows computed and thrown away: what Spark keeps besides, the state of
        aggregations, is to be the same as if they had been written.
        """
        is_computed = False
        for attempt in range(self._retries + 1):
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
                if attempt < self._retries and not _is_final(error):
                    self._pause(PAUSE_S * 2**attempt)
                    continue
                # Nobody shall wait for the end of a transaction that nobody goes on with.  If that
                # fails too, the first reason is still the one to tell.
                with suppress(Exception):
                    self._fence()
                if _is_final(error):
                    raise
                raise GaveUp(self._words(claim, error)) from None
        raise AssertionError("the last attempt returns or raises")

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
        """Whoever was replaced shall learn it without disturbing the one who writes now."""
        # What is open may be an attempt of our own, so its end is not waited for.  But Kafka
        # answers EndTxn before the group knows of it: what looks like another's may be out of date.
        found = self._read(require_stable=False)
        if not markers.is_owner(markers.newest(found, claim.query), claim):
            markers.check_owner(markers.newest(self._read(), claim.query), claim)

    def _take_over(self, claim: Claim) -> None:
        """Say in the marker that this run writes from now on; where nobody knows yet where the
        marker is to be, the first batch says it."""
        identity = self._fence()
        found = self._read()
        mark = markers.taken_over(markers.newest(found, claim.query), claim)
        self._mark(identity, self._home_of(found, claim, ()), mark)

    def _commit(self, identity: Identity, claim: Claim, home: TopicPartition | None) -> None:
        # Without a home nothing was written, now or before; to write nothing again is no harm.
        self._mark(identity, home, markers.written(claim))

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
        """Where the marker goes: with the output topic, else where it is, else with a topic that
        was written to."""
        if self._home is not None:
            return self._home, 0
        own = {
            where: marker for where, marker in found.items() if marker.query == claim.query
        } or found
        if own:
            return max(own, key=lambda where: (own[where].next_batch, where))
        return (min(topics), 0) if topics else None

    def _words(self, claim: Claim, error: Exception) -> str:
        tried = f"{self._retries + 1} attempts" if self._retries else "one attempt"
        words = f"Batch {claim.batch} of {self.name} was not written in {tried}: {error}"
        if isinstance(error, Fenced):
            words += (
                f" Either its transaction was open for more than {self._timeout_ms / 1000:g} s, "
                "which timeout_s allows, or others write in the same name."
            )
        return words


def _is_final(error: Exception) -> bool:
    """Whether another attempt would end in the same way."""
    if isinstance(error, Stopped | Unwritable):
        return True
    if not isinstance(error, KafkaError) or isinstance(error, Fenced):
        return False
    return not error.code.retriable and error.code != ErrorCode.INVALID_TXN_STATE
