"""Repairs damaged replicas: records that are damaged or lost here are copied from another replica.

    scrub, recovery, a reader or a follower ─▶ Damage ─▶ failed: another replica leads
                                                   └───▶ each hole: Fetch from another replica
                                                              └─▶ no hole is left ─▶ recovered

A damaged replica reports itself as failed, so that the controller elects another leader and removes
it from the ISR.  It refuses the damaged offsets, serves the others and goes on following.  The
missing records are fetched as a consumer fetches them, from any replica that has them, the leader
first.  They are taken only if they were written in the leader epochs that this log knows for their
offsets: two logs that agree on the epoch of a record agree on the record.  So nothing is truncated,
and no intact copy is given up before the repair is done.

If no other replica has the records, the holes stay, and consumers get CORRUPT_MESSAGE for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hightide.broker.replication.peers import Peers
from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_manager import ReplicaManager
from hightide.client import replica_fetch
from hightide.client.broker_connection import CODES, ConnectionFailed
from hightide.client.retry import Backoff
from hightide.core.partition.state import FailureKind
from hightide.log.damage import Hole
from hightide.log.repair import Fill
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError, WireError
from hightide.wire.hot.fetch_codec import Fetch, RequestedPartition
from hightide.wire.messages.replication import PublishedEndpoint

log = logging.getLogger(__name__)

PURPOSE = "repair"
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_FETCH_BYTES = 4 * 1024 * 1024
_CONSUMER = -1
_NO_SESSION = (0, -1)


class ReplicaRepair:
    """The damaged replicas of this broker, each with a task that repairs it."""

    def __init__(
        self,
        broker_id: int,
        replica_manager: ReplicaManager,
        peers: Peers,
        endpoint: Callable[[int], PublishedEndpoint | None],
    ) -> None:
        self._broker_id = broker_id
        self._replica_manager = replica_manager
        self._peers = peers
        self._endpoint = endpoint
        self._tasks: dict[Replica, asyncio.Task[None]] = {}

    def watch(self, replica: Replica) -> None:
        """Repair the replica whenever its log is found to be damaged."""
        replica.log.damage.changed = lambda: self._changed(replica)
        if replica.log.damage:
            self._changed(replica)

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _changed(self, replica: Replica) -> None:
        damage, failures = replica.log.damage, self._replica_manager.failures
        if not damage:
            if replica.failure is not None and replica.failure.kind is FailureKind.DAMAGED:
                failures.recovered(replica)
            return
        failures.failed(
            replica, FailureKind.DAMAGED, f"its records at {damage} are damaged or lost"
        )
        # The end of the log is intact, so the replica may follow while it is repaired.
        failures.copying(replica)
        if replica not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._run(replica))
            self._tasks[replica] = task
            task.add_done_callback(lambda _task: self._tasks.pop(replica, None))

    def _is_here(self, replica: Replica) -> bool:
        return self._replica_manager.by_id.get(replica.key) is replica

    async def _run(self, replica: Replica) -> None:
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        is_reported = False
        while replica.log.damage and self._is_here(replica):
            try:
                refusals = await self._fill_holes(replica)
            except Exception:
                log.exception("cannot repair %s-%d", replica.topic, replica.partition)
                refusals = ["an error inside this broker"]
            if refusals and not is_reported:
                is_reported = True
                log.error(
                    "%s-%d: the records at %s cannot be copied from another replica yet: %s",
                    replica.topic,
                    replica.partition,
                    replica.log.damage,
                    "; ".join(refusals),
                )
            # Damage that was just found is taken out of its file first.
            await backoff.pause()

    async def _fill_holes(self, replica: Replica) -> list[str]:
        """Try to fill each hole; return why some were not filled."""
        refusals: list[str] = []
        for hole in list(replica.log.damage.holes):
            sources = self._sources(replica)
            if not sources:
                refusals.append("no other replica is alive")
            for source, endpoint in sources:
                try:
                    await self._fill(replica, hole, source, endpoint)
                    break
                except (ConnectionFailed, KafkaError, Corrupt, WireError) as error:
                    refusals.append(f"broker {source}: {error}")
        return refusals

    def _sources(self, replica: Replica) -> list[tuple[int, PublishedEndpoint]]:
        """The other live replicas, the leader first."""
        state = replica.state
        if state is None:
            return []
        others = [member for member in state.replicas if member != self._broker_id]
        others.sort(key=lambda member: (member != state.leader, member not in state.isr))
        found = ((member, self._endpoint(member)) for member in others)
        return [(member, endpoint) for member, endpoint in found if endpoint is not None]

    async def _fill(
        self, replica: Replica, hole: Hole, source: int, endpoint: PublishedEndpoint
    ) -> None:
        log_ = replica.log
        while hole in log_.damage.holes:
            fill = Fill(log_, hole)
            failure: Exception | None = None
            try:
                await self._copy(replica, fill, endpoint)
            except (ConnectionFailed, KafkaError, Corrupt, WireError) as error:
                failure = error  # what was copied before is kept
            await asyncio.to_thread(fill.sync)
            if not self._is_here(replica) or not fill.is_current:
                fill.drop()
                return
            fill.install()
            if failure is not None:
                raise failure
            log.warning(
                "%s-%d: copied the records at offsets %d to %d, which were damaged or lost, from"
                " broker %d",
                replica.topic,
                replica.partition,
                hole.start,
                fill.next_offset - 1,
                source,
            )
            hole = Hole(fill.next_offset, hole.end)

    async def _copy(self, replica: Replica, fill: Fill, endpoint: PublishedEndpoint) -> None:
        """Copy the records of a hole, at most one segment of them."""
        segment_bytes = replica.log.config.segment_bytes
        while not fill.is_complete and fill.size < segment_bytes and fill.is_current:
            connection = await self._peers.connection(endpoint, PURPOSE)
            partition = RequestedPartition(
                replica.partition, -1, fill.next_offset, -1, -1, _FETCH_BYTES
            )
            request = Fetch(
                _CONSUMER, 0, 1, _FETCH_BYTES, 0, *_NO_SESSION,
                [(replica.topic_id.bytes, [partition])], [], b"",
            )  # fmt: skip
            response = await replica_fetch.fetch(connection, request)
            if response.error_code:
                raise KafkaError(CODES.get(response.error_code, ErrorCode.UNKNOWN_SERVER_ERROR))
            ((_, (received,)),) = response.topics
            if received.error_code:
                raise KafkaError(CODES.get(received.error_code, ErrorCode.UNKNOWN_SERVER_ERROR))
            if not received.records:
                raise Corrupt(f"it has no record at offset {fill.next_offset} yet")
            before = fill.next_offset
            fill.append(received.records)
            if fill.next_offset == before:
                raise Corrupt(f"it has no complete record batch at offset {before}")
