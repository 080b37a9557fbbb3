"""Applies what the controller publishes: replicas are created, led, followed and removed.

    PublishState ─▶ MetadataImage ─▶ role changes, in order ─▶ Replica, LogManager, ReplicaFetchers

Messages are applied one after the other, each completely: a later message builds upon an earlier
one.  The response to the controller means that its message is applied.

A controller epoch is believed only if ZooKeeper has it: the first message of a controller waits
until `/controller` and `/controller_epoch` have been read.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from hightide.broker.membership.dynamic_configs import TopicConfigs
from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_fetcher import ReplicaFetchers
from hightide.broker.replication.replica_manager import ReplicaManager
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.retry import Backoff
from hightide.core.metadata.image import (
    Delete,
    Follow,
    Lead,
    MetadataImage,
    NoLeader,
    RoleChange,
    StateChanged,
    Stop,
)
from hightide.core.partition.state import NO_BROKER, FailureKind, PartitionState
from hightide.log.checkpoint import topic_id_text
from hightide.log.disk import DiskFailed
from hightide.log.log import Log
from hightide.log.log_manager import LogManager
from hightide.settings import Broker as Settings
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from hightide.wire.messages.replication import PublishStateRequest
from hightide.zookeeper import znodes
from hightide.zookeeper.interface import ZooKeeper
from hightide.zookeeper.zookeeper_errors import ZooKeeperError

log = logging.getLogger(__name__)

_FIRST_PROOF_S, _LONGEST_PROOF_S = 0.1, 2.0
_PROOF_TIMEOUT_MS = 2000
_UNKNOWN = PartitionState((), NO_BROKER, -1, ())
_CHANGES_PER_TURN = 50  # creating a log takes some 100 µs; then the connections get a turn


class StateChanges:
    """Receives PublishState messages and changes the roles of replicas accordingly."""

    def __init__(
        self,
        image: MetadataImage,
        zookeeper: ZooKeeper,
        log_manager: LogManager,
        replica_manager: ReplicaManager,
        fetchers: ReplicaFetchers,
        configs: TopicConfigs,
        settings: Callable[[], Settings],
        broker_epoch: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        self.is_initialized = asyncio.Event()
        """Set when the first complete state has been applied."""
        self.applied_epoch = -1
        """The broker epoch whose roles were applied last."""
        self.on_topics: Callable[[Sequence[str]], None] = lambda _deleted: None
        """Called with the deleted topics when topics or partitions were added or deleted."""
        self._image = image
        self._zookeeper = zookeeper
        self._log_manager = log_manager
        self._replica_manager = replica_manager
        self._fetchers = fetchers
        self._configs = configs
        self._settings = settings
        self._broker_epoch = broker_epoch
        self._now_ms = now_ms
        self._lock = asyncio.Lock()
        # The controller and its epoch, as ZooKeeper had them.
        self._confirmed = self._doubted = (NO_BROKER, -1)
        # Roles that could not be taken, because of a disk failure for example; they are retried.
        self._failed: dict[tuple[uuid.UUID, int], Lead | Follow | NoLeader] = {}
        # Logs were created or removed, and the disk failed when their names were synced.
        self._has_unsynced_names = False
        # Replicas whose log has another topic id than ZooKeeper, and their roles if it is right.
        self._contradicted: dict[Replica, Lead | Follow | NoLeader] = {}
        self._confirming: asyncio.Task[None] | None = None
        # Logs of topics that may be in ZooKeeper although the controller does not publish them.
        self._doubtful: set[tuple[str, int]] = set()

    async def receive(self, message: PublishStateRequest) -> ErrorCode:
        """Apply a message of the controller."""
        refusal = await self._check_controller(message)
        if refusal != ErrorCode.NONE:
            return refusal
        async with self._lock:
            image = self._image
            new_topics = [
                topic.name for topic in message.topics if not image.topic_by_id(topic.topic_id)
            ]
            received = image.receive(message, self._broker_epoch())
            if received.error_code != ErrorCode.NONE:
                return received.error_code
            # Before the new topics' settings are read: a new topic may have a deleted one's name.
            for name in received.deleted_topics:
                self._configs.forget(name)
            await self._read_settings(new_topics)
            await self._apply(received.changes)
            self.applied_epoch = message.broker_epoch
            if received.topics_changed:
                self.on_topics(received.deleted_topics)
            if received.brokers_changed:
                image.departed.published(image.brokers, self._now_ms())
                self._replica_manager.brokers_changed(image.live, image.shutting_down)
            if image.is_complete and not self.is_initialized.is_set():
                await self._set_aside_strays(message.removed_topics)
                self.is_initialized.set()
            elif self._doubtful and received.topics_changed:
                self._resolve_published()
            return ErrorCode.NONE

    async def _check_controller(self, message: PublishStateRequest) -> ErrorCode:
        """Ask ZooKeeper whether the sender is the controller, in the epoch that it claims.

        STALE_CONTROLLER_EPOCH makes a controller ask ZooKeeper too, so it is not for a claim that
        ZooKeeper does not confirm.  Such a claim may be true a little later, where a server of the
        ensemble lags: a real controller sends its message again.
        """
        claimed = (message.controller_id, message.controller_epoch)
        is_stale = (
            message.controller_epoch < self._image.controller_epoch
            or message.broker_epoch != self._broker_epoch()
        )
        if claimed == self._confirmed or is_stale:
            return ErrorCode.NONE  # what is stale is refused later
        try:
            epoch, _ = await self._zookeeper.get(znodes.CONTROLLER_EPOCH)
            known_epoch = znodes.decode_controller_epoch(epoch)
            if message.controller_epoch < known_epoch:
                return ErrorCode.STALE_CONTROLLER_EPOCH
            data, _ = await self._zookeeper.get(znodes.CONTROLLER)
            known = (znodes.Controller.decode(data).broker_id, known_epoch)
        except ZooKeeperError as failure:
            self._doubt(claimed, str(failure))
            return ErrorCode.REQUEST_TIMED_OUT
        if claimed != known:
            self._doubt(claimed, "in ZooKeeper it is broker {} in epoch {}".format(*known))
            return ErrorCode.REQUEST_TIMED_OUT
        self._confirmed = claimed
        return ErrorCode.NONE

    def _doubt(self, claimed: tuple[int, int], why: str) -> None:
        if claimed != self._doubted:  # the sender repeats its message many times
            self._doubted = claimed
            log.warning(
                "broker %d says that it is the controller in epoch %d; nothing of its message is"
                " applied: %s",
                *claimed,
                why,
            )

    @property
    def not_taken(self) -> list[str]:
        """The partitions whose role could not be taken yet."""
        return [f"{role.topic}-{role.index}" for role in self._failed.values()]

    async def retry(self) -> None:
        """Retry roles that failed, and decide about logs whose topic may have been deleted."""
        async with self._lock:
            failed, self._failed = self._failed, {}
            await self._apply(failed.values())
            await self._resolve_deleted()

    async def _read_settings(self, topics: list[str]) -> None:
        try:
            await self._configs.read(topics)
        except ZooKeeperError as failure:
            # They are read when ZooKeeper answers; until then the topics have cautious settings.
            log.warning(
                "cannot read the settings of %d new topics, which are read later: %s",
                len(topics),
                failure,
            )

    async def _apply(self, changes: Iterable[RoleChange]) -> None:
        known = self._log_manager.changes
        for done, change in enumerate(changes, 1):
            await self._change(change)
            if done % _CHANGES_PER_TURN == 0:
                await asyncio.sleep(0)
        if self._log_manager.changes != known or self._has_unsynced_names:
            await self._sync_names()

    async def _sync_names(self) -> None:
        self._has_unsynced_names = True
        try:
            await asyncio.to_thread(self._log_manager.sync_names)
            self._has_unsynced_names = False
        except DiskFailed as failure:
            log.error("the names of new logs are not on disk yet: %s", failure)

    async def _change(self, change: RoleChange) -> None:
        match change:
            case Delete():
                await self._delete(change)
            case Stop():
                self._failed.pop((change.topic_id, change.index), None)
                why = f"its replicas are on {list(change.state.replicas)}"
                self._drop(change.topic, change.topic_id, change.index, "deleted", why)
            case StateChanged():
                self._state_changed(change)
            case _:
                # A role that could not be taken is obsolete now.
                self._failed.pop((change.topic_id, change.index), None)
                try:
                    self._begin(change)
                except DiskFailed as failure:
                    log.error("cannot open %s-%d: %s", change.topic, change.index, failure)
                    self._failed[change.topic_id, change.index] = change
                except Exception:
                    # A failure of one partition must not keep the others from being led.
                    log.exception("cannot change the role of %s-%d", change.topic, change.index)
                    self._failed[change.topic_id, change.index] = change

    def _state_changed(self, change: StateChanged) -> None:
        key = (change.topic_id, change.index)
        if (failed := self._failed.get(key)) is not None:
            self._failed[key] = replace(failed, state=change.state)
        replica = self._replica_manager.get_by_id(change.topic_id.bytes, change.index)
        if replica is not None:
            replica.published(change.state)
            if (waiting := self._contradicted.get(replica)) is not None:
                self._contradicted[replica] = replace(waiting, state=change.state)

    # -- roles -----------------------------------------------------------------------------

    def _begin(self, change: Lead | Follow | NoLeader) -> None:
        replica = self._open(change.topic, change.topic_id, change.index)
        state = change.state
        if replica in self._contradicted:
            self._wait_for_proof(replica, change)
            return
        if isinstance(change, Follow):
            if replica.follower is not None and replica.leader_epoch == state.leader_epoch:
                replica.published(state)  # only the leader's address has changed
            else:
                replica.follow(state)
            self._fetchers.follow(replica, change.endpoint)
            return
        self._fetchers.leave(replica)
        if isinstance(change, NoLeader):
            replica.rest(state)
            return
        replica.lead(
            state,
            self._image.broker_id,
            self._broker_epoch(),
            self._image.live,
            self._image.shutting_down,
            self._settings().replica_lag_time_max_ms,
            self._now_ms(),
        )

    def _open(self, topic: str, topic_id: uuid.UUID, index: int) -> Replica:
        replica = self._replica_manager.get_by_id(topic_id.bytes, index)
        if replica is not None:
            return replica
        key, logs = (topic, index), self._log_manager
        if key in logs.logs and logs.other_ids.pop(key, None) == topic_id:
            log.warning("%s-%d: one of its two files with the topic id was wrong", topic, index)
            logs.identify(logs.logs[key], topic_id)
        found = logs.logs.get(key)
        if found is not None and logs.topic_ids.get(key, topic_id) != topic_id:
            return self._contradiction(found, logs.topic_ids[key], topic_id)
        if found is None:
            found = logs.create(topic, index, topic_id)
        elif key not in logs.topic_ids:
            logs.identify(found, topic_id)
        return self._replica_manager.add(found, topic_id, logs.high_watermarks.get(key, 0))

    # -- topic ids -------------------------------------------------------------------------

    def _contradiction(self, found: Log, own_id: uuid.UUID, topic_id: uuid.UUID) -> Replica:
        """The log belongs to another topic id than ZooKeeper says.

        Either the topic was deleted and created again while this broker was away, or the id in
        ZooKeeper is wrong.  The log stays where it is, and nothing is served, until a leader proves
        that it has a log of the id in ZooKeeper.
        """
        key = (found.topic, found.partition)
        high_watermark = self._log_manager.high_watermarks.get(key, 0)
        replica = self._replica_manager.add(found, topic_id, high_watermark)
        self._contradicted[replica] = NoLeader(found.topic, topic_id, found.partition, _UNKNOWN)
        self._replica_manager.failures.failed(
            replica,
            FailureKind.OFFLINE,
            f"the log in {found.directory} belongs to topic id {topic_id_text(own_id)}, but the"
            f" topic has id {topic_id_text(topic_id)} in ZooKeeper. The log is kept and not served."
            " If all replicas say this, the id in ZooKeeper is wrong: restore ZooKeeper from a"
            " backup. If the topic was deleted and created again, move the log away",
        )
        return replica

    def _wait_for_proof(self, replica: Replica, change: Lead | Follow | NoLeader) -> None:
        self._fetchers.leave(replica)
        replica.rest(change.state)
        self._contradicted[replica] = change
        if self._confirming is None and isinstance(change, Follow):
            self._confirming = asyncio.get_running_loop().create_task(self._confirm())

    async def _confirm(self) -> None:
        """Ask the leaders of contradicted logs whether they lead the topic id in ZooKeeper."""
        backoff = Backoff(_FIRST_PROOF_S, _LONGEST_PROOF_S)
        try:
            while follows := [
                (replica, change)
                for replica, change in self._contradicted.items()
                if isinstance(change, Follow)
            ]:
                for replica, change in follows:
                    if await self._is_led(change):
                        async with self._lock:
                            if self._contradicted.get(replica) is change:
                                self._replace_log(replica, change)
                await backoff.pause()
        except Exception:
            log.exception("topic ids are not compared until the next change")
        finally:
            self._confirming = None

    def _replace_log(self, replica: Replica, change: Follow) -> None:
        self._forget(replica)
        key = (change.topic, change.index)
        if key in self._log_manager.logs:
            self._set_aside(key, "it belongs to a former topic of that name")
        self._begin(change)

    async def _is_led(self, change: Follow) -> bool:
        """Whether the leader has a log of the topic id."""
        if change.endpoint is None:
            return False
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1,
            topics=[
                FetchTopic(
                    topic_id=change.topic_id,
                    partitions=[
                        FetchPartition(
                            partition=change.index, fetch_offset=0, partition_max_bytes=1
                        )
                    ],
                )
            ],
        )
        try:
            response = await self._fetchers.peers.send(
                change.endpoint, request, timeout_ms=_PROOF_TIMEOUT_MS
            )
        except (ConnectionFailed, KafkaError):
            return False
        codes = [part.error_code for topic in response.responses for part in topic.partitions]
        return codes in ([ErrorCode.NONE], [ErrorCode.OFFSET_OUT_OF_RANGE])

    def _forget(self, replica: Replica) -> None:
        self._contradicted.pop(replica, None)
        self._fetchers.leave(replica)
        self._replica_manager.remove(replica)

    async def stop(self) -> None:
        if self._confirming is not None:
            self._confirming.cancel()
            await asyncio.wait([self._confirming])

    # -- removal ---------------------------------------------------------------------------

    async def _delete(self, change: Delete) -> None:
        """Delete the log of a deleted topic.  It is kept if ZooKeeper may still have the topic."""
        self._failed.pop((change.topic_id, change.index), None)
        if self._image.topic(change.topic) is None:
            self._configs.forget(change.topic)
        then = "deleted"
        if change.inferred:
            then = "kept" if await self._may_exist(change.topic) else "set aside"
        self._drop(change.topic, change.topic_id, change.index, then, "its topic is deleted")
        if then == "kept" and (change.topic, change.index) in self._log_manager.logs:
            self._doubtful.add((change.topic, change.index))

    def _drop(self, topic: str, topic_id: uuid.UUID, index: int, then: str, why: str) -> None:
        replica = self._replica_manager.get_by_id(topic_id.bytes, index)
        if replica is not None:
            self._forget(replica)
        key = (topic, index)
        if (
            key in self._log_manager.logs
            and self._log_manager.topic_ids.get(key, topic_id) == topic_id
        ):
            if then == "deleted":
                self._delete_log(key, why)
            elif then == "set aside":
                self._set_aside(key, "the cluster knows no such partition")

    def _delete_log(self, key: tuple[str, int], why: str) -> None:
        """Delete a log, and say who asked for it."""
        found = self._log_manager.logs[key]
        log.info(
            "%s-%d: deleting the log, offsets %d to %d: %s, says broker %d, the controller in epoch"
            " %d",
            *key,
            found.start_offset,
            found.end_offset,
            why,
            self._image.controller_id,
            self._image.controller_epoch,
        )
        self._log_manager.delete(*key)

    async def _set_aside_strays(self, removed: Collection[uuid.UUID]) -> None:
        """Set aside logs that the cluster does not know, or assigns to other brokers.

        Topics in ZooKeeper that cannot be decoded may be repaired, so their logs stay.  `removed`
        topics are those whose deletion was interrupted; it is finished here.
        """
        for name, index in list(self._log_manager.logs):
            if self._replica_manager.get(name.encode(), index) is not None:
                continue
            if self._log_manager.topic_ids.get((name, index)) in removed:
                self._delete_log((name, index), "its topic is deleted")
                continue
            if self._image.topic(name) is None and await self._may_exist(name):
                self._doubtful.add((name, index))
            else:
                self._set_aside_stray(name, index)

    def _resolve_published(self) -> None:
        """The controller has published topics whose logs were doubtful."""
        for name, index in sorted(key for key in self._doubtful if self._image.topic(key[0])):
            self._set_aside_stray(name, index)

    async def _resolve_deleted(self) -> None:
        """Set aside doubtful logs whose topics are not in ZooKeeper any more.

        A broker that starts while a topic is being deleted may learn neither of the topic nor of
        its deletion.
        """
        for name in sorted({name for name, _index in self._doubtful}):
            if not await self._may_exist(name):
                for key in sorted(key for key in self._doubtful if key[0] == name):
                    self._set_aside_stray(*key)

    def _set_aside_stray(self, name: str, index: int) -> None:
        self._doubtful.discard((name, index))
        is_used = self._replica_manager.get(name.encode(), index) is not None
        if is_used or (name, index) not in self._log_manager.logs:
            return
        state = self._image.state(name, index)
        if state is None:
            self._set_aside((name, index), "the cluster knows no such partition")
        elif self._image.broker_id not in state.replicas:
            self._set_aside((name, index), f"its replicas are on {list(state.replicas)}")

    async def _may_exist(self, topic: str) -> bool:
        """Whether ZooKeeper has the topic, although the controller does not publish it."""
        try:
            return await self._zookeeper.exists(znodes.topic_path(topic)) is not None
        except ZooKeeperError as failure:
            log.warning("keeping the logs of topic %s, which may exist: %s", topic, failure)
            return True

    def _set_aside(self, key: tuple[str, int], why: str) -> None:
        kept = self._log_manager.set_aside(*key)
        log.warning(
            "%s-%d is set aside as %s: %s, says broker %d, the controller in epoch %d",
            *key,
            kept,
            why,
            self._image.controller_id,
            self._image.controller_epoch,
        )
