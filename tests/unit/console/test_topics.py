"""The routes of topics, against a real broker."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest

from hightide.cli.app import run
from hightide.client.admin import Admin
from hightide.client.model.cluster import ConfigEntry, ConfigSource, ConfigType
from hightide.client.model.cluster import PartitionDescription as Partition
from hightide.console import commands, topic_view
from hightide.console.topic_view import Rates
from tests.unit.console.broker_world import World, record, world


@pytest.fixture(scope="module")
def console() -> Iterator[World]:
    with world() as made:
        yield made


def names(console: World, **params: int) -> list[str]:
    return [topic["name"] for topic in console.get("topics", **params)["topics"]]


def row(console: World, name: str) -> dict:
    return next(topic for topic in console.get("topics")["topics"] if topic["name"] == name)


def test_a_topic_is_created_as_asked(console: World) -> None:
    given = {"name": "made", "partitions": 3, "configs": {"retention.ms": "60000"}}
    dry = console.post("topics?dry_run=1", given)
    assert "made" not in names(console)
    made = console.post("topics", {**given, "replication_factor": "1"})
    assert (dry["dry_run"], made["dry_run"]) == (True, False)
    found = row(console, "made")
    assert (found["partitions"], found["replication"], found["retention_ms"]) == (3, 1, 60000)
    assert (found["level"], found["text"]) == ("ok", "all in sync")


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"name": ""}, "name"),
        ({"name": "no/slash"}, "no/slash"),
        ({"name": "x", "partitions": 0}, "partitions"),
        ({"name": "x", "partitions": "many"}, "many"),
        ({"name": "x", "replication_factor": 7}, "7"),
        ({"name": "x", "configs": {"retention.ms": "soon"}}, "retention.ms"),
        ({"name": "x", "configs": [1]}, "configs"),
    ],
)
def test_what_cannot_be_created_is_refused_in_words(console: World, given: dict, word: str) -> None:
    assert word in console.post("topics", given, status=400)["error"]


def test_internal_topics_are_hidden_unless_asked_for(console: World) -> None:
    console.create("visible")

    async def commit() -> None:
        async with Admin(console.bootstrap) as admin:
            await admin.groups.commit("made-it", {("visible", 0): 0})

    console.broker.run(commit())
    assert "__consumer_offsets" not in names(console)
    assert "__consumer_offsets" in names(console, internal=1)


def test_a_topic_is_described_with_sizes_and_offsets(console: World) -> None:
    console.create("described", 2)
    console.write("described", [record(b"x" * 1000)] * 5, partition=1)
    found = console.get("topics/described")
    first, second = found["partition_rows"]
    assert (first["end_offset"], second["end_offset"]) == (0, 5)
    assert second["leader"] == second["replicas"][0]
    assert second["replicas"] == second["isr"]
    assert second["size_bytes"] > 5000 > first["size_bytes"]
    assert found["offsets"] == 5
    assert found["notes"] == []


def test_a_setting_has_value_source_and_meaning(console: World) -> None:
    console.create("set", retention_ms="60000")
    settings = {one["name"]: one for one in console.get("topics/set")["settings"]}
    assert settings["retention.ms"]["value"] == "60000"
    assert settings["retention.ms"]["source"] == "this topic"
    assert settings["retention.ms"]["changed"]
    assert settings["cleanup.policy"]["source"] == "the built-in default"
    assert "compact" in settings["cleanup.policy"]["meaning"]
    assert settings["cleanup.policy"]["choices"] == ["compact", "delete"]


def test_settings_are_set_and_reset(console: World) -> None:
    console.post("topics", {"name": "altered"})

    def value() -> tuple[str, bool]:
        settings = console.get("topics/altered")["settings"]
        (found,) = [one for one in settings if one["name"] == "retention.ms"]
        return found["value"], found["changed"]

    before = value()
    dry = console.post("topics/altered/configs?dry_run=1", {"set": {"retention.ms": "5000"}})
    assert value() == before
    done = console.post("topics/altered/configs", {"set": {"retention.ms": "5000"}})
    assert value() == ("5000", True)
    assert dry["command"] == done["command"]
    assert "--config retention.ms=5000" in done["command"]
    reset = console.post("topics/altered/configs", {"unset": ["retention.ms"]})
    assert value() == before
    assert "--delete-config retention.ms" in reset["command"]


def test_a_wrong_setting_is_refused_in_words(console: World) -> None:
    console.create("kept")
    refused = console.post("topics/kept/configs", {"set": {"retention.ms": "soon"}}, status=400)
    assert "retention.ms" in refused["error"]
    assert "nothing" in console.post("topics/kept/configs", {}, status=400)["error"]
    console.post("topics/kept/configs", {"unset": "retention.ms"}, status=400)


def test_partitions_are_added_but_never_taken_away(console: World) -> None:
    console.create("grown", 2)
    assert "larger" in console.post("topics/grown/partitions", {"count": 2}, status=400)["error"]
    console.post("topics/grown/partitions?dry_run=1", {"count": 3})
    assert row(console, "grown")["partitions"] == 2
    console.post("topics/grown/partitions", {"count": 3})
    assert row(console, "grown")["partitions"] == 3


def test_a_topic_is_deleted_if_its_name_is_typed(console: World) -> None:
    console.create("doomed")
    assert console.delete("topics/doomed?dry_run=1", {})["partitions"] == 1
    assert "Type the name" in console.delete("topics/doomed", {"name": "doom"}, 400)["error"]
    assert "doomed" in names(console)
    console.delete("topics/doomed", {"name": "doomed"})
    assert "doomed" not in names(console)


def test_a_topic_that_is_not_there_is_a_404(console: World) -> None:
    assert "nowhere" in console.get("topics/nowhere", 404)["error"]
    console.get("topics/nowhere/consumers", 404)
    console.delete("topics/nowhere", {"name": "nowhere"}, 404)
    console.post("topics/nowhere/configs", {"set": {"retention.ms": "1"}}, 404)


def test_the_groups_of_a_topic_have_lag(console: World) -> None:
    console.create("read", 2)
    console.create("other")
    console.write("read", [record(b"x")] * 10)

    async def commit() -> None:
        async with Admin(console.bootstrap) as admin:
            await admin.groups.commit("billing", {("read", 0): 4})
            await admin.groups.commit("elsewhere", {("other", 0): 0})

    console.broker.run(commit())
    (group,) = console.get("topics/read/consumers")["groups"]
    assert group["group"] == "billing"
    assert group["lag_records"] == 6
    assert group["lag_ms"] > 0
    assert group["partitions"][0]["committed"] == 4


def test_read_only_refuses_every_change() -> None:
    with world(read_only=True) as console:
        console.create("kept")
        console.post("topics", {"name": "new"}, 403)
        console.post("topics/kept/partitions", {"count": 2}, 403)
        console.post("topics/kept/configs", {"set": {"retention.ms": "1"}}, 403)
        console.delete("topics/kept", {"name": "kept"}, 403)
        assert names(console) == ["kept"]


def test_the_commands_do_the_same(console: World) -> None:
    """Each command that a dialog shows is run by the real command line."""

    def cli(line: str) -> None:
        words = shlex.split(line)
        assert words[0] == "hightide"
        assert run(words[1:]) == 0, line

    made = console.post(
        "topics?dry_run=1",
        {"name": "by-cli", "partitions": 2, "configs": {"cleanup.policy": "compact,delete"}},
    )
    cli(made["command"])
    found = row(console, "by-cli")
    assert (found["partitions"], found["cleanup_policy"]) == (2, "compact,delete")
    cli(console.post("topics/by-cli/partitions?dry_run=1", {"count": 4})["command"])
    change = {"set": {"retention.ms": "7"}, "unset": ["cleanup.policy"]}
    cli(console.post("topics/by-cli/configs?dry_run=1", change)["command"])
    found = row(console, "by-cli")
    assert (found["partitions"], found["retention_ms"], found["cleanup_policy"]) == (4, 7, "delete")
    cli(console.delete("topics/by-cli?dry_run=1", {})["command"])
    assert "by-cli" not in names(console)


def test_a_command_names_the_cluster_unless_it_is_the_default_one() -> None:
    assert commands.delete_topic("localhost:9092", "a b") == "hightide topic delete 'a b'"
    assert commands.delete_topic("k:1", "a") == "hightide topic delete a --bootstrap k:1"


# -- pure ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leader", "isr", "level", "word"),
    [(1, [1, 2, 3], "ok", "all"), (1, [1, 2], "warn", "3"), (1, [1], "bad", "2 needed"),
     (-1, [1], "off", "offline")],
)  # fmt: skip
def test_the_health_of_a_partition(leader: int, isr: list[int], level: str, word: str) -> None:
    partition = Partition(0, leader, 0, [1, 2, 3], isr, [])
    found, text = topic_view.partition_health(partition, min_isr=2)
    assert found == level
    assert word in text


def test_a_rate_needs_two_looks_and_forgets_old_ones() -> None:
    rates, key = Rates(), ("t", 0)
    rates.add(0.0, {key: 0}, {key: 0})
    assert rates.of([key]).messages is None
    rates.add(10.0, {key: 50}, {key: 1000})
    assert rates.of([key]) == (5.0, 100.0)
    rates.add(100.0, {key: 50}, {key: 1000})
    assert rates.of([key]).messages is None
    rates.add(101.0, {key: 60}, {key: 500})
    assert rates.of([key]) == (10.0, None)


def test_a_secret_is_not_shown() -> None:
    entry = ConfigEntry(
        "some.password", "hush", ConfigSource.STATIC_BROKER_CONFIG, ConfigType.PASSWORD, False,
        True, "A password.",
    )  # fmt: skip
    found = topic_view.setting_row(entry)
    assert found["value"] is None
    assert found["meaning"] == "A password."
