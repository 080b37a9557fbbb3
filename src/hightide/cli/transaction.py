"""`hightide txn …`: transactions, their producers, and how to abort those that hang.

A transaction is aborted in one of two ways.  By its transactional id: the command gets a new epoch
for the id, as a restarted producer does, so the coordinator aborts the transaction in all its
partitions and fences the old producer.  A *hanging* transaction is open in a partition, but no
coordinator knows of it.  It is aborted in that partition alone, with a marker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from hightide.cli import completion, render
from hightide.cli.moment import age, duration_ms, iso, now_ms
from hightide.cli.names import (
    Names,
    PartitionNames,
    named,
    one_topic,
    topic_option,
    topics_of,
)
from hightide.cli.options import (
    LOCALHOST,
    Bootstrap,
    DryRun,
    Failed,
    OutputOption,
    Yes,
    ask,
    confirm,
    spelt,
    warn_about_silent,
    wrong_usage,
)
from hightide.cli.render import Output
from hightide.client.admin import Admin
from hightide.client.model.cluster import Partition, by_topic
from hightide.client.model.transactions import (
    ABORTING,
    COMMITTING,
    ActiveProducer,
    TransactionDescription,
    TransactionsListing,
)
from hightide.wire.errors import ErrorCode, KafkaError

app = typer.Typer(
    no_args_is_help=True, help="Inspect transactions, find those that hang, and abort them."
)

STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)
Ids = Annotated[
    list[str],
    typer.Argument(metavar="TRANSACTIONAL-ID", autocompletion=completion.transactional_ids),
]
PRODUCER_COLUMNS = (
    *("topic", "partition", "producer_id", "producer_epoch", "last_sequence", "last_written"),
    *("start_offset",),
)


@dataclass(frozen=True, slots=True)
class TransactionDetails:
    transactional_id: str
    state: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started: str | None
    open_for: str | None
    partitions: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class ProducerRow:
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_written: str | None
    coordinator_epoch: int | None
    start_offset: int | None


@dataclass(frozen=True, slots=True)
class AbortRow:
    transaction: str
    result: str
    partitions: dict[str, list[int]]


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", help="Only ids in this state, e.g. Ongoing; repeatable."),
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option("--producer-id", min=0, help="Only this producer; repeatable."),
    ] = None,
    longer_than: Annotated[
        str | None,
        typer.Option(
            "--longer-than", metavar="DURATION", help="Only transactions open for longer, e.g. 5m."
        ),
    ] = None,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """List transactional ids and their states."""
    states = [spelt(text, STATES, "transaction state") for text in state or ()]
    limit_ms = -1 if longer_than is None else duration(longer_than)

    async def run(admin: Admin) -> TransactionsListing:
        return await admin.transactions.list(states, producer_id or (), limit_ms)

    found = ask(bootstrap, run)
    warn_about_silent(found.silent, "transactions")
    if not found.transactions:
        is_filtered = states or producer_id or longer_than
        render.say(f"There are no {'such ' if is_filtered else ''}transactional ids.")
    render.show(found.transactions, output)


@app.command()
def describe(
    ids: Ids, bootstrap: Bootstrap = LOCALHOST, output: OutputOption = Output.TABLE
) -> None:
    """Show the state of a transactional id, its producer, and the partitions of its transaction."""

    async def run(admin: Admin) -> list[TransactionDescription]:
        return [await admin.transactions.describe(name) for name in ids]

    found = [transaction_details(known, now_ms()) for known in ask(bootstrap, run)]
    if output is Output.JSON:
        render.show(found, output)
        return
    for number, details in enumerate(found):
        render.write("\n" if number else "")
        render.show_one(details, output)


@app.command()
def producers(
    partitions: PartitionNames,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the producers that partitions remember, and where their open transactions begin."""
    names = named(partitions)

    async def run(admin: Admin) -> Sequence[ActiveProducer]:
        return await admin.transactions.producers(await _partitions(admin, names))

    rows = [producer_row(producer) for producer in ask(bootstrap, run)]
    if not rows:
        render.say("These partitions remember no producers.")
    render.show(rows, output, PRODUCER_COLUMNS)


@app.command("find-hanging")
def find_hanging(
    topic: Annotated[
        list[str] | None,
        topic_option("Default: all."),
    ] = None,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Find hanging transactions: open in a partition, and unknown to every coordinator."""
    names = named(topic)

    async def run(admin: Admin) -> list[ActiveProducer]:
        return await _hanging(admin, await _partitions(admin, names))

    rows = [producer_row(producer) for producer in ask(bootstrap, run)]
    if not rows:
        render.say("No transaction hangs.")
    render.show(rows, output, PRODUCER_COLUMNS)


@app.command()
def abort(
    transactional_id: Annotated[
        str | None,
        typer.Argument(metavar="TRANSACTIONAL-ID", autocompletion=completion.transactional_ids),
    ] = None,
    topic: Annotated[
        str | None,
        topic_option("The partition of a hanging transaction."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="The partition, if --topic has none."),
    ] = None,
    start_offset: Annotated[
        int | None,
        typer.Option("--start-offset", min=0, help="The first offset of the transaction."),
    ] = None,
    producer_id: Annotated[
        int | None, typer.Option("--producer-id", min=0, help="The producer of the transaction.")
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Abort a transaction: by its transactional id, or by partition if it hangs.

    `abort ID` makes the coordinator abort the open transaction of the id, and fences its producer,
    which must then be restarted. `abort --topic TOPIC/PARTITION` with --start-offset or
    --producer-id, as `find-hanging` shows them, aborts a transaction in that one partition, and
    only if it hangs.
    """
    place: Partition | None = None
    if topic is not None:
        name, indexes = one_topic(topic, None if partition is None else [partition])
        place = (name, indexes[0]) if len(indexes) == 1 else None
    if (transactional_id is None) == (place is None):
        wrong_usage("give a TRANSACTIONAL-ID, or --topic TOPIC/PARTITION")
    if place is None:
        assert transactional_id is not None
        if start_offset is not None or producer_id is not None:
            wrong_usage("--start-offset and --producer-id need --topic TOPIC/PARTITION")
        row = _abort_id(bootstrap, transactional_id, yes=yes, dry_run=dry_run)
    else:
        if start_offset is None and producer_id is None:
            wrong_usage("give --start-offset or --producer-id to say which transaction")
        row = _abort_hanging(bootstrap, place, start_offset, producer_id, yes=yes, dry_run=dry_run)
    render.show([row], output)


def _abort_id(bootstrap: str, transactional_id: str, *, yes: bool, dry_run: bool) -> AbortRow:
    known = ask(bootstrap, lambda admin: admin.transactions.describe(transactional_id))
    touched = by_topic(known.partitions)
    if known.state in COMMITTING:
        raise Failed(
            f"The transaction of {transactional_id!r} is being committed and cannot be aborted."
        )
    if known.state in ABORTING:
        return AbortRow(transactional_id, "is being aborted", touched)
    if not known.is_open:
        return AbortRow(transactional_id, "has nothing open", touched)
    if dry_run:
        return AbortRow(transactional_id, "would be aborted", touched)
    confirm(f"Abort the transaction of {transactional_id!r} and fence its producer?", yes=yes)
    is_complete = ask(bootstrap, lambda admin: _fence(admin, known))
    render.say(f"The producer of {transactional_id!r} is fenced; it must be restarted.")
    if not is_complete:
        render.say("Some partitions have no leader; the coordinator writes their markers later.")
    return AbortRow(transactional_id, "aborted" if is_complete else "is being aborted", touched)


async def _fence(admin: Admin, known: TransactionDescription) -> bool:
    """Fence the producer; return whether all partitions have the abort marker.

    A partition without a leader gets its marker later.
    """
    try:
        await admin.transactions.fence_producer(known)
    except KafkaError as error:
        if error.code != ErrorCode.CONCURRENT_TRANSACTIONS:
            raise
        now = await admin.transactions.describe(known.transactional_id)
        if now.state not in ABORTING:
            raise
        return False
    return True


def _abort_hanging(
    bootstrap: str,
    place: Partition,
    start_offset: int | None,
    producer_id: int | None,
    *,
    yes: bool,
    dry_run: bool,
) -> AbortRow:
    async def look(admin: Admin, offset: int | None) -> ActiveProducer:
        found = matching(await admin.transactions.producers([place]), offset, producer_id)
        if found is None:
            raise Failed(
                f"{place[0]}/{place[1]} has no such open transaction; `hightide txn producers "
                f"{place[0]}/{place[1]}` lists its producers."
            )
        return found

    async def find(admin: Admin) -> ActiveProducer:
        meant = await look(admin, start_offset)
        owner = await _owner(admin, meant)
        if owner is not None:
            raise Failed(
                f"That transaction does not hang: it belongs to {owner.transactional_id!r}, in "
                f"state {owner.state}. `hightide txn abort {owner.transactional_id}` aborts it."
            )
        # The transaction may have ended while the coordinators were asked.
        return await look(admin, meant.start_offset)

    meant = ask(bootstrap, find)
    name = f"producer {meant.producer_id} from {meant.start_offset}"
    touched = {place[0]: [place[1]]}
    if dry_run:
        return AbortRow(name, "would be aborted", touched)
    confirm(f"Write an abort marker of {name} to {place[0]}/{place[1]}?", yes=yes)
    ask(bootstrap, lambda admin: admin.transactions.abort_hanging(meant))
    return AbortRow(name, "aborted", touched)


def matching(
    producers: Iterable[ActiveProducer], start_offset: int | None, producer_id: int | None
) -> ActiveProducer | None:
    """The first open transaction with this start offset or producer id."""
    for producer in producers:
        if (
            producer.start_offset is not None
            and start_offset in (None, producer.start_offset)
            and producer_id in (None, producer.producer_id)
        ):
            return producer
    return None


async def _hanging(admin: Admin, partitions: list[Partition]) -> list[ActiveProducer]:
    """Transactions that are open in their partition before and after all coordinators said that
    they do not know them."""
    known = await admin.transactions.producers(partitions)
    seen = [producer for producer in known if producer.start_offset is not None]
    suspects = [producer for producer in seen if await _owner(admin, producer) is None]
    again = {(producer.topic, producer.partition) for producer in suspects}
    still_open = {
        _key(producer) for producer in (await admin.transactions.producers(again) if again else ())
    }
    return [producer for producer in suspects if _key(producer) in still_open]


def _key(producer: ActiveProducer) -> tuple[str, int, int, int | None]:
    return producer.topic, producer.partition, producer.producer_id, producer.start_offset


async def _owner(admin: Admin, producer: ActiveProducer) -> TransactionDescription | None:
    """The transactional id that this transaction belongs to, as its coordinator reports it."""
    listed = await admin.transactions.list(producer_ids=[producer.producer_id])
    if listed.silent:
        warn_about_silent(listed.silent, "transactions")
        raise Failed("Hanging transactions can only be found when all brokers answer.")
    for listing in listed.transactions:
        try:
            known = await admin.transactions.describe(listing.transactional_id)
        except KafkaError as error:
            if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                continue
            raise
        if known.is_open and (producer.topic, producer.partition) in known.partitions:
            return known
    return None


async def _partitions(admin: Admin, names: Names) -> list[Partition]:
    """The named partitions, or all with a leader."""
    topics = await (admin.topics.describe(topics_of(names)) if names else admin.topics.list())
    return [
        (topic.name, partition.partition)
        for topic in topics
        for partition in topic.partitions
        if (not names and partition.leader >= 0)
        or (topic.name, None) in names
        or (topic.name, partition.partition) in names
    ]


def transaction_details(known: TransactionDescription, now_ms: int) -> TransactionDetails:
    started_ms = known.started_ms if known.is_open else None
    return TransactionDetails(
        transactional_id=known.transactional_id,
        state=known.state,
        coordinator=known.coordinator,
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
        timeout_ms=known.timeout_ms,
        started=iso(known.started_ms),
        open_for=age(started_ms, now_ms),
        partitions=by_topic(known.partitions),
    )


def producer_row(producer: ActiveProducer) -> ProducerRow:
    return ProducerRow(
        topic=producer.topic,
        partition=producer.partition,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=producer.last_sequence,
        last_written=iso(producer.last_ms),
        coordinator_epoch=producer.coordinator_epoch,
        start_offset=producer.start_offset,
    )


def duration(text: str) -> int:
    try:
        return duration_ms(text)
    except ValueError as error:
        wrong_usage(str(error))
