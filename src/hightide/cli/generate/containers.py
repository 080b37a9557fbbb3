"""Files for containers: a Dockerfile, a Compose file and Kubernetes manifests."""

from __future__ import annotations

import json
import textwrap
from enum import StrEnum

from hightide.cli.generate.machines import zoo_cfg
from hightide.cli.generate.template import double_quoted, fill, matching
from hightide.cli.options import wrong_usage

METRICS_PORT = "9404"
INSIDE_PORT = 19092
"""The port of a broker for the other containers of a Compose file."""

MOST_REPLICAS = 3
ZOOKEEPER_IMAGE = "zookeeper:3.9"
MEMBERS = 3
BUILD_FILES = ("pyproject.toml", "hatch_build.py", "constraints.txt", "README.md", "LICENSE")
"""The files of a checkout that `pip install` reads beside `src`."""
DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?"
SERVICE_NAME = r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?"
"""The names of services begin with a letter."""
DNS_NAME = r"[a-z0-9]([a-z0-9.-]{0,200}[a-z0-9])?"
IMAGE = r"[a-z0-9][A-Za-z0-9._:/@-]*"
QUANTITY = r"[1-9][0-9]*(\.[0-9]+)?(Mi|Gi|Ti|Pi|M|G|T|P)"


class ZooKeeperKind(StrEnum):
    """Which ZooKeeper a Compose file runs."""

    ENSEMBLE = "ensemble"
    EMBEDDED = "embedded"


def dockerfile(python: str, package: str, tag: str) -> str:
    version = matching(r"3\.(1[1-9]|[2-9][0-9])(\.[0-9]+)?", python, "a Python, 3.11 or newer")
    pip = '"/opt/hightide/bin/pip", "install", "--no-cache-dir"'
    hint = ""
    if package == ".":
        # Not the whole checkout: its environment and its history are large.
        copied = [*BUILD_FILES, "/source/"]
        install = f"COPY {json.dumps(copied)}\n"
        install += 'COPY ["src", "/source/src"]\n'
        install += f'RUN [{pip}, "--constraint", "/source/constraints.txt", "/source"]'
        hint = " The build context is a checkout."
    elif package.endswith(".whl") and "://" not in package:
        target = double_quoted(f"/source/{package.rpartition('/')[2]}")
        install = f"COPY [{double_quoted(package)}, {target}]\nRUN [{pip}, {target}]"
    else:
        install = f"RUN [{pip}, {double_quoted(package)}]"
    return fill(
        "Dockerfile",
        {
            "python": version,
            "install": install,
            "build_hint": hint,
            "metrics_port": METRICS_PORT,
            "tag": matching(IMAGE, tag, "the name of an image"),
        },
    )


def compose(brokers: int, image: str, kind: ZooKeeperKind, port: int, name: str) -> str:
    last = port + brokers - 1
    if port <= INSIDE_PORT <= last or last > 65535:
        wrong_usage(f"--port {port}: ports {port} to {last} must leave out {INSIDE_PORT}")
    members = [f"zookeeper-{number}" for number in range(1, MEMBERS + 1)]
    if kind is ZooKeeperKind.EMBEDDED:
        members = ["zookeeper"]
    image = double_quoted(matching(IMAGE, image, "the name of an image"))
    ids = range(1, brokers + 1)
    services = [
        fill(
            "compose-broker.yaml",
            {"id": str(n), "inside_port": str(INSIDE_PORT), "outside_port": str(port + n - 1)},
        )
        for n in ids
    ]
    volumes = [f"broker-{n}" for n in ids]
    if kind is ZooKeeperKind.EMBEDDED:
        services.append(fill("compose-embedded.yaml", {"image": image}))
        volumes.append("zookeeper")
    else:
        services += [_compose_member(number, members) for number in range(1, MEMBERS + 1)]
        volumes += [f"{member}{log}" for member in members for log in ("", "-log")]
    replicas = min(MOST_REPLICAS, brokers)
    return fill(
        "compose.yaml",
        {
            "count": "One Hightide broker" if brokers == 1 else f"{brokers} Hightide brokers",
            "zookeeper": "the embedded ZooKeeper"
            if kind is ZooKeeperKind.EMBEDDED
            else "an Apache ZooKeeper ensemble",
            "inside": f"broker-1:{INSIDE_PORT}",
            "outside": ",".join(f"localhost:{port + n - 1}" for n in ids),
            "name": matching(r"[a-z0-9][a-z0-9_-]{0,60}", name, "the name of a project"),
            "image": image,
            "depends_on": "\n".join(
                f"    {member}: {{condition: service_healthy}}" for member in members
            ),
            "connect": ",".join(f"{member}:2181" for member in members),
            "replication_factor": str(replicas),
            "min_isr": str(_min_isr(replicas)),
            "services": "".join(services),
            "volumes": "\n".join(f"  {volume}:" for volume in volumes),
        },
    )


def _compose_member(number: int, members: list[str]) -> str:
    servers = " ".join(f"server.{n}={host}:2888:3888;2181" for n, host in enumerate(members, 1))
    return fill(
        "compose-zookeeper.yaml",
        {
            "id": str(number),
            "servers": double_quoted(servers),
            "zookeeper_image": ZOOKEEPER_IMAGE,
        },
    )


def kubernetes(
    *,
    replicas: int,
    name: str,
    namespace: str,
    image: str,
    storage: str,
    storage_class: str | None,
    domain: str,
) -> str:
    matching(SERVICE_NAME, name, "a name for a service of Kubernetes")
    matching(DNS_LABEL, namespace, "the name of a namespace")
    matching(DNS_NAME, domain, "the domain of a cluster")
    group = f"{name}-zookeeper"
    members = [f"{group}-{n}.{group}.{namespace}.svc.{domain}" for n in range(MEMBERS)]
    config = zoo_cfg(members, "/data", all_addresses=True)
    factor = min(MOST_REPLICAS, replicas)
    chosen = ""
    if storage_class is not None:
        matching(DNS_NAME, storage_class, "the name of a storage class")
        chosen = f"        storageClassName: {double_quoted(storage_class)}\n"
    return fill(
        "k8s.yaml",
        {
            "replicas": str(replicas),
            "name": name,
            "namespace": namespace,
            "domain": domain,
            "image": double_quoted(matching(IMAGE, image, "the name of an image")),
            "zookeeper_image": ZOOKEEPER_IMAGE,
            "metrics_port": METRICS_PORT,
            "broker_labels": _labels(name, "broker"),
            "zookeeper_labels": _labels(name, "zookeeper"),
            "connect": ",".join(f"{member}:2181" for member in members),
            "zoo_cfg": textwrap.indent(config.rstrip("\n"), "    "),
            "storage": double_quoted(matching(QUANTITY, storage, "an amount such as 100Gi")),
            "storage_class": chosen,
            "replication_factor": str(factor),
            "min_isr": str(_min_isr(factor)),
        },
    )


def _labels(name: str, component: str) -> str:
    labels = {"name": "hightide", "instance": name, "component": component}
    pairs = (f"app.kubernetes.io/{key}: {double_quoted(value)}" for key, value in labels.items())
    return f"{{{', '.join(pairs)}}}"


def _min_isr(replicas: int) -> int:
    """With three replicas a record is acknowledged on two, and one broker may be away."""
    return max(1, replicas - 1)
