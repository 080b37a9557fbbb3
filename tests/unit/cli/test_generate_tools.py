"""The tools themselves read the generated files: systemd-analyze, promtool, kubeconform and more.

`make test-rest` installs systemd-analyze; `make generate-tools` fetches the others.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hightide.__main__ import main
from hightide.cli.generate.machines import DEBIAN_CLASSPATH
from tests.support import generate_tools
from tests.unit.cli.test_generate_monitoring import panels

pytestmark = pytest.mark.extended


def tool(name: str, source: str) -> str:
    path = generate_tools.program(name)
    if path is None:
        pytest.skip(f"{name} is not installed here ({source})")
    return path


def generate(file: Path, *arguments: str) -> Path:
    assert main(["generate", *arguments, "--output", str(file)]) == 0
    return file


def run(command: Sequence[str | Path]) -> str:
    """Run a tool that must find nothing wrong; return what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_systemd_reads_the_units(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "Debian package: systemd")
    beside = str(Path(sys.executable).parent / "hightide")
    units = [
        generate(tmp_path / "hightide.service", "systemd", "--program", beside),
        generate(
            tmp_path / "hightide-zookeeper.service",
            "systemd", "--zookeeper", "--program", beside, "--data", "/srv/data 1",
        ),
    ]  # fmt: skip
    if shutil.which("/usr/bin/java"):
        member = ("zookeeper", "--servers", "a,b,c", "--id", "1", "--output", str(tmp_path))
        assert main(["generate", *member]) == 0
        units.append(tmp_path / "zookeeper.service")
    for unit in units:
        # It ends with 0 after a warning such as "Unknown key", so it must print nothing.
        assert not run([analyze, "verify", "--man=no", unit])


def test_systemd_finds_a_wrong_setting(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "Debian package: systemd")
    unit = generate(tmp_path / "hightide.service", "systemd", "--program", sys.executable)
    unit.write_text(unit.read_text().replace("UMask=", "UMisk="))
    assert "UMisk" in run([analyze, "verify", "--man=no", unit])


def test_prometheus_reads_the_alerts_and_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    promtool = tool("promtool", "make generate-tools")
    rules = generate(tmp_path / "rules.yaml", "prometheus-rules")
    assert "SUCCESS" in run([promtool, "check", "rules", "--lint=all", "--lint-fatal", rules])
    queries = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    recorded = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(queries)
    ]
    file = tmp_path / "dashboard.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": recorded}]}))
    assert f"SUCCESS: {len(queries)} rules" in run([promtool, "check", "rules", file])


BROKER = '{job="hightide",instance="one:9404"}'
CONTROLLERS = f"kafka_controller_kafkacontroller_activecontrollercount{BROKER}"
OFFLINE = f"kafka_controller_kafkacontroller_offlinepartitionscount{BROKER}"
FREE, TOTAL = (
    f'hightide_log_directory_{kind}_bytes{{job="hightide",instance="one:9404",logdirectory="/d"}}'
    for kind in ("free", "total")
)
LAG = (
    'kafka_consumergroup_lag_seconds{job="hightide",instance="one:9404",consumergroup="shop",'
    'topic="orders",partition="0"}'
)
MEMBERS = 'kafka_consumergroup_members{job="hightide",instance="one:9404",consumergroup="shop"}'
WELL = {
    f"up{BROKER}": "1x60", CONTROLLERS: "1x60", OFFLINE: "0x60", FREE: "90x60", TOTAL: "100x60",
    LAG: "2x60", MEMBERS: "1x60",
}  # fmt: skip
"""What Prometheus sees for an hour, a sample each minute, in its notation: VALUE+STEPxTIMES."""
STORIES: dict[str, tuple[dict[str, str], set[str]]] = {
    "all is well": ({}, set()),
    "a broker is down": ({f"up{BROKER}": "0x60"}, {"BrokerDown"}),
    "nothing is scraped": ({f"up{BROKER}": "_x60"}, {"NotScraped"}),
    "there is no controller": ({CONTROLLERS: "0x60"}, {"NoController"}),
    "partitions have no leader": ({OFFLINE: "4x60"}, {"OfflinePartitions"}),
    "a disk is full": ({FREE: "2x60"}, {"DiskFull"}),
    "a disk fills": ({FREE: "39-0.5x60"}, {"DiskFills"}),
    "a group falls behind": ({LAG: "0+60x60"}, {"GroupFallsBehind"}),
    "a group is behind and catches up": ({LAG: "9000-60x60"}, set()),
    "a group has no members": ({LAG: "1000x60", MEMBERS: "0x60"}, {"GroupWithoutMembers"}),
}


@pytest.mark.parametrize("story", STORIES)
def test_an_alert_fires_when_it_should_and_only_then(story: str, tmp_path: Path) -> None:
    promtool = tool("promtool", "make generate-tools")
    rules = generate(tmp_path / "rules.yaml", "prometheus-rules")
    changed, alerts = STORIES[story]
    series = [{"series": name, "values": values} for name, values in (WELL | changed).items()]
    expected = [
        {"labels": f'{{alertname="Hightide{alert}"}}', "value": 1} for alert in sorted(alerts)
    ]
    firing = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": "59m",
        "exp_samples": expected,
    }
    hour = {"interval": "1m", "input_series": series, "promql_expr_test": [firing]}
    file = tmp_path / "test.json"
    file.write_text(
        json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [hour]})
    )
    assert "SUCCESS" in run([promtool, "test", "rules", file])


@pytest.mark.parametrize("version", generate_tools.KUBERNETES_VERSIONS)
@pytest.mark.parametrize("options", [(), ("--replicas", "5", "--storage-class", "fast")])
def test_kubernetes_has_schemas_for_all_that_the_manifests_say(
    options: tuple[str, ...], version: str, tmp_path: Path
) -> None:
    kubeconform = tool("kubeconform", "make generate-tools")
    if not generate_tools.SCHEMAS.exists():
        pytest.skip("the schemas of Kubernetes are not here (make generate-tools)")
    manifests = generate(tmp_path / "k8s.yaml", "k8s", *options)
    command = [kubeconform, "-strict", "-summary", "-kubernetes-version", version]
    command += ["-schema-location", generate_tools.schema_location()]
    assert "Valid: 9, Invalid: 0, Errors: 0, Skipped: 0" in run([*command, str(manifests)])


@pytest.mark.parametrize("kind", ["ensemble", "embedded"])
def test_the_loader_of_compose_reads_the_file(kind: str, tmp_path: Path) -> None:
    loader = tool("compose-config", "make generate-tools")
    file = generate(tmp_path / "compose.yaml", "compose", "--zookeeper", kind)
    assert "broker-3:" in run([loader, file])


@pytest.mark.parametrize("package", [".", "dist/hightide.whl", "hightide==0.1.0"])
def test_hadolint_finds_nothing_in_the_dockerfile(package: str, tmp_path: Path) -> None:
    hadolint = tool("hadolint", "make generate-tools")
    file = generate(tmp_path / "Dockerfile", "dockerfile", "--package", package)
    run([hadolint, "--failure-threshold", "warning", file])


def test_debian_has_the_jars_that_the_unit_names() -> None:
    jars = [Path(jar) for jar in DEBIAN_CLASSPATH.split(":")]
    if not jars[0].exists():
        pytest.skip("Apache ZooKeeper is not installed (Debian package: zookeeper)")
    assert all(jar.exists() for jar in jars)
