"""What this broker is to each partition, carried out: logs made and dropped, led and followed.

    PublishState ─▶ MetadataImage ─▶ role changes, in order ─▶ Replica, LogManager, Fetchers

One message after the other, each to its end: what a later one says builds upon what an earlier one
has done.  The answer to the controller means that it is done.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence

from hightide.broker.membership.dynamic_configs import TopicConfigs
from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_fetcher import Fetchers
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
from hightide.zookeeper.errors import ZooKeeperError
from hightide.zookeeper.interface import ZooKeeper

log = logging.getLogger(__name__)

_CHANGES_PER_TURN = 50  # making a log takes some 100 µs; then the connections get a turn


class StateChanges:
    """Takes what the controller publishes and acts on it."""

    def __init__(
        self,
        picture: MetadataImage,
        zookeeper: ZooKeeper,
        store: LogManager,
        replicas: ReplicaManager,
        fetchers: Fetchers,
        configs: TopicConfigs,
        settings: Callable[[], Settings],
        broker_epoch: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        self.are_known = asyncio.Event()
        """Set when the first full message has been carried out."""
        self.on_topics: Callable[[Sequence[str]], None] = lambda _deleted: None
        """Called when there are other topics or more partitions, with the topics deleted."""
        self._picture = picture
        self._zookeeper = zookeeper
        self._store = store
        self._replicas = replicas
        self._fetchers = fetchers
        self._configs = configs
        self._settings = settings
        self._broker_epoch = broker_epoch
        self._now_ms = now_ms
        self._one_at_a_time = asyncio.Lock()
        # Roles that a disk has kept from being carried out; they are tried again.
        self._failed: dict[tuple[uuid.UUID, int], Lead | Follow | NoLeader] = {}
        # Logs of topics that may be in the tree, and that nobody tells of.
        self._in_doubt: set[tuple[str, int]] = set()

    async def receive(self, message: PublishStateRequest) -> ErrorCode:
        """Take a message of the controller, and do what it means."""
        async with self._one_at_a_time:
            picture = self._picture
            news = [each.name for each in message.topics if not picture.topic_by_id(each.topic_id)]
            received = picture.receive(message, self._broker_epoch())
            if received.error_code != ErrorCode.NONE:
                return received.error_code
            # Before the new topics' settings are read: a new topic may have a deleted one's name.
            for name in received.deleted_topics:
                self._configs.forget(name)
            await self._learn_settings(news)
            await self._carry_out(received.changes)
            if received.topics_changed:
                self.on_topics(received.deleted_topics)
            if received.brokers_changed:
                self._replicas.brokers_changed(picture.live, picture.shutting_down)
            if picture.is_whole and not self.are_known.is_set():
                await self._set_strays_aside(message.removed_topics)
                self.are_known.set()
            elif self._in_doubt and received.topics_changed:
                self._settle_told()
            return ErrorCode.NONE

    async def try_again(self) -> None:
        """Carry out what a disk has kept from being carried out, and settle what is in doubt."""
        async with self._one_at_a_time:
            failed, self._failed = self._failed, {}
            await self._carry_out(failed.values())
            await self._settle_gone()

    async def _learn_settings(self, topics: list[str]) -> None:
        try:
            await self._configs.read(topics)
        except ZooKeeperError as failure:
            # They are read when they can be; until then the topics are led with caution.
            log.warning("the settings of %d new topics are not known yet: %s", len(topics), failure)

    async def _carry_out(self, changes: Iterable[RoleChange]) -> None:
        known = self._store.changes
        for done, change in enumerate(changes, 1):
            await self._change(change)
            if done % _CHANGES_PER_TURN == 0:
                await asyncio.sleep(0)
        if self._store.changes != known:
            await asyncio.to_thread(self._store.sync_names)

    async def _change(self, change: RoleChange) -> None:
        match change:
            case Delete():
                await self._delete(change)
            case Stop():
                self._failed.pop((change.topic_id, change.index), None)
                self._drop(change.topic, change.topic_id, change.index, "deleted")
            case StateChanged():
                replica = self._replicas.get_by_id(change.topic_id.bytes, change.index)
                if replica is not None:
                    replica.published(change.state)
            case _:
                try:
                    self._begin(change)
                except DiskFailed as failure:
                    log.error("cannot open %s-%d: %s", change.topic, change.index, failure)
                    self._failed[change.topic_id, change.index] = change
                except Exception:
                    # One partition's trouble must not keep the others from being led.
                    log.exception("cannot begin with %s-%d", change.topic, change.index)
                    self._failed[change.topic_id, change.index] = change

    # -- roles -----------------------------------------------------------------------------

    def _begin(self, change: Lead | Follow | NoLeader) -> None:
        replica = self._open(change.topic, change.topic_id, change.index)
        state = change.state
        if isinstance(change, Follow):
            if replica.follower is not None and replica.leader_epoch == state.leader_epoch:
                replica.published(state)  # only the leader's address is another
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
            self._picture.broker_id,
            self._broker_epoch(),
            self._picture.live,
            self._picture.shutting_down,
            self._settings().replica_lag_time_max_ms,
            self._now_ms(),
        )

    def _open(self, topic: str, topic_id: uuid.UUID, index: int) -> Replica:
        replica = self._replicas.get_by_id(topic_id.bytes, index)
        if replica is not None:
            return replica
        key, store = (topic, index), self._store
        if key in store.logs and store.topic_ids.get(key, topic_id) != topic_id:
            self._set_aside(key, "it belongs to a former topic of that name")
        found = store.logs.get(key)
        if found is None:
            found = store.create(topic, index, topic_id)
        elif key not in store.topic_ids:
            store.identify(found, topic_id)
        return self._replicas.add(found, topic_id, store.high_watermarks.get(key, 0))

    # -- ends ------------------------------------------------------------------------------

    async def _delete(self, change: Delete) -> None:
        """A topic is gone.  Where that only seems so, its logs are kept."""
        self._failed.pop((change.topic_id, change.index), None)
        if self._picture.topic(change.topic) is None:
            self._configs.forget(change.topic)
        then = "deleted"
        if change.inferred:
            then = "kept" if await self._may_exist(change.topic) else "set aside"
        self._drop(change.topic, change.topic_id, change.index, then)
        if then == "kept" and (change.topic, change.index) in self._store.logs:
            self._in_doubt.add((change.topic, change.index))

    def _drop(self, topic: str, topic_id: uuid.UUID, index: int, then: str) -> None:
        replica = self._replicas.get_by_id(topic_id.bytes, index)
        if replica is not None:
            self._fetchers.leave(replica)
            self._replicas.remove(replica)
        key = (topic, index)
        if key in self._store.logs and self._store.topic_ids.get(key, topic_id) == topic_id:
            if then == "deleted":
                self._store.delete(*key)
            elif then == "set aside":
                self._set_aside(key, "the cluster knows no such partition")

    async def _set_strays_aside(self, removed: Collection[uuid.UUID]) -> None:
        """Take logs out of the way that the cluster does not know, or knows to be elsewhere.

        Topics that are there but cannot be used may be put right; their logs stay.  Of those that
        were `removed` the deletion was cut short, and is finished.
        """
        for name, index in list(self._store.logs):
            if self._replicas.get(name.encode(), index) is not None:
                continue
            if self._store.topic_ids.get((name, index)) in removed:
                log.info("%s-%d is deleted with its topic", name, index)
                self._store.delete(name, index)
                continue
            if self._picture.topic(name) is None and await self._may_exist(name):
                self._in_doubt.add((name, index))
            else:
                self._set_stray_aside(name, index)

    def _settle_told(self) -> None:
        """Something is told of topics whose logs were in doubt."""
        for name, index in sorted(each for each in self._in_doubt if self._picture.topic(each[0])):
            self._set_stray_aside(name, index)

    async def _settle_gone(self) -> None:
        """Topics whose logs were in doubt have gone from the tree, and nobody tells of that.

        A broker that came while a deletion was half done hears of the topic neither way.
        """
        for name in sorted({name for name, _index in self._in_doubt}):
            if not await self._may_exist(name):
                for key in sorted(each for each in self._in_doubt if each[0] == name):
                    self._set_stray_aside(*key)

    def _set_stray_aside(self, name: str, index: int) -> None:
        self._in_doubt.discard((name, index))
        is_used = self._replicas.get(name.encode(), index) is not None
        if is_used or (name, index) not in self._store.logs:
            return
        state = self._picture.state(name, index)
        if state is None:
            self._set_aside((name, index), "the cluster knows no such partition")
        elif self._picture.broker_id not in state.replicas:
            self._set_aside((name, index), f"its replicas are on {list(state.replicas)}")

    async def _may_exist(self, topic: str) -> bool:
        """Whether the tree has the topic, although the controller does not tell of it."""
        try:
            return await self._zookeeper.exists(znodes.topic_path(topic)) is not None
        except ZooKeeperError as failure:
            log.warning("topic %s is kept: %s", topic, failure)
            return True

    def _set_aside(self, key: tuple[str, int], why: str) -> None:
        kept = self._store.set_aside(*key)
        log.warning("%s-%d is set aside as %s: %s", *key, kept, why)
