"""Applies what the controller publishes: replicas are created, led, followed and removed.

    PublishState ─▶ MetadataImage ─▶ role changes, in order ─▶ Replica, LogManager, ReplicaFetchers

Messages are applied one after the other, each completely: a later message builds upon an earlier
one.  The response to the controller means that its message is applied.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence

from hightide.broker.membership.dynamic_configs import TopicConfigs
from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_fetcher import ReplicaFetchers
from hightide.broker.replication.replica_manager import ReplicaManager
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
from hightide.log.disk import DiskFailed
from hightide.log.log_manager import LogManager
from hightide.settings import Broker as Settings
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.replication import PublishStateRequest
from hightide.zookeeper import znodes
from hightide.zookeeper.interface import ZooKeeper
from hightide.zookeeper.zookeeper_errors import ZooKeeperError

log = logging.getLogger(__name__)

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
        # Roles that could not be taken, because of a disk failure for example; they are retried.
        self._failed: dict[tuple[uuid.UUID, int], Lead | Follow | NoLeader] = {}
        # Logs of topics that may be in ZooKeeper although the controller does not publish them.
        self._doubtful: set[tuple[str, int]] = set()

    async def receive(self, message: PublishStateRequest) -> ErrorCode:
        """Apply a message of the controller."""
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
            if received.topics_changed:
                self.on_topics(received.deleted_topics)
            if received.brokers_changed:
                self._replica_manager.brokers_changed(image.live, image.shutting_down)
            if image.is_complete and not self.is_initialized.is_set():
                await self._set_aside_strays(message.removed_topics)
                self.is_initialized.set()
            elif self._doubtful and received.topics_changed:
                self._resolve_published()
            return ErrorCode.NONE

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
        if self._log_manager.changes != known:
            await asyncio.to_thread(self._log_manager.sync_names)

    async def _change(self, change: RoleChange) -> None:
        match change:
            case Delete():
                await self._delete(change)
            case Stop():
                self._failed.pop((change.topic_id, change.index), None)
                self._drop(change.topic, change.topic_id, change.index, "deleted")
            case StateChanged():
                replica = self._replica_manager.get_by_id(change.topic_id.bytes, change.index)
                if replica is not None:
                    replica.published(change.state)
            case _:
                try:
                    self._begin(change)
                except DiskFailed as failure:
                    log.error("cannot open %s-%d: %s", change.topic, change.index, failure)
                    self._failed[change.topic_id, change.index] = change
                except Exception:
                    # A failure of one partition must not keep the others from being led.
                    log.exception("cannot change the role of %s-%d", change.topic, change.index)
                    self._failed[change.topic_id, change.index] = change

    # -- roles -----------------------------------------------------------------------------

    def _begin(self, change: Lead | Follow | NoLeader) -> None:
        replica = self._open(change.topic, change.topic_id, change.index)
        state = change.state
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
        if key in logs.logs and logs.topic_ids.get(key, topic_id) != topic_id:
            self._set_aside(key, "it belongs to a former topic of that name")
        found = logs.logs.get(key)
        if found is None:
            found = logs.create(topic, index, topic_id)
        elif key not in logs.topic_ids:
            logs.identify(found, topic_id)
        return self._replica_manager.add(found, topic_id, logs.high_watermarks.get(key, 0))

    # -- removal ---------------------------------------------------------------------------

    async def _delete(self, change: Delete) -> None:
        """Delete the log of a deleted topic.  It is kept if ZooKeeper may still have the topic."""
        self._failed.pop((change.topic_id, change.index), None)
        if self._image.topic(change.topic) is None:
            self._configs.forget(change.topic)
        then = "deleted"
        if change.inferred:
            then = "kept" if await self._may_exist(change.topic) else "set aside"
        self._drop(change.topic, change.topic_id, change.index, then)
        if then == "kept" and (change.topic, change.index) in self._log_manager.logs:
            self._doubtful.add((change.topic, change.index))

    def _drop(self, topic: str, topic_id: uuid.UUID, index: int, then: str) -> None:
        replica = self._replica_manager.get_by_id(topic_id.bytes, index)
        if replica is not None:
            self._fetchers.leave(replica)
            self._replica_manager.remove(replica)
        key = (topic, index)
        if (
            key in self._log_manager.logs
            and self._log_manager.topic_ids.get(key, topic_id) == topic_id
        ):
            if then == "deleted":
                self._log_manager.delete(*key)
            elif then == "set aside":
                self._set_aside(key, "the cluster knows no such partition")

    async def _set_aside_strays(self, removed: Collection[uuid.UUID]) -> None:
        """Set aside logs that the cluster does not know, or assigns to other brokers.

        Topics in ZooKeeper that cannot be decoded may be repaired, so their logs stay.  `removed`
        topics are those whose deletion was interrupted; it is finished here.
        """
        for name, index in list(self._log_manager.logs):
            if self._replica_manager.get(name.encode(), index) is not None:
                continue
            if self._log_manager.topic_ids.get((name, index)) in removed:
                log.info("%s-%d is deleted with its topic", name, index)
                self._log_manager.delete(name, index)
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
        log.warning("%s-%d is set aside as %s: %s", *key, kept, why)
