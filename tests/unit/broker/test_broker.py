"""A broker across restarts: its identity, and what it does with the logs that it finds."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hightide.broker.broker import Broker
from hightide.broker.membership.identity import StartupRefused
from hightide.core.metadata.image import published_partition
from hightide.settings import Broker as Settings
from hightide.wire import batch
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.replication import PublishedTopic, PublishStateRequest
from hightide.zookeeper import DATABASE, znodes
from hightide.zookeeper.in_memory import InMemoryZooKeeper
from hightide.zookeeper.interface import delete_recursively

NOW_MS = 1_700_000_000_000


@asynccontextmanager
async def running(folder: Path, **settings: Any):
    broker = Broker(
        Settings(
            listeners="PLAINTEXT://127.0.0.1:0",
            zookeeper_listen="127.0.0.1:0",
            log_dirs=(str(folder),),
            **settings,
        )
    )
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


@asynccontextmanager
async def zookeeper_of(folder: Path):
    """The ZooKeeper of a broker that is not running."""
    zookeeper = await InMemoryZooKeeper.open(folder / DATABASE)
    try:
        yield zookeeper
    finally:
        await zookeeper.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def append(broker: Broker, topic: str, value: bytes = b"v") -> int:
    buf = batch.build([batch.Record(0, NOW_MS, None, value, ())])
    replica = broker.replica_manager.get(topic.encode(), 0)
    assert replica is not None
    return replica.append(buf, memoryview(buf), 0, len(buf), NOW_MS)[0]


async def create(broker: Broker, topic: str, partitions: int = 1, **overrides: str) -> None:
    assignment = {index: [broker.broker_id] for index in range(partitions)}
    await broker.controller.create_topic(topic, assignment, overrides, timeout_ms=5000)


def test_topics_settings_and_records_survive_a_restart(tmp_path: Path):
    async def test():
        async with running(tmp_path) as broker:
            await create(broker, "t", 3)
            await broker.topic_configs.configure("t", lambda _had: {"retention.ms": "77"})
            await broker.controller.add_partitions("t", {3: [broker.broker_id]}, timeout_ms=5000)
            append(broker, "t")
            topic_id, cluster_id = broker.metadata.get("t").topic_id, broker.metadata.cluster_id
        async with running(tmp_path) as broker:
            topic = broker.metadata.get("t")
            assert topic.topic_id == topic_id
            assert len(topic.partitions) == 4
            assert broker.metadata.cluster_id == cluster_id
            replica = broker.replica_manager.get(b"t", 0)
            assert replica.high_watermark == 1
            assert replica.log.config.retention_ms == 77
            assert broker.replica_manager.get_by_id(topic_id.bytes, 3) is not None

    run(test)


def test_each_start_leads_in_a_new_leader_epoch(tmp_path: Path):
    async def test():
        for epoch in range(3):
            async with running(tmp_path) as broker:
                if epoch == 0:
                    await create(broker, "t")
                append(broker, "t")
                replica = broker.replica_manager.get(b"t", 0)
                assert replica.leader_epoch == epoch
                assert replica.log.epochs.entries == [(e, e) for e in range(epoch + 1)]

    run(test)


def test_a_deletion_that_was_interrupted_is_finished(tmp_path: Path):
    async def test():
        async with running(tmp_path) as broker:
            await create(broker, "t")
            append(broker, "t")
        async with zookeeper_of(tmp_path) as zookeeper:
            await zookeeper.create(znodes.delete_topic_path("t"))
        async with running(tmp_path) as broker:
            assert broker.metadata.get("t") is None
            assert ("t", 0) not in broker.log_manager.logs
            await create(broker, "t")
            assert append(broker, "t") == 0
            assert await broker._zookeeper.children(znodes.DELETE_TOPICS) == []

    run(test)


def test_logs_of_no_topic_are_set_aside_and_kept(tmp_path: Path):
    async def test():
        async with running(tmp_path) as broker:
            await create(broker, "t")
            append(broker, "t", b"precious")
        async with zookeeper_of(tmp_path) as zookeeper:
            await delete_recursively(zookeeper, znodes.topic_path("t"))
        async with running(tmp_path) as broker:
            await create(broker, "t")
            assert append(broker, "t") == 0
        (stray,) = tmp_path.glob("t-0.*-stray")
        assert b"precious" in (stray / "00000000000000000000.log").read_bytes()

    run(test)


def test_logs_of_a_topic_that_cannot_be_decoded_stay_until_other_brokers_have_its_replicas(
    tmp_path: Path,
):
    async def test():
        path = znodes.topic_path("t")
        async with running(tmp_path) as broker:
            await create(broker, "t")
            append(broker, "t", b"precious")
        async with zookeeper_of(tmp_path) as zookeeper:
            whole, _ = await zookeeper.get(path)
            await zookeeper.set(path, b"{", -1)
        async with running(tmp_path) as broker:
            assert (tmp_path / "t-0").exists()
            known = znodes.TopicAssignment.decode(whole, path)
            moved = known._replace(partitions={0: (99,)})
            await broker.zookeeper.set(path, moved.encode(), -1)
            for _ in range(500):
                if list(tmp_path.glob("t-0.*-stray")):
                    break
                await asyncio.sleep(0.02)
            assert not (tmp_path / "t-0").exists()

    run(test)


def test_logs_of_a_topic_that_is_not_published_are_set_aside_once_it_is_deleted(tmp_path: Path):
    """This happens when a broker starts while a topic is being deleted."""

    async def test():
        path = znodes.topic_path("t")
        async with running(tmp_path) as broker:
            await create(broker, "t", 2)
            append(broker, "t", b"precious")
        async with zookeeper_of(tmp_path) as zookeeper:
            await zookeeper.set(path, b"{", -1)
        async with running(tmp_path, replica_lag_time_max_ms=100) as broker:
            await asyncio.sleep(0.2)
            assert (tmp_path / "t-0").exists()
            await delete_recursively(broker.zookeeper, path)
            for _ in range(500):
                if len(list(tmp_path.glob("t-*-stray"))) == 2:
                    break
                await asyncio.sleep(0.02)
            assert not list(tmp_path.glob("t-?"))
            assert not [name for name, _index in broker.log_manager.logs if name == "t"]

    run(test)


def test_a_log_with_another_topic_id_is_kept_and_not_served(tmp_path: Path):
    async def test():
        async with running(tmp_path) as broker:
            await create(broker, "t")
            append(broker, "t", b"old")
        file = tmp_path / "t-0" / "partition.metadata"
        right = file.read_text()
        file.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
        (tmp_path / "topic-id-checkpoint").unlink()
        async with running(tmp_path) as broker:
            replica = broker.replica_manager.get(b"t", 0)
            assert replica.leader is None
            assert "belongs to topic id AAAAAAAAAAAAAAAAAAAAAQ" in replica.failure.why
        assert not list(tmp_path.glob("t-0.*"))
        file.write_text(right)
        (tmp_path / "topic-id-checkpoint").unlink(missing_ok=True)
        async with running(tmp_path) as broker:
            replica = broker.replica_manager.get(b"t", 0)
            assert replica.leader is not None
            assert replica.log.end_offset == 1

    run(test)


def test_a_topic_that_replaces_another_in_one_message_has_its_own_settings(tmp_path: Path):
    async def test():
        async with running(tmp_path) as broker:
            await create(broker, "t")
            replaced = broker.metadata_image.topic("t")
            config = znodes.EntityConfig({"flush.messages": "1"}).encode()
            await broker.zookeeper.set(znodes.topic_config_path("t"), config)
            partition = published_partition(0, replaced.partitions[0])
            message = PublishStateRequest(
                controller_id=broker.broker_id,
                controller_epoch=broker.metadata_image.controller_epoch,
                broker_epoch=broker.broker_epoch,
                sequence=1_000_000,
                is_full=False,
                brokers=list(broker.metadata_image.brokers.values()),
                topics=[PublishedTopic(name="t", topic_id=uuid.uuid4(), partitions=[partition])],
                removed_topics=[replaced.topic_id],
            )
            await broker.receive_state(message)
            assert broker.replica_manager.get(b"t", 0).log.config.flush_messages == 1

    run(test)


def test_a_lost_partition_metadata_file_is_written_again(tmp_path: Path):
    async def test():
        async with running(tmp_path) as broker:
            await create(broker, "t")
            append(broker, "t")
        file = tmp_path / "t-0" / "partition.metadata"
        before = file.read_bytes()
        file.write_bytes(b"")
        async with running(tmp_path) as broker:
            assert broker.replica_manager.get(b"t", 0).log.end_offset == 1
        assert file.read_bytes() == before

    run(test)


def test_of_several_creators_of_one_topic_one_succeeds(tmp_path: Path):
    async def test():
        async with running(tmp_path) as broker:
            done = await asyncio.gather(
                *(create(broker, "t") for _ in range(5)), return_exceptions=True
            )
            refused = [outcome for outcome in done if isinstance(outcome, KafkaError)]
            assert len(refused) == 4
            assert {error.code for error in refused} == {ErrorCode.TOPIC_ALREADY_EXISTS}

    run(test)


def test_producer_ids_are_never_given_twice(tmp_path: Path):
    async def test():
        ids: list[int] = []
        for _ in range(2):
            async with running(tmp_path) as broker:
                ids += await asyncio.gather(*(broker.producer_ids.next() for _ in range(1500)))
        assert len(set(ids)) == len(ids) == 3000

    run(test)


def test_a_broker_id_is_generated_once_and_kept(tmp_path: Path):
    async def test():
        async with running(tmp_path) as broker:
            generated = broker.broker_id
        assert generated > Settings().reserved_broker_max_id
        async with running(tmp_path) as broker:
            assert broker.broker_id == generated

    run(test)


def test_directories_of_another_broker_are_refused(tmp_path: Path):
    async def test():
        async with running(tmp_path, broker_id=1):
            pass
        with pytest.raises(StartupRefused, match="belong to broker 1, not to broker 2"):
            async with running(tmp_path, broker_id=2):
                pass

    run(test)


def test_an_empty_coordinator_beside_full_directories_is_refused(tmp_path: Path):
    async def test():
        async with running(tmp_path) as broker:
            await create(broker, "t")
        for file in tmp_path.glob(f"{DATABASE}*"):
            file.unlink()
        with pytest.raises(StartupRefused, match="ZooKeeper is empty"):
            async with running(tmp_path):
                pass
        assert (tmp_path / "t-0").is_dir()

    run(test)


def test_a_broker_without_an_id_may_be_refused(tmp_path: Path):
    async def test():
        with pytest.raises(StartupRefused, match=r"broker\.id is not set"):
            async with running(tmp_path, broker_id_generation_enable=False):
                pass

    run(test)
