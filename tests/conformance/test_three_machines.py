"""docs/guide/three-machines.md: its commands make a cluster that survives the loss of a machine."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.conformance.page_machines import NETWORK, Machine, Machines, missing
from tests.support.eventually import eventually
from tests.support.pages import ROOT
from tests.unit.cli.test_generate_monitoring import QUERIES, SELECTOR
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


def test_the_probes_of_containers_hold_on_a_machine_that_serves(machines: Machines) -> None:
    """The same commands as in the generated files, at the address of a machine."""
    first, address = machines.all[0], f"{NETWORK}.1"
    image = [line for line in generated("dockerfile").splitlines() if "/readyz" in line]
    probes = [json.loads(image[0].partition("CMD ")[2])]
    for kind in ("ensemble", "embedded"):
        services = yaml.safe_load(generated("compose", "--zookeeper", kind))["services"]
        checks = [service.get("healthcheck") for service in services.values()]
        probes += [check["test"] for check in checks if check is not None][:1]
    for manifest in yaml.safe_load_all(generated("k8s")):
        for container in containers(manifest):
            probe = container["readinessProbe"]
            if "exec" in probe:
                probes.append(probe["exec"]["command"])
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                if "httpGet" in container.get(kind, {}):
                    url = f"http://{address}:9404{container[kind]['httpGet']['path']}"
                    assert urllib.request.urlopen(url, timeout=10).status == 200
    assert len(probes) == 4
    for words in probes:
        shell = {"CMD": words[1:], "CMD-SHELL": ["sh", "-c", *words[1:]]}.get(words[0], words)
        first.run(shlex.join(word.replace("127.0.0.1", address) for word in shell))


def test_a_pod_stops_when_the_cluster_is_healthy(machines: Machines) -> None:
    [brokers] = [
        container
        for manifest in yaml.safe_load_all(generated("k8s"))
        for container in containers(manifest)
        if container["name"] == "broker"
    ]
    machines.all[0].run(CLUSTER + shlex.join(brokers["lifecycle"]["preStop"]["exec"]["command"]))


def test_every_query_of_alerts_and_dashboard_finds_samples(machines: Machines) -> None:
    first = machines.all[0]
    first.run(f"{CLUSTER}hightide consume orders --group shop > /dev/null")
    first.run(
        f"{CLUSTER}hightide topic create orders > /dev/null 2>&1 || true"
    )  # an error, to count
    urls = [f"http://{NETWORK}.{machine.number}:9404/metrics" for machine in machines.all]
    wanted = {
        found for _, query in QUERIES for found in SELECTOR.findall(query) if found[0] != "up"
    }
    assert len(wanted) > 30

    def unanswered() -> set[tuple[str, str]]:
        texts = [urllib.request.urlopen(url, timeout=10).read().decode() for url in urls]
        families = [family for text in texts for family in text_string_to_metric_families(text)]
        samples = [sample for family in families for sample in family.samples]
        return {
            (name, selectors)
            for name, selectors in wanted
            if not any(
                sample.name == name and selects(selectors, sample.labels) for sample in samples
            )
        }

    # The lag of a group is measured again and again, so its first samples come later.
    with contextlib.suppress(AssertionError):
        eventually(lambda: not unanswered(), every_s=0.5)
    assert not unanswered()


def generated(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "hightide", "generate", *arguments],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def containers(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    template = manifest.get("spec", {}).get("template", {})
    return list(template.get("spec", {}).get("containers", []))


def selects(selectors: str, labels: Mapping[str, str]) -> bool:
    """Whether a sample has these labels; places of the dashboard stand for any text."""
    for name, operator, value in re.findall(r'([a-z_]+)(=~|!=|=)"([^"]*)"', selectors):
        found = labels.get(name, "")
        if name in ("job", "instance") or "$" in value:
            continue
        if operator == "=~":
            fits = re.fullmatch(value, found) is not None
        else:
            fits = (found == value) is (operator == "=")
        if not fits:
            return False
    return True


def test_machines_are_restarted_one_after_the_other(machines: Machines) -> None:
    first = machines.all[0]
    before = numbers_by_key(first)
    first.run(CLUSTER + RESTART_ZOOKEEPERS)
    first.run(CLUSTER + RESTART_BROKERS)
    assert numbers_by_key(first) == before
    first.run(f"{CLUSTER}hightide cluster health")
