"""Producers, a transaction coordinator and partitions, each with its own view of what happened.

The state machines are the real ones.  Around them are logs in memory that are committed later or
never, leaders and coordinators that are replaced by brokers with at least the committed records,
and a network that loses, repeats and delays.  `check` has what must hold at any time, `finish` what
must hold when everything has come to rest.

Clients behave like Kafka's: a client that gave up on a batch requests another epoch before it
continues, and no client commits with an unanswered batch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from hightide.core.controller.cluster_state import Partition
from hightide.core.partition.producer_state import ProducerStates
from hightide.core.transactions.aborted_index import AbortedIndex
from hightide.core.transactions.open_transactions import PartitionTransactions
from hightide.core.transactions.pending_markers import PendingMarkers
from hightide.core.transactions.transaction import NO_PRODUCER, Producer, Transaction
from hightide.core.transactions.transaction_coordinator import (
    Answer,
    Changes,
    Limits,
    TransactionCoordinator,
    Write,
)
from hightide.core.transactions.verification import VerificationGuard, produce_error
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from hightide.wire.records.transaction_state import decode_value, encode_value

PARTITIONS: list[Partition] = [("a", 0), ("b", 0)]
TIMEOUT_MS = 100
LIMITS = Limits(max_timeout_ms=1_000, abort_interval_ms=10)
PRODUCE_VERSION = 9
EPOCH_BUMPS = 2

RETRIABLE = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
)


class Broken(AssertionError):
    """A promise to a client was broken."""


def promise(kept: bool, text: str) -> None:
    if not kept:
        raise Broken(text)


class Tag(NamedTuple):
    """A transaction, numbered by its client."""

    client: int
    number: int


class Entry(NamedTuple):
    """The record or the marker at one offset of a partition."""

    producer: Producer
    sequence: int = -1
    tag: Tag | None = None
    is_commit: bool = False
    coordinator_epoch: int = -1

    @property
    def is_marker(self) -> bool:
        return self.tag is None


# -- requests ----------------------------------------------------------------------------------


@dataclass(eq=False)
class Request:
    client: Client
    producer: Producer


@dataclass(eq=False)
class Init(Request):
    pass


@dataclass(eq=False)
class Add(Request):
    partition: Partition


@dataclass(eq=False)
class End(Request):
    is_commit: bool


@dataclass(eq=False)
class Produce(Request):
    partition: Partition
    sequence: int
    tag: Tag


@dataclass(eq=False)
class Question:
    """A leader asks the coordinator whether a transaction contains its partition."""

    request: Produce
    guard: VerificationGuard
    incarnation: int
    error: ErrorCode | None = None


# -- clients -----------------------------------------------------------------------------------


class Client:
    def __init__(self, number: int, transactional_id: str, version: int) -> None:
        self.id = number
        self.transactional_id = transactional_id
        self.version = version
        self.producer = NO_PRODUCER
        self.phase = "new"
        self.transactions = 0
        self.added: set[Partition] = set()
        self.sequences: defaultdict[Partition, int] = defaultdict(int)
        self.unanswered: dict[Partition, Produce] = {}
        self.asking: Request | None = None
        self.must_abort = False

    @property
    def tag(self) -> Tag:
        return Tag(self.id, self.transactions)

    def next_request(self, choice: int) -> Request | None:
        """Return the next request; the same again while it is unanswered."""
        if self.phase == "dead":
            return None
        if self.asking is None:
            options = self.options()
            made = options[choice % len(options)]
            if isinstance(made, Produce):
                self.unanswered[made.partition] = made
                return made
            if isinstance(made, Add) and self.phase == "ready":
                self.phase, self.transactions = "open", self.transactions + 1
            self.asking = made
        return self.asking

    def options(self) -> list[Request]:
        if self.phase in ("new", "bump"):
            return [Init(self, self.producer if self.phase == "bump" else NO_PRODUCER)]
        options: list[Request] = []
        if not self.must_abort:
            options += [Add(self, self.producer, p) for p in PARTITIONS if p not in self.added]
        if self.phase == "open":
            if not self.must_abort:
                options += [
                    self.unanswered.get(p)
                    or Produce(self, self.producer, p, self.sequences[p], self.tag)
                    for p in sorted(self.added)
                ]
                if not self.unanswered:
                    options += [End(self, self.producer, True)] * 2
            options.append(End(self, self.producer, False))
        return options

    def answered(self, request: Request, answer: Answer, world: World) -> None:
        if isinstance(request, Produce):
            self._produced(request, answer, world)
            return
        if request is not self.asking or answer.error in RETRIABLE:
            return
        self.asking = None
        if answer.error != ErrorCode.NONE:
            self.phase = "dead"
        elif isinstance(request, Init):
            world.given(answer.producer, self)
            self.producer, self.phase = answer.producer, "ready"
            self.sequences.clear()
        elif isinstance(request, Add):
            self.added.add(request.partition)
        elif isinstance(request, End):
            self._ended(request, answer, world)

    def _produced(self, request: Produce, answer: Answer, world: World) -> None:
        if self.unanswered.get(request.partition) is not request or answer.error in RETRIABLE:
            return
        if answer.error != ErrorCode.NONE:
            self.must_abort = True
            return
        del self.unanswered[request.partition]
        self.sequences[request.partition] += 1
        world.acknowledged(request)

    def _ended(self, request: End, answer: Answer, world: World) -> None:
        world.told[self.tag] = request.is_commit
        is_doubtful = self.must_abort or bool(self.unanswered)
        self.added.clear()
        self.unanswered.clear()
        self.must_abort = False
        self.phase = "ready"
        if self.version >= EPOCH_BUMPS:
            world.given(answer.producer, self)
            self.producer = answer.producer
            self.sequences.clear()
        elif is_doubtful:
            self.phase = "bump"


# -- a partition -------------------------------------------------------------------------------


class DataPartition:
    """A partition's leader, and its log."""

    verifies = True

    def __init__(self, world: World, name: Partition) -> None:
        self.world, self.name = world, name
        self.log: list[Entry] = []
        self.high_watermark = self.incarnation = self.stable = 0
        self.waiting: list[tuple[int, Produce]] = []
        self.rebuild()

    def rebuild(self) -> None:
        """A new leader rebuilds its state from the log."""
        self.producers = ProducerStates()
        self.transactions = PartitionTransactions(self.producers, verifies=self.verifies)
        self.index = AbortedIndex()
        for offset, entry in enumerate(self.log):
            self.follow(offset, entry)
        self.transactions.high_watermark_moved(self.high_watermark)

    def follow(self, offset: int, entry: Entry) -> None:
        producer = entry.producer
        if not entry.is_marker:
            self.producers.appended(*producer, entry.sequence, offset, offset, 0, 0, True)
            self.transactions.appended(producer.id, offset)
            return
        self.producers.marked(*producer, entry.coordinator_epoch, 0, 0)
        aborted = self.transactions.marked(producer.id, offset, entry.is_commit)
        if aborted:
            self.index.append(aborted)

    def append(self, entry: Entry) -> int:
        self.log.append(entry)
        self.follow(len(self.log) - 1, entry)
        return len(self.log) - 1

    def arrived(self, request: Produce, guard: VerificationGuard | None = None) -> None:
        producer = request.producer
        try:
            repeated = self.producers.check(*producer, request.sequence, 1)
            if repeated is not None:
                self.repeated(request, repeated.last_offset)
                return
            if guard is None:
                guard = self.transactions.begin_verification(producer, request.sequence, 0)
                if guard is not None:
                    question = Question(request, guard, self.incarnation)
                    self.world.questions.append(question)
                    return
            self.transactions.check(producer.id, producer.epoch, request.sequence, True, guard)
        except KafkaError as error:
            self.world.reply(request, Answer(error.code))
            return
        offset = self.append(Entry(producer, request.sequence, request.tag))
        self.waiting.append((offset, request))

    def repeated(self, request: Produce, offset: int) -> None:
        """The batch is in the log; acknowledge it when it is committed."""
        if offset < self.high_watermark:
            self.world.reply(request, Answer(ErrorCode.NONE))
        else:
            self.waiting.append((offset, request))

    def verified(self, question: Question) -> None:
        assert question.error is not None
        if question.incarnation != self.incarnation:
            return
        if question.error == ErrorCode.NONE:
            self.arrived(question.request, question.guard)
        else:
            error = produce_error(question.error, PRODUCE_VERSION)
            self.world.reply(question.request, Answer(error))

    def mark(self, marker: WritableTxnMarker) -> ErrorCode:
        producer = Producer(marker.producer_id, marker.producer_epoch)
        try:
            is_wanted = self.transactions.marker_asked(
                producer, marker.coordinator_epoch, marker.transaction_version
            )
        except KafkaError as error:
            return error.code
        if is_wanted:
            entry = Entry(
                producer,
                is_commit=marker.transaction_result,
                coordinator_epoch=marker.coordinator_epoch,
            )
            self.append(entry)
        return ErrorCode.NONE

    def commit(self) -> None:
        self.high_watermark = len(self.log)
        self.transactions.high_watermark_moved(self.high_watermark)
        for offset, request in self.waiting:
            assert offset < self.high_watermark
            self.world.reply(request, Answer(ErrorCode.NONE))
        self.waiting.clear()

    def fail_over(self, kept: int) -> None:
        """Another replica leads, with all committed records and perhaps more."""
        del self.log[self.high_watermark + kept :]
        self.incarnation += 1
        self.stable = 0
        self.waiting.clear()
        self.rebuild()

    def visible(self) -> list[Entry]:
        """Return what a read_committed consumer sees."""
        end = self.transactions.last_stable_offset(self.high_watermark)
        aborted = sorted(self.index.in_range(0, end)[0], key=lambda entry: entry.first_offset)
        passed_over: set[int] = set()
        seen = []
        for offset, entry in enumerate(self.log[:end]):
            while aborted and aborted[0].first_offset <= offset:
                passed_over.add(aborted.pop(0).producer_id)
            if entry.is_marker:
                passed_over.discard(entry.producer.id)
            elif entry.producer.id not in passed_over:
                seen.append(entry)
        return seen


# -- all together --------------------------------------------------------------------------------


@dataclass(eq=False)
class Delivery:
    """Markers in flight to one leader."""

    broker: int
    request: WriteTxnMarkersRequest
    errors: dict[tuple[int, Partition], ErrorCode] = field(default_factory=dict)
    void: set[int] = field(default_factory=set)
    has_arrived: bool = False
    is_awaited: bool = True


class World:
    PartitionModel: type[DataPartition] = DataPartition
    TransactionCoordinator: type[TransactionCoordinator] = TransactionCoordinator
    compares_replay = True

    def __init__(self, version: int, transactional_ids: str) -> None:
        self.version = version
        self.now_ms = 1_000
        self.partitions = {name: self.PartitionModel(self, name) for name in PARTITIONS}
        self.records: list[tuple[str, Transaction | None]] = []
        self.committed = 0
        self.writes: list[tuple[Write, Request | None, int]] = []
        self.pending_markers = PendingMarkers()
        self.deliveries: list[Delivery] = []
        self.requests: list[Request] = []
        self.questions: list[Question] = []
        self.replies: list[tuple[Request, Answer]] = []
        self.clients: list[Client] = []
        self.holders: dict[Producer, Client] = {}
        self.told: dict[Tag, bool] = {}
        self.wants_commit: set[Tag] = set()
        self.acked: set[tuple[Partition, Producer, int]] = set()
        self._said: dict[str, Transaction] = {}
        self._replayed = 0
        self._next_producer_id = 0
        self._next_client = 0
        for transactional_id in transactional_ids:
            self.start(transactional_id)
        self.machine = self.TransactionCoordinator(0, LIMITS)
        self.machine.loaded(self.now_ms)

    def client(self, which: int) -> Client:
        """Return one of the clients; a new one replaces one that gave up."""
        client = self.clients[which % len(self.clients)]
        if client.phase == "dead":
            self.clients.remove(client)
            client = self.start(client.transactional_id)
        return client

    def start(self, transactional_id: str) -> Client:
        client = Client(self._next_client, transactional_id, self.version)
        self._next_client += 1
        self.clients.append(client)
        return client

    # What clients were answered ----------------------------------------------------------------

    def given(self, producer: Producer, client: Client) -> None:
        holder = self.holders.setdefault(producer, client)
        promise(holder is client, f"I15: clients {holder.id} and {client.id} both are {producer}")

    def acknowledged(self, request: Produce) -> None:
        self.acked.add((request.partition, request.producer, request.sequence))

    # The network ------------------------------------------------------------------------------

    def send(self, request: Request) -> None:
        if request not in self.requests:
            self.requests.append(request)
        if isinstance(request, End) and request.is_commit:
            self.wants_commit.add(request.client.tag)
        del self.requests[:-12]

    def arrive(self, request: Request) -> None:
        if isinstance(request, Produce):
            self.partitions[request.partition].arrived(request)
            return
        # In version 1 nothing tells a late AddPartitionsToTxn or EndTxn from one for the next
        # transaction; clients must avoid that.
        is_late = request.client.asking is not request and not isinstance(request, Init)
        if is_late and self.version < EPOCH_BUMPS:
            return
        self.follow(self.decide(request, None), request)

    def decide(self, request: Request, new_id: int | None) -> Changes:
        tx, machine = request.client.transactional_id, self.machine
        if isinstance(request, Init):
            changes = machine.init_asked(tx, TIMEOUT_MS, request.producer, self.now_ms, new_id)
        elif isinstance(request, Add):
            asked = [request.partition]
            changes = machine.partitions_asked(tx, request.producer, asked, self.now_ms)
        else:
            assert isinstance(request, End)
            changes = machine.end_asked(
                tx, request.producer, request.is_commit, self.version, self.now_ms, new_id
            )
        if changes.needs_producer_id:
            self._next_producer_id += 1
            return self.decide(request, self._next_producer_id)
        return changes

    def follow(self, changes: Changes, request: Request | None = None) -> None:
        if changes.answer is not None and request is not None:
            self.reply(request, changes.answer)
        if changes.ending is not None:
            self.pending_markers.add(changes.ending)
            self.send_markers()
        if changes.write is not None:
            write = changes.write
            self.records.append((write.transactional_id, write.after))
            self.writes.append((write, request, len(self.records)))

    def reply(self, request: Request, answer: Answer) -> None:
        self.replies.append((request, answer))
        del self.replies[:-12]

    def reply_arrives(self, which: int) -> None:
        request, answer = self.replies.pop(which)
        request.client.answered(request, answer, self)

    # The coordinator --------------------------------------------------------------------------

    def commit_records(self) -> None:
        """Commit all records of the transaction log."""
        while self.writes:
            write, request, end = self.writes.pop(0)
            self.committed = end
            self.follow(self.machine.written(write, self.now_ms), request)
        self.committed = len(self.records)

    def refuse_record(self) -> None:
        """Refuse the newest record."""
        write, request, _ = self.writes.pop()
        self.records.pop()
        error = ErrorCode.NOT_ENOUGH_REPLICAS
        self.follow(self.machine.write_failed(write, error, self.now_ms), request)

    def delay_record(self, which: int) -> None:
        write, request, end = self.writes[which]
        self.writes[which] = (write, None, end)
        self.follow(self.machine.write_delayed(write), request)

    def replay(self) -> dict[str, Transaction]:
        """Decode the committed records, and return the state that they give."""
        for transactional_id, after in self.records[self._replayed : self.committed]:
            self._said.pop(transactional_id, None)
            if after is not None:
                data = encode_value(after.to_value())
                self._said[transactional_id] = Transaction.of(decode_value(data))
        self._replayed = self.committed
        return self._said

    def fail_over(self, kept: int) -> None:
        """Another broker coordinates, with all committed records and perhaps more."""
        del self.records[self.committed + kept :]
        self.committed = len(self.records)
        self.writes.clear()
        self.pending_markers = PendingMarkers()
        for delivery in self.deliveries:
            delivery.is_awaited = False
        self.machine = self.TransactionCoordinator(self.machine.epoch + 1, LIMITS)
        for transactional_id, transaction in self.replay().items():
            self.machine.apply(transactional_id, transaction)
        for changes in self.machine.loaded(self.now_ms):
            self.follow(changes)

    def tick(self) -> None:
        for write in self.machine.tick(self.now_ms):
            self.follow(Changes(write=write))
        self.send_markers()

    def answer_question(self, question: Question) -> None:
        request = question.request
        found = self.machine.verification_asked(
            request.client.transactional_id, request.producer, [request.partition]
        )
        question.error = found[request.partition]

    def verification_arrives(self, which: int) -> None:
        question = self.questions.pop(which)
        if question.error is not None:
            self.partitions[question.request.partition].verified(question)

    # Markers ----------------------------------------------------------------------------------

    def send_markers(self) -> None:
        due = self.pending_markers.due(PARTITIONS.index, self.now_ms)
        assert not due.progress
        for broker, request in due.requests.items():
            self.deliveries.append(Delivery(broker, request))
        late = [delivery for delivery in self.deliveries if not delivery.is_awaited]
        for delivery in late[:-4]:
            self.deliveries.remove(delivery)

    def completed(self, producer: Producer) -> None:
        """Drop the copies of its markers in flight: in version 1 a coordinator makes sure that
        there are none when it completes.  Copies of its predecessors may remain."""
        for delivery in self.deliveries:
            delivery.void |= {
                marker.producer_id
                for marker in delivery.request.markers
                if marker.producer_id == producer.id
                and marker.coordinator_epoch == self.machine.epoch
                and marker.transaction_version < EPOCH_BUMPS
            }

    def markers_arrive(self, delivery: Delivery) -> None:
        for marker in delivery.request.markers:
            for topic in marker.topics:
                for index in topic.partition_indexes:
                    if marker.producer_id not in delivery.void:
                        name = (topic.name, index)
                        error = self.partitions[name].mark(marker)
                        delivery.errors[marker.producer_id, name] = error
        delivery.has_arrived = True

    def delivery_ends(self, delivery: Delivery, *, is_lost: bool) -> None:
        """The response comes when the markers are committed, or never."""
        if not delivery.is_awaited:
            return
        delivery.is_awaited = False
        if is_lost or not delivery.has_arrived:
            self.pending_markers.unanswered(delivery.broker, self.now_ms)
            return
        self.partitions[PARTITIONS[delivery.broker]].commit()
        response = WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(
                                    partition_index=index,
                                    error_code=delivery.errors.get(
                                        (marker.producer_id, (topic.name, index)),
                                        ErrorCode.REQUEST_TIMED_OUT,
                                    ),
                                )
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in delivery.request.markers
            ]
        )
        for progress in self.pending_markers.answered(delivery.broker, response, self.now_ms):
            if progress.is_fenced:
                self.machine.fenced(progress.ending)
            else:
                done = self.machine.marked(progress.ending, progress.marked, self.now_ms)
                if done.write is not None:
                    self.completed(progress.ending.producer)
                self.follow(done)

    def partition_fails_over(self, name: Partition, kept: int) -> None:
        self.partitions[name].fail_over(kept)
        # Unacknowledged markers stay unacknowledged: the responses are about another log.
        for delivery in self.deliveries:
            if PARTITIONS[delivery.broker] == name:
                delivery.has_arrived = False

    # Without faults ---------------------------------------------------------------------------

    def calm(self, request: Request | None = None) -> None:
        """Deliver and commit everything in flight, once; of requests and responses only those of
        `request`, if given."""
        self.commit_records()
        self.send_markers()
        for delivery in list(self.deliveries):
            if delivery.is_awaited:
                self.markers_arrive(delivery)
                self.delivery_ends(delivery, is_lost=False)
        self.commit_records()
        for question in list(self.questions):
            if request in (None, question.request):
                self.answer_question(question)
                self.verification_arrives(self.questions.index(question))
        for name, partition in self.partitions.items():
            if request is None or (isinstance(request, Produce) and request.partition == name):
                partition.commit()
        for reply in list(self.replies):
            if request in (None, reply[0]):
                self.reply_arrives(self.replies.index(reply))

    def finish(self) -> None:
        """Clients leave, the rest of their requests arrives late, and time passes."""
        for _ in range(3):
            for request in list(self.requests):
                self.arrive(request)
            self.calm()
            self.now_ms += TIMEOUT_MS
        for _ in range(8):
            self.now_ms += TIMEOUT_MS
            self.tick()
            self.calm()
        self.check()
        seen = {name: partition.visible() for name, partition in self.partitions.items()}
        for name, partition in self.partitions.items():
            promise(
                partition.transactions.last_stable_offset(len(partition.log)) == len(partition.log),
                f"I17: a transaction in {name} never ends",
            )
        self.check_atomicity(seen)

    def check_atomicity(self, seen: dict[Partition, list[Entry]]) -> None:
        fates: dict[Tag, set[bool]] = {}
        for name, partition in self.partitions.items():
            shown = {(entry.producer, entry.sequence) for entry in seen[name]}
            for entry in partition.log:
                if entry.tag is not None:
                    is_shown = (entry.producer, entry.sequence) in shown
                    fates.setdefault(entry.tag, set()).add(is_shown)
        for tag, found in fates.items():
            promise(len(found) == 1, f"I16: {tag} is seen in part")
            if tag in self.told:
                promise(found == {self.told[tag]}, f"I16: {tag} was told {self.told[tag]}")

    # Invariants -------------------------------------------------------------------------------

    def check(self) -> None:
        self.machine.check()
        if self.compares_replay:
            promise(self.machine.transactions == self.replay(), "the records say something else")
        for name, partition in self.partitions.items():
            self.check_partition(name, partition)

    def check_partition(self, name: Partition, partition: DataPartition) -> None:
        partition.transactions.check_all()
        stable = partition.transactions.last_stable_offset(partition.high_watermark)
        promise(partition.stable <= stable <= partition.high_watermark, f"I9: {name} went back")
        partition.stable = stable
        written = [(e.producer, e.sequence) for e in partition.log if not e.is_marker]
        promise(len(written) == len({*written}), f"I14: something is twice in {name}")
        committed = {*written}
        for at, producer, sequence in self.acked:
            if at == name:
                promise((producer, sequence) in committed, f"I14: {producer} {sequence} is lost")
        for entry in partition.visible():
            assert entry.tag is not None
            promise(entry.tag in self.wants_commit, f"I16: {entry.tag} is seen, and not committed")
            promise(self.told.get(entry.tag, True), f"I16: {entry.tag} is seen, and was aborted")
        self.check_markers(name, partition)

    def check_markers(self, name: Partition, partition: DataPartition) -> None:
        """Each marker ends one transaction, and coordinator epochs never go back."""
        opened: dict[int, Tag] = {}
        ended: set[Tag] = set()
        epochs: dict[int, int] = {}
        for entry in partition.log:
            producer_id = entry.producer.id
            if entry.tag is not None:
                tag = opened.setdefault(producer_id, entry.tag)
                promise(tag == entry.tag, f"I17: {entry.tag} joined {tag} in {name}")
                promise(tag not in ended, f"I17: {tag} goes on after its marker in {name}")
                continue
            before = epochs.get(producer_id, -1)
            promise(before <= entry.coordinator_epoch, f"I17: an old coordinator wrote in {name}")
            epochs[producer_id] = entry.coordinator_epoch
            if producer_id in opened:
                ended.add(opened.pop(producer_id))
