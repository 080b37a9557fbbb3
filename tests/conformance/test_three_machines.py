"""docs/guide/three-machines.md: its commands make a cluster that survives the loss of a machine."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.conformance.page_machines import NETWORK, Machine, Machines, missing
from tests.support.pages import ROOT
from tests.zookeeper import servers

PAGE = ROOT / "docs" / "guide" / "three-machines.md"
KEYS = 12

REASON = missing() or servers.missing()
pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(REASON), reason=REASON),
]


def blocks(section: str) -> list[str]:
    """The shell blocks of a section of the page."""
    text = PAGE.read_text("utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"(?ms)^```sh\n(.*?)^```", text)


[CONFIGURE] = blocks("Configure")
START_ZOOKEEPER, START_BROKER = blocks("Start")
CHECK, WATCH = blocks("Check")
RESTART_BROKERS, RESTART_ZOOKEEPERS = blocks("Restart one machine after the other")
[UNTIL_REPLACED] = blocks("Replace a machine")
[CLUSTER] = [line + "\n" for line in CHECK.splitlines() if line.startswith("export ")]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """The cluster of the page, started and checked by its commands."""
    found = Machines(tmp_path_factory.mktemp("machines"))
    with found.running():
        for machine in found.all:
            machine.run(CONFIGURE)
        for machine in found.all:
            machine.run(START_ZOOKEEPER)
        for machine in found.all:
            machine.run(START_BROKER)
        found.all[0].run(CHECK)
        yield found


def lines(numbers: range) -> str:
    """Records of these numbers, for `hightide produce`: the key, a tab and the value."""
    return "".join(f"{number % KEYS}\t{number}\n" for number in numbers)


def produce(machine: Machine, numbers: range) -> None:
    """Produce with acks=all; the command fails if a record is not acknowledged."""
    machine.run(f"{CLUSTER}hightide produce orders --key-separator '\t'", feed=lines(numbers))


def numbers_by_key(machine: Machine) -> dict[int, list[int]]:
    """Read everything, in the order of each partition."""
    found = defaultdict(list)
    for line in machine.run(f"{CLUSTER}hightide consume orders --format '%k %s\\n'").splitlines():
        key, _, number = line.partition(" ")
        found[int(key)].append(int(number))
    return dict(found)


def every(numbers: range) -> dict[int, list[int]]:
    """What must be read after these numbers were acknowledged: each once, in order."""
    return {key: [number for number in numbers if number % KEYS == key] for key in range(KEYS)}


def test_every_machine_has_the_files_that_the_page_generates(machines: Machines) -> None:
    for machine in machines.all:
        etc = machine.folder / "etc"
        assert (machine.folder / "var-lib/zookeeper/myid").read_text() == f"{machine.number}\n"
        assert "server.3=m3.example:2888:3888" in (etc / "hightide/zoo.cfg").read_text()
        assert f"broker.id={machine.number}\n" in (etc / "hightide/server.properties").read_text()
    machines.all[0].run(WATCH)
    assert (machines.all[0].folder / "work" / "hightide-rules.yaml").exists()
    hosts = [f"{NETWORK}.{machine.number}:2181" for machine in machines.all]
    modes = [servers.four_letters(host, "srvr").partition("\nMode: ")[2] for host in hosts]
    assert sorted(mode.partition("\n")[0] for mode in modes) == ["follower", "follower", "leader"]


def test_a_machine_is_lost_and_replaced_while_records_are_written(machines: Machines) -> None:
    first, second, third = machines.all
    produce(first, range(1000))
    with second.start(f"{CLUSTER}exec hightide produce orders --key-separator '\t'") as producer:
        assert producer.stdin is not None
        producer.stdin.write(lines(range(1000, 2000)))
        producer.stdin.flush()
        third.kill()
        producer.stdin.write(lines(range(2000, 3000)))
        producer.stdin.close()
        assert producer.wait(240) == 0, "each record was acknowledged"
    assert numbers_by_key(first) == every(range(3000))
    with second.start(f"{CLUSTER}exec hightide cluster health") as health:
        said, _ = health.communicate(timeout=60)
    assert health.returncode == 3, said
    assert "m3.example:9092" in said

    third.make()
    for block in (CONFIGURE, START_ZOOKEEPER, START_BROKER):
        third.run(block)
    second.run(CLUSTER + UNTIL_REPLACED)
    produce(third, range(3000, 4000))
    assert numbers_by_key(second) == every(range(4000))


def test_machines_are_restarted_one_after_the_other(machines: Machines) -> None:
    first = machines.all[0]
    before = numbers_by_key(first)
    first.run(CLUSTER + RESTART_ZOOKEEPERS)
    first.run(CLUSTER + RESTART_BROKERS)
    assert numbers_by_key(first) == before
    first.run(f"{CLUSTER}hightide cluster health")
