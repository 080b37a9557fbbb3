"""`hightide partition` and `hightide cluster health` against three brokers that fail and return."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import termios
import time
from dataclasses import dataclass

import pytest

from hightide.__main__ import main
from hightide.process import environment
from tests.support.eventually import eventually
from tests.support.processes import hightide, start

MEGABYTE = 1_000_000


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self):
        assert self.code in (0, 3), self.err
        return json.loads(self.out)


@pytest.fixture
def run(three, capfd, monkeypatch):
    """Run a command in this process, which is faster than a process for each."""

    def command(*arguments):
        able = ",".join(f"127.0.0.1:{three.port(broker_id)}" for broker_id in three.able())
        monkeypatch.setenv("HIGHTIDE_BOOTSTRAP", able)
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return Done(code, said.out, said.err)

    return command


def shown(run, topic, index=0):
    (found,) = run("partition", "show", f"{topic}/{index}", "-o", "json").json
    return found


def states(found):
    return {replica["replica"]: replica for replica in found["replica_states"]}


def listed(run, *options):
    rows = run("partition", "list", *options, "-o", "json").json
    return {(row["topic"], row["partition"]): row for row in rows}


# -- describing --------------------------------------------------------------------------------


def test_a_partition_in_sync_is_shown_with_its_replicas(three, run):
    topic = three.place_topic({0: [2, 1, 3]})
    three.write(topic, b"one", b"two", b"three")
    found = eventually(lambda: all_have(run, topic, 3) and shown(run, topic))
    assert (found["leader"], found["replicas"], found["osr"], found["elr"]) == (
        2,
        [2, 1, 3],
        [],
        [],
    )
    assert (sorted(found["isr"]), found["min_isr"]) == ([1, 2, 3], 2)
    assert {replica["role"] for replica in found["replica_states"]} == {"leader", "follower"}
    assert [replica["lag_records"] for replica in found["replica_states"]] == [0, 0, 0]
    assert [replica["lag_ms"] for replica in found["replica_states"]] == [0, 0, 0]
    assert [replica["why"] for replica in found["replica_states"]] == [
        "leads",
        "in sync",
        "in sync",
    ]
    page = run("partition", "show", topic).out
    assert f"{topic}/0\nleader    2 (epoch {found['leader_epoch']})\nAR        2,1,3\n" in page
    assert page.count("=|\n") == 3


def all_have(run, topic, end_offset):
    return all(
        (replica["end_offset"], replica["high_watermark"]) == (end_offset, end_offset)
        for replica in shown(run, topic)["replica_states"]
    )


def test_what_does_not_exist_is_said(three, run):
    topic = three.place_topic({0: [1]})
    missing = run("partition", "show", f"{topic}/7")
    assert (missing.code, missing.out) == (1, "")
    assert f"Topic '{topic}' has no partition 7 (UNKNOWN_TOPIC_OR_PARTITION)" in missing.err
    assert run("partition", "show", "nowhere").code == 1
    assert run("partition", "list", "--topic", "nowhere").code == 1


def test_watching_looks_again_until_it_is_stopped(three, run):
    topic = three.place_topic({0: [1, 2, 3]})
    arguments = ("partition", "show", topic, "--watch", "--interval", "0.1", "-o", "json")
    with hightide(*arguments, bootstrap=three.bootstrap) as child:

        def next_end():
            return json.loads(child.stdout.readline())[0]["replica_states"][0]["end_offset"]

        assert next_end() == 0
        three.write(topic, b"x")
        eventually(lambda: next_end() == 1)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)
        assert (child.returncode, errors) == (0, b"")


def printed_pictures(child, first):
    """The pictures that a watch prints into a pipe; the first line of each begins like this."""
    lines: list[str] = []
    for line in iter(child.stdout.readline, b""):
        if line.startswith(first.encode()) and lines:
            yield "".join(lines)
            lines = []
        lines.append(line.decode())


def test_watching_shows_a_failover_and_a_broker_that_is_silent(three):
    topic = three.place_topic({0: [1, 2, 3]})
    three.write(topic, b"x")
    arguments = ("partition", "show", f"{topic}/0", "--watch", "--interval", "0.1")
    addresses = ",".join(f"127.0.0.1:{three.port(broker)}" for broker in (1, 2, 3))
    with hightide(*arguments, bootstrap=addresses) as child:
        pictures = printed_pictures(child, f"{topic}/0 ")

        def is_seen(*patterns):
            eventually(
                lambda: (text := next(pictures)) and all(re.search(one, text) for one in patterns)
            )

        is_seen("✓ All replicas are in sync", "★ 1 leads +█*┃", "leader 1 ")
        three.kill(1)
        is_seen(
            "▲ Out of sync: replica 1",
            "  1 gone ",
            r"★ [23] leads ",
            "broker [23] leads after 1 in leader epoch 1",
            "Failover at .*, leader 1 → [23], epoch 0 → 1",
            r"  1 +█+.*✕",
            r"  [23] +▄+.*★",
        )
        three.restart(1)
        is_seen("  1 in sync ", "broker 1 joins the ISR", "old leader back", "in sync\\s+again")
        three.pause(3)
        try:
            is_seen("  3 ⏸ ", r"★ [12] leads|[12]  *in sync")
        finally:
            three.resume(3)
        is_seen(r"^✓|\n✓")
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)
        assert (child.returncode, errors) == (0, b"")


@pytest.mark.parametrize("has_colours", [True, False])
def test_a_terminal_gets_the_picture_in_its_size_and_its_screen_back(three, has_colours):
    topic = three.place_topic({0: [1, 2, 3]})
    ours, theirs = os.openpty()
    variables = {"HIGHTIDE_BOOTSTRAP": f"127.0.0.1:{three.port(1)}", "TERM": "xterm-256color"}
    if not has_colours:
        variables["NO_COLOR"] = "1"
    termios.tcsetwinsize(theirs, (30, 80))
    command = [sys.executable, "-m", "hightide", "partition", "show", f"{topic}/0", "--watch"]
    inherited = {
        name: value
        for name, value in environment().items()
        if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    }
    child = start(command, env=inherited | variables, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""

    def is_seen(text):
        nonlocal seen
        while text.encode() not in seen:
            seen += os.read(ours, 65536)

    try:
        is_seen("leads")
        shown = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", seen).decode(errors="ignore")
        assert max(len(line) for line in shown.split("\r\n")) <= 80
        assert (b"\x1b[32m" in seen) == has_colours
        termios.tcsetwinsize(ours, (40, 101))
        is_seen(" " * 81)
        child.send_signal(signal.SIGTERM)
        is_seen("\x1b[?1049l")
        assert b"\x1b[?1049h" in seen
        assert b"\x1b[?25h" in seen
        assert child.wait(30) == 128 + signal.SIGTERM
    finally:
        child.kill()
        child.wait()
        os.close(ours)


def test_watching_goes_on_while_the_cluster_is_away(three):
    """With several partitions, and until the brokers are back."""
    topic = three.place_topic({0: [1, 2, 3], 1: [2, 3, 1]})
    arguments = ("partition", "show", topic, "--watch", "--interval", "0.1")
    addresses = ",".join(f"127.0.0.1:{three.port(broker)}" for broker in (1, 2, 3))
    with hightide(*arguments, bootstrap=addresses) as child:
        pictures = printed_pictures(child, f"{topic} ")

        def is_seen(text):
            eventually(lambda: text in next(pictures))

        is_seen("All replicas of 2 partitions are in sync.")
        for broker in (1, 2, 3):
            three.kill(broker)
        is_seen("✕ ")
        for broker in (1, 2, 3):
            three.restart(broker)
        is_seen("All replicas of 2 partitions are in sync.")


def test_watching_begins_while_the_first_broker_of_the_list_is_silent(three):
    topic = three.place_topic({0: [2, 1, 3]})
    arguments = ("partition", "show", f"{topic}/0", "--watch", "--interval", "0.1")
    addresses = ",".join(f"127.0.0.1:{three.port(broker)}" for broker in (1, 2, 3))
    three.pause(1)
    try:
        with hightide(*arguments, bootstrap=addresses) as child:
            assert "★ 2 leads" in next(
                text for text in printed_pictures(child, f"{topic}/0 ") if "leads" in text
            )
    finally:
        three.resume(1)


def test_watching_what_does_not_exist_fails(three, run):
    topic = three.place_topic({0: [1, 2, 3]})
    for name, reason in ((f"{topic}/7", "has no partition 7"), ("nowhere", "There is no topic")):
        for output in ("table", "json"):
            done = run("partition", "show", name, "--watch", "-o", output)
            assert (done.code, done.out) == (1, "")
            assert reason in done.err


@pytest.mark.extended
def test_a_broker_that_is_gone_is_seen_everywhere(three, run):
    """Under-replicated, under min ISR and offline, in the list, on the page and in health."""
    whole = run("cluster", "health")
    assert whole.code == 0, whole.out
    assert whole.out.splitlines()[0].split() == ["healthy", "yes"]
    under = three.place_topic({0: [1, 2, 3]})
    few = three.place_topic({0: [1, 2, 3]}, min_insync_replicas=3)
    alone = three.place_topic({0: [3]})
    three.kill(3)
    eventually(lambda: listed(run, "--offline"))
    assert set(listed(run, "--offline")) == {(alone, 0)}
    assert listed(run, "--topic", under)[under, 0]["status"] == ["under-replicated"]
    assert listed(run, "--under-min-isr")[few, 0]["elr"] == [3]
    assert (under, 0) in listed(run, "--under-replicated")
    assert (under, 0) not in listed(run, "--under-min-isr")
    third = states(shown(run, under))[3]
    assert (third["in_sync"], third["role"], third["why"]) == (
        False,
        None,
        "its broker is not alive",
    )
    assert states(shown(run, few))[3]["why"] == "its broker is not alive; eligible to lead"
    ill = run("cluster", "health")
    assert ill.code == 3
    assert f"Broker 3 (127.0.0.1:{three.port(3)}) is not alive and holds " in ill.out
    assert re.search(r"; last seen: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, \d+ s ago.\n", ill.out)
    assert f"\n  1 offline: neither read nor written: {alone}/0\n" in ill.out
    # Tests before this one have left topics on the same brokers.
    line = r"\n  (\d+) under min ISR: writes with acks=all are refused: (.+)\n"
    refused = re.search(line, ill.out)
    assert refused is not None, ill.out
    led = [row for row in listed(run, "--under-min-isr").values() if row["leader"] is not None]
    assert int(refused[1]) == len(led)
    assert f"{few}/0" in refused[2] or " more topic" in refused[2]
    assert "\n  next: hightide broker start --config server.properties" in ill.out
    found = run("cluster", "health", "-o", "json")
    assert (found.code, found.json["healthy"], found.json["offline"]) == (3, False, 1)
    sentences = [problem["problem"] for problem in found.json["problems"]]
    assert f"{alone}/0 is offline: it has no leader. It waits for broker 3." in sentences
    assert (
        f"{few}/0 has 2 replicas in sync and needs 3: writes with acks=all are refused."
        in sentences
    )
    assert f"{under}/0 is under-replicated: replica 3: its broker is not alive." in sentences
    (cause,) = found.json["causes"]
    assert (cause["kind"], cause["broker"]) == ("broker_not_alive", 3)
    assert abs(cause["last_seen_ms"] - time.time() * 1000) < 60_000
    replicated = cause["effects"][-1]
    assert replicated["kind"] == "under_replicated"
    assert f"{under}/0" in replicated["partitions"]
    held = shown(run, few)
    assert held["high_watermark_waits"].startswith("The high watermark, 0, stands still, because 2")
    assert (held["held_back_by"], held["next"]["command"]) == (3, "hightide cluster health")
    gone = run("partition", "show", alone).out
    assert f"{alone}/0 has no leader, because broker 3 is not alive.\nnext: hightide " in gone
    (third,) = [
        node for node in run("cluster", "info", "-o", "json").json["nodes"] if node["id"] == 3
    ]
    assert (third["alive"], third["leads"], third["in_sync"]) == (False, 0, 0)
    three.heal()
    assert eventually(lambda: run("cluster", "health").code == 0)


@pytest.mark.extended
def test_a_broker_that_hangs_is_named_and_not_waited_for(three, run):
    topic = three.place_topic({0: [1, 2, 3]})
    three.pause(3)
    found = run("partition", "show", topic)
    assert found.code == 0
    assert "Broker 3 did not report its replicas." in found.err


# -- waiting ----------------------------------------------------------------------------------


def said(child):
    """The first line that a command prints to stderr."""
    return child.stderr.readline().decode()


@pytest.mark.extended
def test_a_producer_says_why_it_waits_and_then_goes_on(three, run):
    topic = three.place_topic({0: [1, 2]}, min_insync_replicas=2)
    three.kill(2)
    eventually(lambda: shown(run, topic)["isr"] == [1])
    arguments = ("produce", f"{topic}/0", "x", "-o", "json")
    with hightide(*arguments, bootstrap=f"127.0.0.1:{three.port(1)}") as child:
        assert said(child) == (
            f"Waiting: Too few replicas are in sync in {topic}/0: 1 of the 2 that"
            " min.insync.replicas needs, because broker 2 is not alive; writes with acks=all are"
            " refused and tried again.\n"
        )
        assert said(child).startswith("  next: hightide cluster health")
        three.restart(2)
        out, errors = child.communicate(timeout=60)
    assert child.returncode == 0
    assert [row["offset"] for row in json.loads(out)] == [0]
    assert errors.decode().splitlines()[-1] == f"1 record to {topic}"


@pytest.mark.extended
def test_a_consumer_names_the_partition_without_a_leader(three, run):
    topic = three.place_topic({0: [1], 1: [2]}, min_insync_replicas=1)
    three.write(topic, b"first", index=1)
    arguments = ("consume", topic, "--follow")
    with hightide(*arguments, bootstrap=f"127.0.0.1:{three.port(1)}") as child:
        assert child.stdout.readline() == b"first\n"
        three.kill(2)
        assert said(child) == (
            f"Waiting: There is no leader for {topic}/1, because broker 2 is not alive.\n"
        )
        three.restart(2)
        three.leader_now(topic, 1)
        three.write(topic, b"second", index=1)
        assert child.stdout.readline() == b"second\n"


def test_a_consumer_without_records_says_that_it_is_at_the_end(three, run):
    topic = three.place_topic({0: [1]}, min_insync_replicas=1)
    with hightide("consume", topic, "--follow", bootstrap=three.bootstrap) as child:
        assert said(child) == f"Waiting: Nothing is new in {topic}: this is the end of the log.\n"
        three.write(topic, b"x")
        assert child.stdout.readline() == b"x\n"
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)
        assert (child.returncode, errors) == (0, b"")


# -- elections ---------------------------------------------------------------------------------


def test_the_leadership_goes_back_to_the_preferred_replica(three, run):
    topic = three.place_topic({0: [3, 1, 2], 1: [1, 2, 3]})
    assert three.terminate(3) == 0
    three.leader_now(topic, not_any_of=[3])
    three.heal()
    before = shown(run, topic)["leader"]
    assert before != 3
    row = {"topic": topic, "partition": 0, "was": before}
    would = run("partition", "elect", "--topic", f"{topic}/0", "--dry-run", "-o", "json")
    assert would.json == [{**row, "leader": 3, "result": "would be elected"}]
    assert shown(run, topic)["leader"] == before
    done = run("partition", "elect", "--topic", topic, "-o", "json")
    assert done.json == [
        {**row, "leader": 3, "result": "elected"},
        {"topic": topic, "partition": 1, "was": 1, "leader": 1, "result": "not needed"},
    ]
    everything = run("partition", "elect")
    assert everything.code == 0
    assert run("partition", "elect").err == "No partition needs such an election.\n"


@pytest.mark.extended
def test_an_unclean_election_asks_first_and_ends_an_outage(three, run):
    topic = three.place_topic({0: [2, 3]}, min_insync_replicas=1)
    three.write(topic, b"both have it")
    three.kill(3)
    eventually(lambda: shown(run, topic)["isr"] == [2])
    three.write(topic, b"only 2 has it")
    three.kill(2)
    three.restart(3)
    eventually(lambda: shown(run, topic)["leader"] is None and 3 in states(shown(run, topic)))
    elect = ("partition", "elect", "--topic", topic)
    refused = run(*elect)
    assert refused.code == 1
    assert "PREFERRED_LEADER_NOT_AVAILABLE" in refused.out
    assert refused.err == "hightide: 1 of 1 partitions elected no leader.\n"
    would = run(*elect, "--unclean", "--dry-run", "-o", "json").json
    assert would[0]["leader"] == 3
    assert would[0]["result"] == (
        "would be elected with records up to 1; replicas 2 did not report theirs"
    )
    # No replica is left to ask.
    assert run(*elect, "--unclean").code == 2
    assert shown(run, topic)["leader"] is None
    (done,) = run(*elect, "--unclean", "--yes", "-o", "json").json
    assert (done["was"], done["leader"], done["result"]) == (None, 3, "elected")
    assert eventually(lambda: shown(run, topic)["leader"] == 3)


# -- moves -------------------------------------------------------------------------------------


@pytest.mark.extended
def test_partitions_are_moved_and_the_throttle_is_taken_away(three, run, tmp_path):
    topic = three.place_topic({0: [1, 2], 1: [2, 1]})
    three.write(topic, *(b"%d" % at for at in range(100)))
    move = ("partition", "reassign", topic, "--to", "3,1")
    would = run(*move, "--dry-run", "-o", "json").json
    assert [(row["to"], row["adding"], row["removing"], row["result"]) for row in would] == [
        ([3, 1], [3], [2], "would be moved"),
        ([1, 3], [3], [2], "would be moved"),
    ]
    assert shown(run, topic)["replicas"] == [1, 2]
    back = tmp_path / "back.json"
    done = run(*move, "--wait", "--throttle", 50 * MEGABYTE, "--save", back, "-o", "json")
    assert [row["result"] for row in done.json] == ["done", "done"], done.err
    assert shown(run, topic)["replicas"] == [3, 1]
    assert shown(run, topic)["isr"] == [3, 1]
    assert states(shown(run, topic))[3]["end_offset"] == 100
    assert throttles(run, topic) == set()
    assert run("partition", "reassign", "--file", back, "--wait").code == 0
    assert [shown(run, topic, at)["replicas"] for at in (0, 1)] == [[1, 2], [2, 1]]
    again = run("partition", "reassign", "--file", back, "-o", "json").json
    assert [row["result"] for row in again] == ["there already", "there already"]


def throttles(run, topic):
    """Return the throttle settings of all brokers and topics."""
    found = set()
    for resource in (f"topic/{topic}", "broker/1", "broker/2", "broker/3"):
        rows = run("config", "get", resource, "--changed", "-o", "json").json
        found |= {(resource, row["name"]) for row in rows if "throttled" in row["name"]}
    return found


@pytest.mark.extended
def test_a_move_under_way_is_listed_and_called_off(three, run):
    """The throttle lets one fetch of a megabyte through in about ten seconds, whatever its rate.

    Thirty megabytes therefore take minutes, which is longer than this test on any machine.
    """
    topic = three.place_topic({0: [1]})
    for _ in range(33):
        three.write(topic, bytes(MEGABYTE * 9 // 10))
    begun = run(
        *("partition", "reassign", f"{topic}/0", "--to", "1,2", "--throttle", 1000, "-o", "json")
    )
    assert begun.json[0]["result"] == "moving"
    assert ("broker/2", "follower.replication.throttled.rate") in throttles(run, topic)
    (row,) = eventually(
        lambda: [
            row
            for row in run("partition", "reassign", "--list", "-o", "json").json
            if row["lag_records"].get("2")
        ]
    )
    assert (row["topic"], row["adding"], row["to"]) == (topic, [2], [1, 2])
    assert "reassigning" in listed(run, "--topic", topic)[topic, 0]["status"]
    assert "being added" in states(shown(run, topic))[2]["why"]
    late = run("partition", "reassign", topic, "--wait", "--timeout", "0.2")
    assert (late.code, "still in progress after 0.2 s" in late.err) == (1, True)
    assert run("partition", "reassign", topic, "--cancel", "--dry-run").code == 0
    called_off = run("partition", "reassign", topic, "--cancel", "-o", "json").json
    assert [(move["to"], move["result"]) for move in called_off] == [([1], "cancelled")]
    assert eventually(lambda: shown(run, topic)["replicas"] == [1])
    assert throttles(run, topic) == set()
    assert run("partition", "reassign", "--list").err == "No reassignment is in progress.\n"


def test_a_limit_that_was_left_behind_can_be_removed(three, run):
    topic = three.place_topic({0: [1]})
    for resource, name, value in (
        (f"topic/{topic}", "leader.replication.throttled.replicas", "0:1"),
        ("broker/1", "leader.replication.throttled.rate", "1000"),
    ):
        assert run("config", "set", resource, f"{name}={value}").code == 0
    removed = run("partition", "reassign", topic, "--remove-throttle", "-o", "json").json
    assert removed == [{"topic": topic, "result": "unlimited"}]
    assert throttles(run, topic) == set()


def test_a_plan_that_cannot_be_is_refused_whole(three, run):
    topic = three.place_topic({0: [1, 2]})
    done = run("partition", "reassign", topic, "--to", "1,9")
    assert (done.code, done.out) == (1, "")
    assert f"{topic}/0: broker 9 is not alive. Nothing was reassigned." in done.err
    would = run("partition", "reassign", topic, "--to", "1,9", "--dry-run", "-o", "json")
    assert (would.code, json.loads(would.out)[0]["result"]) == (1, "broker 9 is not alive")
    assert shown(run, topic)["replicas"] == [1, 2]


# -- loss --------------------------------------------------------------------------------------


@pytest.mark.extended
def test_a_replica_that_lost_committed_records_is_shown_loudly_and_is_in_sync_again(three, run):
    """Restore an old copy of the leader's folder: a follower has more records."""
    topic = three.place_topic({0: [1, 2]}, min_insync_replicas=1)
    for at in range(10):
        three.write(topic, b"%d" % at)
    eventually(lambda: all_have(run, topic, 10))
    assert three.terminate(2) == 0
    assert three.terminate(1) == 0
    cut_in_half(three.folder(1, topic))
    three.restart(1)
    assert three.leader_now(topic) == 1
    three.restart(2)
    eventually(lambda: states(shown(run, topic))[2]["lost_records"] == 5)
    eventually(lambda: all_have(run, topic, 5))
    eventually(lambda: states(shown(run, topic))[2]["in_sync"])
    page = run("partition", "show", topic).out
    assert f"!!! Replica 2 of {topic}/0 has LOST committed records." in page
    assert "LOST 5 committed records that its leader lacked" in page
    ill = run("cluster", "health")
    assert ill.code == 3
    assert f"Replica 2 of {topic}/0 lost 5 committed records" in ill.out
    # As docs/guide/replication.md says, a restart of the broker acknowledges the loss.
    assert three.terminate(2) == 0
    three.restart(2)
    eventually(lambda: run("cluster", "health").code == 0)


def cut_in_half(folder):
    """Cut a log of ten equal batches to five, without a trace: an old copy has none of the rest."""
    (log,) = folder.glob("*.log")
    data = log.read_bytes()
    log.write_bytes(data[: len(data) // 2])
    for other in (*folder.glob("*index"), *folder.glob("*.snapshot")):
        other.unlink()
