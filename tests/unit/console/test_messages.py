"""The routes of messages, against a real broker: read, filter, show, follow, write, replay."""

from __future__ import annotations

import asyncio
import base64
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hightide.client.admin import Admin
from hightide.client.leader_cache import LeaderCache
from hightide.client.producer import PartitionProducer
from hightide.client.transactional import Transactional
from hightide.console.messages import tail
from hightide.console.messages.filter import Filter
from hightide.console.messages.positions import Span
from hightide.console.messages.scan import FoundIn
from hightide.wire.batch import build
from hightide.wire.compression import Codec
from tests.unit.console.broker_world import World, record, world
from tests.unit.console.test_message_contents import descriptors

HIGHTIDE = str(Path(sys.executable).with_name("hightide"))


@pytest.fixture(scope="module")
def console() -> Iterator[World]:
    with world() as made:
        yield made


def values(records: list[dict]) -> list[str]:
    return [one["value"]["text"] for one in records]


def offsets(records: list[dict]) -> list[int]:
    return [one["offset"] for one in records]


@pytest.fixture(scope="module")
def numbers(console: World) -> str:
    """Ten records at times 0, 100, … with keys a and b."""
    console.create("numbers")
    console.write(
        "numbers",
        [record(b"n%d" % n, b"ab"[n % 2 : n % 2 + 1], time_ms=1000 + n * 100) for n in range(10)],
    )
    return "numbers"


# -- positions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ({"from": "beginning"}, range(10)),
        ({"from": "end"}, []),
        ({"from": "last", "count": 3}, [7, 8, 9]),
        ({"from": "last", "count": 100}, range(10)),
        ({"from": "offset", "offset": 8}, [8, 9]),
        ({"from": "offset", "offset": 99}, []),
        ({"from": "time", "time": 1650}, [7, 8, 9]),
        ({"from": "time", "time": 10**12}, []),
        ({"from": "at", "at": "0:9"}, [9]),
    ],
)
def test_reading_begins_where_it_should(
    console: World, numbers: str, params: dict, wanted: list[int]
) -> None:
    records, last = console.read(numbers, **params)
    assert offsets(records) == list(wanted)
    assert (last["type"], last["stopped"], last["more"]) == ("done", "end", False)


def test_a_limit_stops_and_reading_goes_on_from_there(console: World, numbers: str) -> None:
    first, last = console.read(numbers, **{"from": "beginning"}, limit=4)
    assert (last["stopped"], last["more"]) == ("found", True)
    rest, last = console.read(numbers, **{"from": "at"}, at=last["at"], limit=100)
    assert offsets(first + rest) == list(range(10))
    assert not last["more"]


def test_no_partition_hides_the_others(console: World) -> None:
    console.create("shared", 12)
    for partition in range(12):
        console.write("shared", [record(b"v")] * 50, partition)
    records, last = console.read("shared", **{"from": "beginning"}, limit=120)
    assert {one["partition"] for one in records} == set(range(12))
    assert len(records) == 120
    seen, at = records, last["at"]
    while last["more"]:
        records, last = console.read("shared", **{"from": "at"}, at=last["at"], limit=120)
        seen = seen + records
    assert at != last["at"]
    places = [(one["partition"], one["offset"]) for one in seen]
    assert len(places) == len(set(places)) == 600


def test_only_the_chosen_partitions_are_read(console: World) -> None:
    console.create("chosen", 3)
    for partition in range(3):
        console.write("chosen", [record(b"%d" % partition)], partition)
    records, _ = console.read("chosen", **{"from": "beginning"}, partitions="0,2")
    assert sorted(values(records)) == ["0", "2"]


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ({"from": "middle"}, "middle"),
        ({"partitions": "x"}, "'x'"),
        ({"partitions": "9"}, "no partition 9"),
        ({"time": "now"}, "now"),
        ({"at": "0"}, "partition:offset"),
        ({"isolation": "some"}, "some"),
        ({"value_as": "xml"}, "xml"),
        ({"places": "body"}, "places"),
        ({"value_as": "avro"}, "schema"),
        ({"value_as": "protobuf"}, "descriptors"),
        ({"value_as": "protobuf", "schema": "%%%"}, "base64"),
        ({"value_as": "avro", "schema": "x" * 50_000}, "longer"),
    ],
)
def test_a_wrong_question_fails_in_words(
    console: World, numbers: str, params: dict, word: str
) -> None:
    (only,) = console.events(numbers, **params)
    assert only["type"] == "failed"
    assert word in only["error"]


def test_a_topic_that_is_not_there_fails_in_words(console: World) -> None:
    (only,) = console.events("nowhere")
    assert "nowhere" in only["error"]


# -- filters -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed(console: World) -> str:
    console.create("mixed")
    console.write(
        "mixed",
        [
            record(b"Hello World", b"k1"),
            record(b"nothing", b"HELLO"),
            record(b"nothing", None, ("trace", b"hello-7")),
            record(None, b"k1"),
            record("Größe".encode(), b"k4", ("hello", None)),
        ],
    )
    return "mixed"


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ({"text": "hello"}, [0, 1, 2, 4]),
        ({"text": "hello", "match_case": 1}, [2, 4]),
        ({"text": "hello", "places": "value"}, [0]),
        ({"text": "hello", "places": "key,headers"}, [1, 2, 4]),
        ({"text": "GRÖSSE"}, [4]),
        ({"key": "k1"}, [0, 3]),
        ({"key": "k1", "text": "world"}, [0]),
        ({"text": "absent"}, []),
    ],
)
def test_a_filter_keeps_what_it_should(
    console: World, mixed: str, params: dict, wanted: list[int]
) -> None:
    records, last = console.read(mixed, **{"from": "beginning"}, **params)
    assert offsets(records) == wanted
    assert last["looked"] == 5


def test_a_scan_is_bounded_and_says_how_far_it_is(console: World) -> None:
    console.create("long")
    for _ in range(3):
        console.write("long", [record(b"x")] * 4000)
    records, last = console.read("long", **{"from": "beginning"}, text="absent", look=5000)
    assert records == []
    assert (last["stopped"], last["more"]) == ("looked", True)
    assert 5000 <= last["looked"] < 12_000
    assert last["of_offsets"] == 12_000
    assert last["offsets"] == last["looked"]


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_is_read(console: World, codec: Codec) -> None:
    topic = console.create(f"codec-{codec.name.lower()}")
    console.write(topic, [record(b"value %d" % n) for n in range(100)], codec=codec)
    records, _ = console.read(topic, **{"from": "beginning"})
    assert values(records) == [f"value {n}" for n in range(100)]
    assert records[0]["codec"] == codec.name.lower()


# -- transactions --------------------------------------------------------------------------


async def write_in_transaction(
    bootstrap: str, topic: str, value: bytes, *, ends: str | None
) -> None:
    async with Admin(bootstrap) as admin:
        requests = Transactional(admin.router)
        name = f"tx-{value.decode()}"
        identity = await requests.init_producer(name)
        await requests.add_partition(name, identity, (topic, 0))
        leaders = LeaderCache(admin.router, retry_ms=10_000)
        producer = PartitionProducer(leaders, topic, 0, transactional_id=name)
        data = build(
            [record(value)],
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=0,
            transactional=True,
        )
        await producer.append(bytes(data), 1)
        await producer.flush()
        producer.close()
        if ends is not None:
            await requests.end_transaction(name, identity, commit=ends == "commit")


def test_open_and_aborted_transactions_are_hidden_until_asked_for(console: World) -> None:
    topic = console.create("transactions")
    for value, ends in ((b"one", "commit"), (b"two", "abort"), (b"three", "commit")):
        console.broker.run(write_in_transaction(console.bootstrap, topic, value, ends=ends))
    console.write(topic, [record(b"plain")])
    console.broker.run(write_in_transaction(console.bootstrap, topic, b"open", ends=None))
    console.write(topic, [record(b"behind")])
    events = console.events(topic, **{"from": "beginning"})
    shown = [one for event in events if event["type"] == "records" for one in event["records"]]
    assert values(shown) == ["one", "three", "plain"]
    assert events[0]["held"] == {"0": 2}
    records, _ = console.read(topic, **{"from": "beginning"}, isolation="read_uncommitted")
    assert values(records) == ["one", "two", "three", "plain", "open", "behind"]
    assert [one["transactional"] for one in records] == [True, True, True, False, True, False]


# -- contents ------------------------------------------------------------------------------


def test_contents_are_shown_as_what_they_are(console: World) -> None:
    topic = console.create("contents")
    console.write(
        topic,
        [
            record(b'{"a": 9007199254740993}', b"text"),
            record(None, b""),
            record(b"\xff\xfe\x00", b"\x00\x01"),
            record(b"", None),
            record(b"<script>alert(1)</script>", "\u202eevil".encode()),
        ],
    )
    records, _ = console.read(topic, **{"from": "beginning"})
    assert [one["value"]["as"] for one in records] == ["json", "null", "hex", "text", "text"]
    assert values(records[:1]) == ['{"a": 9007199254740993}']
    assert records[2]["value"] == {"as": "hex", "text": "fffe00", "size": 3, "cut": False}
    assert records[3]["key"] == {"as": "null"}
    assert records[4]["value"]["text"] == "<script>alert(1)</script>"
    asked, _ = console.read(topic, **{"from": "offset", "offset": 2}, value_as="text", limit=1)
    assert asked[0]["value"]["invalid"]
    asked, _ = console.read(topic, **{"from": "offset", "offset": 2}, value_as="json", limit=1)
    assert "not JSON" in asked[0]["value"]["problem"]
    asked, _ = console.read(topic, **{"from": "beginning"}, value_as="base64", limit=1)
    assert base64.b64decode(asked[0]["value"]["text"]) == b'{"a": 9007199254740993}'


def test_a_large_value_is_cut_and_shown_whole_when_asked_for(console: World) -> None:
    topic = console.create("large", max_message_bytes="20000000")
    text = json.dumps({"long": "ä" * 500_000}, ensure_ascii=False).encode()
    console.write(topic, [record(text, b"k" * 5000), record(b"\xc3\xa4" * 5_000_000)])
    records, last = console.read(topic, **{"from": "beginning"})
    assert [one["value"]["cut"] for one in records] == [True, True]
    assert records[0]["value"]["as"] == "json"
    assert records[0]["value"]["size"] == len(text)
    assert len(json.dumps(records)) < 20_000
    assert last["found"] == 2
    whole = console.get(f"topics/{topic}/messages/0/0")["record"]
    assert whole["value"]["text"] == text.decode()
    assert not whole["value"]["cut"]
    assert len(whole["key"]["text"]) == 5000
    larger = console.get(f"topics/{topic}/messages/0/1")["record"]
    assert larger["value"]["cut"]


def test_ten_thousand_headers_are_counted_and_shown_when_asked_for(console: World) -> None:
    topic = console.create("headers")
    many = [(f"h{n}", b"v%d" % n) for n in range(10_000)]
    console.write(topic, [record(b"v", None, *many, ("n" * 5000, b"x" * 5000))])
    (found,), _ = console.read(topic, **{"from": "beginning"})
    assert (found["header_count"], len(found["headers"])) == (10_001, 20)
    whole = console.get(f"topics/{topic}/messages/0/0")["record"]
    assert len(whole["headers"]) == 10_001
    assert whole["headers"][9_999] == [
        "h9999", {"as": "text", "text": "v9999", "size": 5, "cut": False}
    ]  # fmt: skip


def test_values_are_decoded_with_the_schema_of_the_request(console: World) -> None:
    topic = console.create("decoded")
    console.write(topic, [record(b"\x0eAda L.!", b"\n\x03Ada")])
    avro = {"value_as": "avro", "schema": '"string"'}
    (found,), _ = console.read(topic, **{"from": "beginning"}, **avro)
    assert found["value"] == {"as": "avro", "text": '"Ada L.!"', "size": 8, "cut": False}
    assert console.get(f"topics/{topic}/messages/0/0", **avro)["record"]["value"] == found["value"]
    schema = base64.b64encode(descriptors()).decode()
    protobuf = {"key_as": "protobuf", "schema": schema, "message": "shop.Order"}
    (found,), _ = console.read(topic, **{"from": "beginning"}, **protobuf)
    assert found["key"]["text"] == '{"user_name": "Ada"}'
    formats = console.get("message-formats")
    assert (formats["avro"], formats["protobuf"], formats["registry"]) == (True, True, None)


def test_a_record_that_is_not_there_is_a_404(console: World, numbers: str) -> None:
    assert (
        "begins at 0 and ends at 10" in console.get(f"topics/{numbers}/messages/0/10", 404)["error"]
    )
    assert "no partition 4" in console.get(f"topics/{numbers}/messages/4/0", 404)["error"]


def test_what_a_reply_holds_is_bounded(console: World) -> None:
    topic = console.create("many")
    for _ in range(6):
        console.write(topic, [record(b"x" * 100)] * 2000)
    records, last = console.read(topic, **{"from": "beginning"}, limit=1_000_000)
    assert len(records) == 10_000
    assert last["stopped"] == "found"


# -- tail ----------------------------------------------------------------------------------


def test_a_tail_shows_what_is_written_after_it_began(console: World) -> None:
    topic = console.create("tailed")
    console.write(topic, [record(b"before")])

    async def run() -> list[FoundIn]:
        async with Admin(console.bootstrap) as admin:
            leaders = LeaderCache(admin.router, retry_ms=10_000)
            found: list[FoundIn] = []
            looks = tail.follow(leaders, topic, [Span(0, 1, 1)], Filter("after"))
            async for look in looks:
                if not look.looked and not found:
                    await asyncio.to_thread(console.post, *write)
                found += look.found
                if found:
                    await looks.aclose()
            return found

    write = (f"topics/{topic}/messages", {"value": {"as": "text", "text": "after"}})
    (found,) = asyncio.run(run())
    assert (found.found.record.value, found.found.record.offset) == (b"after", 1)


def test_a_tail_skips_what_is_too_much_to_read() -> None:
    positions = {0: 0, 1: 5, 2: 7}
    spans, skipped = tail.unread(positions, {0: 100_000, 1: 6, 2: 7}, None)
    assert spans == [Span(0, 99_900, 100_000), Span(1, 5, 6)]
    assert skipped == 99_900
    assert tail.unread(positions, {0: 99_900, 1: 5, 2: 7}, None) == ([], 0)
    spans, skipped = tail.unread({0: 0}, {0: 30_000}, 20_000)
    assert (spans, skipped) == ([Span(0, 0, 30_000)], 0)


# -- write ---------------------------------------------------------------------------------


def test_a_record_is_written_as_it_was_given(console: World) -> None:
    topic = console.create("written", 3)
    given = {
        "partition": 2,
        "key": {"as": "hex", "text": "00ff"},
        "value": {"as": "json", "text": '{"n": 1}'},
        "headers": [
            {"name": "a", "as": "text", "text": "1"},
            {"name": "b", "as": "null"},
            {"name": "c", "as": "base64", "text": "/w=="},
        ],
    }
    assert console.post(f"topics/{topic}/messages?dry_run=1", given)["dry_run"]
    done = console.post(f"topics/{topic}/messages", given)
    assert (done["partition"], done["offset"]) == (2, 0)
    (found,), _ = console.read(topic, **{"from": "beginning"})
    assert found["partition"] == 2
    assert found["key"]["text"] == "00ff"
    assert found["value"]["text"] == '{"n": 1}'
    assert [value["as"] for _, value in found["headers"]] == ["text", "null", "hex"]


def test_a_tombstone_is_written(console: World) -> None:
    topic = console.create("tombstones")
    console.post(f"topics/{topic}/messages", {"key": {"text": "k"}, "value": {"as": "null"}})
    (found,), _ = console.read(topic, **{"from": "beginning"})
    assert found["value"] == {"as": "null"}


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"value": {"as": "json", "text": "{"}}, "The value is not json"),
        ({"value": {"as": "hex", "text": "0g"}}, "The value is not hex"),
        ({"key": {"as": "base64", "text": "?"}}, "The key is not base64"),
        ({"value": "plain"}, "object"),
        ({"partition": "one", "value": {"text": ""}}, "number"),
        ({"partition": 7, "value": {"text": ""}}, "no partition 7"),
        ({"headers": [{"text": "x"}]}, "name"),
        ({"headers": {}}, "list"),
    ],
)
def test_a_record_that_cannot_be_written_is_refused_in_words(
    console: World, given: dict, word: str
) -> None:
    console.create(topic := f"refused-{abs(hash(word))}")
    assert word in console.post(f"topics/{topic}/messages", given, 400)["error"]


@pytest.mark.parametrize("key", ["a", "ab", "abc", "abcd", "order-4711", ""])
def test_a_key_chooses_the_partition_of_the_command_line(console: World, key: str) -> None:
    topic = console.create(f"keyed-{key or 'empty'}", 7)
    mine = console.post(f"topics/{topic}/messages", {"key": {"text": key}, "value": {"text": "v"}})
    done = subprocess.run(
        [HIGHTIDE, "produce", topic, "v", "--key", key, "-b", console.bootstrap, "-o", "json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    written = json.loads(done.stdout)
    assert (written[0] if isinstance(written, list) else written)["partition"] == mine["partition"]


@pytest.mark.parametrize(
    "given",
    [
        {"value": {"text": "it's $HOME"}, "key": {"text": "k 1"}, "partition": 1},
        {"value": {"text": "-n"}, "headers": [{"name": "a", "text": "1=2"}]},
        {"value": {"as": "hex", "text": "ff00"}, "key": {"as": "hex", "text": "fe"}},
        {"value": {"as": "null"}, "key": {"text": "gone"}},
        {"value": {"text": "two\nlines"}, "headers": [{"name": "n", "as": "null"}]},
        {"value": {"text": ""}},
    ],
)
def test_the_command_of_a_record_writes_the_same(console: World, given: dict) -> None:
    topic = console.create(f"same-{abs(hash(json.dumps(given)))}", 2)
    done = console.post(f"topics/{topic}/messages", given)
    shell(done["command"])
    (mine, theirs), _ = console.read(topic, **{"from": "beginning"})
    for field in ("key", "value", "headers"):
        assert mine[field] == theirs[field]


def shell(line: str) -> str:
    line = line.replace("hightide ", f"{shlex.quote(HIGHTIDE)} ")
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- replay --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(console: World) -> str:
    console.create("source", 2)
    for partition in range(2):
        console.write(
            "source",
            [record(b"v%d" % n, b"k%d" % n, ("h", b"%d" % n), time_ms=n + 5) for n in range(20)],
            partition,
        )
    return "source"


CHOSEN = [[0, 3], [0, 4], [0, 9], [1, 0], [0, 4]]


def test_a_replay_is_counted_first_and_then_written(console: World, source: str) -> None:
    target = console.create("target", 2)
    given = {"target": target, "records": CHOSEN}
    dry = console.post(f"topics/{source}/replay?dry_run=1", given)
    assert (dry["wanted"], dry["read"], dry["written"]) == (4, 4, 0)
    assert dry["by_partition"] == {"0": 3, "1": 1}
    assert console.read(target, **{"from": "beginning"})[0] == []
    done = console.post(f"topics/{source}/replay", given)
    assert (done["written"], done["missing_count"]) == (4, 0)
    records, _ = console.read(target, **{"from": "beginning"})
    places = sorted((one["partition"], one["key"]["text"], one["time_ms"]) for one in records)
    assert places == [(0, "k3", 8), (0, "k4", 9), (0, "k9", 14), (1, "k0", 5)]
    assert records[0]["headers"][0][0] == "h"


def test_the_commands_of_a_replay_do_the_same(console: World, source: str) -> None:
    target = console.create("target-of-cli", 2)
    given = {"target": target, "records": CHOSEN}
    dry = console.post(f"topics/{source}/replay?dry_run=1", given)
    assert dry["commands"] == 3
    shell(" && ".join(dry["command"].splitlines()))
    records, _ = console.read(target, **{"from": "beginning"})
    assert sorted((one["partition"], one["key"]["text"]) for one in records) == [
        (0, "k3"), (0, "k4"), (0, "k9"), (1, "k0"),
    ]  # fmt: skip


def test_a_replay_says_what_is_missing(console: World, source: str) -> None:
    target = console.create("target-of-missing", 2)
    given = {"target": target, "records": [[0, 1], [0, 77]]}
    done = console.post(f"topics/{source}/replay", given)
    assert (done["written"], done["missing"]) == (1, [[0, 77]])


def test_keys_choose_the_partitions_of_a_smaller_target(console: World, source: str) -> None:
    target = console.create("smaller", 1)
    given = {"target": target, "records": [[1, 0], [1, 1]]}
    assert "no partition 1" in console.post(f"topics/{source}/replay", given, 400)["error"]
    done = console.post(f"topics/{source}/replay", {**given, "placement": "key"})
    assert done["written"] == 2
    assert "jq" in done["command"]


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"records": [[0, 0]]}, 400),
        ({"target": "target", "records": []}, 400),
        ({"target": "target", "records": [[0, -1]]}, 400),
        ({"target": "target", "records": [[9, 0]]}, 400),
        ({"target": "target", "records": [[0, n] for n in range(10_001)]}, 400),
        ({"target": "nowhere", "records": [[0, 0]]}, 404),
        ({"target": "target", "records": [[0, 0]], "placement": "any"}, 400),
    ],
)
def test_a_wrong_replay_is_refused(console: World, source: str, given: dict, status: int) -> None:
    assert console.post(f"topics/{source}/replay", given, status)["error"]


# -- copy as -------------------------------------------------------------------------------

READINGS = [
    ({"from": "beginning", "limit": 6}, 6),
    ({"from": "last", "count": 3}, 3),
    ({"from": "offset", "offset": 8}, 2),
    ({"from": "time", "time": 1650}, 3),
    ({"from": "time", "time": 10**12}, 0),
    ({"from": "beginning", "partitions": "0"}, 10),
]


@pytest.mark.parametrize(("params", "count"), READINGS)
def test_the_command_of_a_reading_reads_the_same(
    console: World, numbers: str, params: dict, count: int
) -> None:
    found = console.get(f"topics/{numbers}/messages/code", **params)
    assert len(shell(found["command"]).splitlines()) == count


@pytest.mark.parametrize("client", ["python", "kafka_python"])
@pytest.mark.parametrize(("params", "count"), READINGS)
def test_the_program_of_a_reading_runs_and_reads_the_same(
    console: World, numbers: str, params: dict, count: int, client: str, tmp_path: Path
) -> None:
    program = console.get(f"topics/{numbers}/messages/code", **params)[client]
    (tmp_path / "read.py").write_text(program)
    done = subprocess.run(
        [sys.executable, tmp_path / "read.py"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == count
