"""A plain model of the transactions in a log, computed from its batches, and a read_committed
reader."""

from __future__ import annotations

from typing import NamedTuple

from hightide.core.transactions.aborted_index import AbortedTransaction
from hightide.log.log import Log
from hightide.wire.batch import Record, records
from hightide.wire.control import ControlType, parse_marker
from tests.unit.log.log_helpers import stored_batches


class Ended(NamedTuple):
    """A transaction with its marker."""

    producer_id: int
    first_offset: int
    marker_offset: int
    is_commit: bool
    last_stable_offset: int


class TransactionHistory:
    """The transactions of a log, batch by batch."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self.ended: list[Ended] = []

    def wrote(self, producer_id: int, offset: int) -> None:
        self.open.setdefault(producer_id, offset)

    def marked(self, producer_id: int, offset: int, is_commit: bool) -> None:
        first = self.open.pop(producer_id, None)
        if first is not None:
            stable = min(self.open.values(), default=offset + 1)
            self.ended.append(Ended(producer_id, first, offset, is_commit, stable))

    def stable(self, high_watermark: int) -> int:
        undecided = [e.first_offset for e in self.ended if e.marker_offset >= high_watermark]
        return min([high_watermark, *self.open.values(), *undecided])

    def aborted(self) -> list[AbortedTransaction]:
        return [AbortedTransaction(e[0], e[1], e[2], e[4]) for e in self.ended if not e.is_commit]

    def aborted_between(self, start: int, end: int) -> list[AbortedTransaction]:
        return [e for e in self.aborted() if e.first_offset < end and e.last_offset >= start]


def history_of(log: Log) -> TransactionHistory:
    """Compute the history from the segments on disk."""
    history = TransactionHistory()
    for segment in log.segments:
        for position, header in segment.headers():
            if header.is_control:
                for record in records(segment.read_batch(position, header.size)):
                    marker = parse_marker(record)
                    assert marker is not None
                    is_commit = marker.type is ControlType.COMMIT
                    history.marked(header.producer_id, header.base_offset, is_commit)
            elif header.is_transactional:
                history.wrote(header.producer_id, header.base_offset)
    return history


def check_history(log: Log, history: TransactionHistory, high_watermark: int) -> None:
    """Check that the transaction state of a log agrees with its batches.

    For a transaction that began in a deleted segment, the log may know more than the batches.
    """
    first = log.segments.bases[0]
    transactions = log.transactions
    transactions.check_all()
    known = {producer_id: at for producer_id, at in transactions.opened.items() if at >= first}
    assert known == {p: at for p, at in history.open.items() if transactions.opened[p] >= first}
    assert all(at <= history.open.get(p, at) for p, at in transactions.opened.items())
    aborted = log.aborted_between(0, log.end_offset)
    markers = {entry.last_offset for entry in aborted}
    for entry in history.aborted():
        assert entry.last_offset in markers
    expected = {entry.last_offset: entry for entry in history.aborted()}
    for entry in aborted:
        if entry.first_offset >= first:
            assert entry[:3] == expected[entry.last_offset][:3]
            assert entry.last_stable_offset <= expected[entry.last_offset].last_stable_offset
    if len(known) == len(transactions.opened):
        for committed in range(max(high_watermark, log.start_offset), log.end_offset + 1):
            assert transactions.last_stable_offset(committed) <= history.stable(committed)
            if committed == log.end_offset:
                assert transactions.last_stable_offset(committed) == history.stable(committed)


def read_committed(log: Log) -> list[Record]:
    """Return the records that a read_committed consumer shows."""
    end = log.last_stable_offset
    aborted = sorted(
        log.aborted_between(log.start_offset, end), key=lambda entry: entry.first_offset
    )
    skipped: set[int] = set()
    shown: list[Record] = []
    for header, data in stored_batches(log, 300, end):
        while aborted and aborted[0].first_offset <= header.last_offset:
            skipped.add(aborted.pop(0).producer_id)
        found = list(records(data))
        if header.is_control:
            if found and parse_marker(found[0]).type is ControlType.ABORT:  # type: ignore[union-attr]
                skipped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipped):
            shown += found
    return [record for record in shown if record.offset >= log.start_offset]
