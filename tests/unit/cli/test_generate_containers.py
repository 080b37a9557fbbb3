"""The generated files for containers: they parse, and their addresses, ports and volumes agree."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from hightide.cli.generate import containers
from hightide.cli.generate.containers import INSIDE_PORT, ZooKeeperKind
from hightide.settings import Broker, load_broker
from hightide.zookeeper.server.main import _options, _parser
from tests.support.pages import ROOT


def compose(
    brokers: int = 3, kind: ZooKeeperKind = ZooKeeperKind.ENSEMBLE, name: str = "hightide"
) -> dict[str, Any]:
    text = containers.compose(brokers, "hightide:1", kind, 9092, name)
    return dict(yaml.safe_load(text))


def manifests(replicas: int = 3, **options: Any) -> dict[tuple[str, str], dict[str, Any]]:
    given: dict[str, Any] = {
        "name": "tide", "namespace": "logs", "image": "hightide:1", "storage": "50Gi",
        "storage_class": None, "domain": "cluster.local",
    }  # fmt: skip
    text = containers.kubernetes(replicas=replicas, **given | options)
    found = {}
    for manifest in yaml.safe_load_all(text):
        found[manifest["kind"], manifest["metadata"]["name"]] = manifest
    return found


def dockerfile(package: str = ".") -> list[str]:
    """The instructions, with the lines that continue others joined to them."""
    text = containers.dockerfile("3.13", package, "hightide:1").replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def image_variables() -> dict[str, str]:
    [line] = [line for line in dockerfile() if line.startswith("ENV ")]
    pairs = (pair.partition("=") for pair in line.split()[1:])
    return {name: value for name, _, value in pairs}


def broker(variables: Mapping[str, str]) -> Broker:
    """The settings of a broker that is started in the image with these variables."""
    settings = load_broker(None, image_variables() | dict(variables), [])
    assert not list(settings.without_effect())
    return settings


# -- the image ---------------------------------------------------------------------------------


def test_the_image_does_not_run_as_root_and_keeps_its_data_in_a_volume() -> None:
    lines = dockerfile()
    assert "USER 10001:10001" in lines
    assert "VOLUME /var/lib/hightide" in lines
    settings = broker({})
    assert settings.log_dirs == ("/var/lib/hightide/data",)
    assert settings.listening()[0].host == "0.0.0.0"
    [metrics] = settings.metrics_listening()
    assert f"EXPOSE {settings.listening()[0].port} {metrics.port}" in lines
    [health] = [line for line in lines if line.startswith("HEALTHCHECK")]
    assert f"http://127.0.0.1:{metrics.port}/readyz" in health


def test_the_image_of_a_checkout_copies_what_the_installation_reads() -> None:
    copied = [json.loads(line[5:]) for line in dockerfile() if line.startswith("COPY [")]
    for *sources, _ in copied:
        assert all((ROOT / source).exists() for source in sources)
    assert ["src", "/source/src"] in copied
    project = (ROOT / "pyproject.toml").read_text()
    for needed in re.findall(r'(?m)^readme = "(.*)"|^license-files = \["(.*)"\]', project):
        assert {*needed} & set(copied[0])


@pytest.mark.parametrize(
    ("package", "copied", "installed"),
    [
        ("dist/hightide-1-py3-none-any.whl", True, "/source/hightide-1-py3-none-any.whl"),
        ("hightide[spark]==1.0", False, "hightide[spark]==1.0"),
        ("https://example.org/hightide.whl", False, "https://example.org/hightide.whl"),
    ],
)
def test_the_image_of_a_package_installs_it(package: str, copied: bool, installed: str) -> None:
    lines = dockerfile(package)
    assert any(line.startswith(f'COPY ["{package}"') for line in lines) is copied
    [install] = [json.loads(line[4:]) for line in lines if '"install"' in line]
    assert install[-1] == installed


# -- Compose -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ZooKeeperKind)
@pytest.mark.parametrize("brokers", [1, 3])
def test_the_services_of_compose_agree(brokers: int, kind: ZooKeeperKind) -> None:
    project = compose(brokers, kind)
    services = project["services"]
    volumes = [
        volume.split(":")[0] for service in services.values() for volume in service["volumes"]
    ]
    assert sorted(volumes) == sorted(project["volumes"]), "each volume is used once"
    ids = set()
    for number in range(1, brokers + 1):
        service = services[f"broker-{number}"]
        settings = broker(service["environment"])
        ids.add(settings.broker_id)
        inside, outside = settings.listening()
        assert inside.name == settings.inter_broker_listener()
        published = f"127.0.0.1:{outside.port}:{outside.port}"
        assert service["ports"] == [published]
        assert [str(listener) for listener in settings.advertising()] == [
            f"INTERNAL://broker-{number}:{INSIDE_PORT}",
            f"HOST://localhost:{outside.port}",
        ]
        assert service["hostname"] == f"broker-{number}"
        connect = (settings.zookeeper_connect or "").split(",")
        assert {member.removesuffix(":2181") for member in connect} == set(service["depends_on"])
        assert set(service["depends_on"]) <= set(services)
        assert settings.default_replication_factor == brokers
        assert settings.min_insync_replicas == max(1, brokers - 1)
    assert len(ids) == brokers


def test_compose_with_an_ensemble_names_each_member_to_the_others() -> None:
    services = compose()["services"]
    members = {name for name in services if name.startswith("zookeeper")}
    for name in members:
        service = services[name]
        listed = dict(
            entry.split("=", 1) for entry in service["environment"]["ZOO_SERVERS"].split()
        )
        assert {address.split(":")[0] for address in listed.values()} == members
        own = listed[f"server.{service['environment']['ZOO_MY_ID']}"]
        assert own == f"{name}:2888:3888;2181"
        assert service["hostname"] == name


def test_compose_with_the_embedded_zookeeper_starts_it_as_the_command_line_does() -> None:
    service = compose(3, ZooKeeperKind.EMBEDDED)["services"]["zookeeper"]
    assert service["command"][:2] == ["zookeeper", "start"]
    options = _options(_parser().parse_args(service["command"][2:]))
    assert (options.host, options.port) == ("0.0.0.0", 2181)
    assert "ports" not in service, "it has no credentials, so no other host may reach it"
    directory = service["volumes"][0].split(":")[1]
    assert str(options.file).startswith(directory)


@pytest.mark.parametrize("name", ["123", "true", "on"])
def test_a_name_that_yaml_would_read_as_something_else_stays_a_text(name: str) -> None:
    assert compose(name=name)["name"] == name
    assert ("Namespace", name) in manifests(namespace=name)


# -- Kubernetes --------------------------------------------------------------------------------


def container(manifest: Mapping[str, Any]) -> dict[str, Any]:
    [found] = manifest["spec"]["template"]["spec"]["containers"]
    return dict(found)


def variables(pod: str, found: Mapping[str, Any]) -> dict[str, str]:
    """The environment of a pod, with what Kubernetes puts in; optional secrets are left out."""
    values = {}
    for entry in found["env"]:
        if "value" in entry:
            values[entry["name"]] = entry["value"].replace("$(POD_NAME)", pod)
    fields = {
        entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in found["env"]
        if "fieldRef" in entry.get("valueFrom", {})
    }
    assert fields["POD_NAME"] == "metadata.name"
    assert fields["KAFKA_BROKER_ID"] == "metadata.labels['apps.kubernetes.io/pod-index']"
    return values | {"KAFKA_BROKER_ID": pod.rpartition("-")[2]}


def mounts(found: Mapping[str, Any]) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in found["volumeMounts"]}


@pytest.mark.parametrize("replicas", [1, 3, 5])
def test_brokers_advertise_the_names_that_their_headless_service_has(replicas: int) -> None:
    found = manifests(replicas)
    stateful = found["StatefulSet", "tide"]
    service = found["Service", stateful["spec"]["serviceName"]]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert stateful["spec"]["replicas"] == replicas
    ports = {port["name"]: port["containerPort"] for port in container(stateful)["ports"]}
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    for number in range(replicas):
        settings = broker(variables(f"tide-{number}", container(stateful)))
        assert settings.broker_id == number
        host = f"tide-{number}.tide.logs.svc.cluster.local"
        assert [(listener.host, listener.port) for listener in settings.advertising()] == [
            (host, ports["kafka"])
        ]
        assert settings.listening()[0].port == ports["kafka"]
        assert settings.metrics_listening()[0].port == ports["metrics"]
        assert settings.default_replication_factor == min(3, replicas)


def test_probes_ask_for_health_at_the_port_of_metrics() -> None:
    found = container(manifests()["StatefulSet", "tide"])
    kinds = ("startup", "readiness", "liveness")
    paths = {kind: found[f"{kind}Probe"]["httpGet"] for kind in kinds}
    assert {name: probe["path"] for name, probe in paths.items()} == {
        "startup": "/readyz?exclude=replicas",
        "readiness": "/readyz",
        "liveness": "/livez",
    }
    assert {probe["port"] for probe in paths.values()} == {"metrics"}


def test_selectors_find_the_pods_of_their_set_and_no_others() -> None:
    found = manifests()
    brokers = found["StatefulSet", "tide"]["spec"]["template"]["metadata"]["labels"]
    members = found["StatefulSet", "tide-zookeeper"]["spec"]["template"]["metadata"]["labels"]
    assert brokers != members
    for name, labels in (
        ("tide", brokers),
        ("tide-bootstrap", brokers),
        ("tide-zookeeper", members),
    ):
        assert found["Service", name]["spec"]["selector"] == labels
    for name, labels in (("tide", brokers), ("tide-zookeeper", members)):
        for kind in ("StatefulSet", "PodDisruptionBudget"):
            assert found[kind, name]["spec"]["selector"]["matchLabels"] == labels


def test_data_is_on_claimed_disks_and_the_rest_is_read_only() -> None:
    stateful = manifests(storage_class="fast")["StatefulSet", "tide"]["spec"]
    [claim] = stateful["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"]["storage"] == "50Gi"
    found = container({"spec": stateful})
    directories = broker(variables("tide-0", found)).log_dirs or ()
    place = mounts(found)[claim["metadata"]["name"]]
    assert directories == (f"{place}/data",)
    assert found["securityContext"]["readOnlyRootFilesystem"] is True
    security = stateful["template"]["spec"]["securityContext"]
    assert security["runAsNonRoot"] is True
    assert f"USER {security['runAsUser']}:{security['runAsGroup']}" in dockerfile()


def test_a_pod_has_time_to_hand_over_its_leaderships() -> None:
    spec = manifests()["StatefulSet", "tide"]["spec"]["template"]["spec"]
    command = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command[0] == "timeout"
    assert int(command[1]) + 120 <= spec["terminationGracePeriodSeconds"]


def test_the_ensemble_of_kubernetes_has_the_names_that_brokers_connect_to() -> None:
    found = manifests()
    config = found["ConfigMap", "tide-zookeeper"]["data"]["zoo.cfg"]
    servers = dict(re.findall(r"(?m)^server\.(\d)=([^:]+):2888:3888;2181$", config))
    stateful = found["StatefulSet", "tide-zookeeper"]["spec"]
    group = stateful["serviceName"]
    names = [f"tide-zookeeper-{number}.{group}.logs.svc.cluster.local" for number in range(3)]
    assert servers == {str(number): name for number, name in enumerate(names, 1)}
    assert "quorumListenOnAllIPs=true" in config.splitlines()
    settings = broker(variables("tide-0", container(found["StatefulSet", "tide"])))
    assert (settings.zookeeper_connect or "").split(",") == [f"{name}:2181" for name in names]
    [data] = re.findall(r"(?m)^dataDir=(.*)$", config)
    assert mounts(container({"spec": stateful}))["data"] == data
    assert f">{data}/myid" in container({"spec": stateful})["command"][-1]
