"""`hightide generate …`: each command prints files, or writes them with --output."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from hightide import __version__
from hightide.cli import render
from hightide.cli.generate import containers, machines
from hightide.cli.generate.containers import METRICS_PORT, ZooKeeperKind
from hightide.cli.generate.template import fill, matching
from hightide.cli.options import Failed, wrong_usage
from hightide.cli.render import say

app = typer.Typer(
    no_args_is_help=True,
    help="Write the files that run and watch a cluster: units, containers, dashboard, alerts.\n\n"
    "Each command prints to stdout; --output writes files.",
)

File = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write here instead of to stdout."),
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace a file that exists.")]
Program = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="The hightide command there; default: where it is here."),
]
Image = Annotated[str, typer.Option(metavar="NAME", help="The image of the brokers.")]
IMAGE = f"hightide:{__version__}"


@app.command()
def grafana(
    title: Annotated[str, typer.Option(help="The title of the dashboard.")] = "Hightide",
    output: File = None,
    replace: Replace = False,
) -> None:
    """A Grafana dashboard, to import: replication, throughput, times, lag, disks."""
    from hightide.cli.generate.dashboard import dashboard

    emit(dashboard(title), output, replace)


@app.command(name="prometheus-rules")
def prometheus_rules(
    job: Annotated[
        str, typer.Option(metavar="NAME", help="The job_name that scrapes the brokers.")
    ] = "hightide",
    output: File = None,
    replace: Replace = False,
) -> None:
    """Alerts for Prometheus; each description ends with the next command to type."""
    name = matching(r"[A-Za-z0-9_][A-Za-z0-9_./-]*", job, "the name of a job")
    emit(fill("rules.yaml", {"job": name, "metrics_port": METRICS_PORT}), output, replace)


@app.command()
def systemd(
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help=f"The broker's settings; default: {machines.BROKER_CONFIG}."
        ),
    ] = None,
    user: Annotated[str, typer.Option(metavar="NAME", help="Who runs it.")] = "hightide",
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR", help="A log directory outside of /var/lib/hightide; repeatable."
        ),
    ] = None,
    zookeeper: Annotated[
        bool,
        typer.Option("--zookeeper", help="The unit of the embedded ZooKeeper instead."),
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help=f"With --zookeeper: its address; default: {machines.ZOOKEEPER_ADDRESS}.",
        ),
    ] = None,
    credentials: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="With --zookeeper: lines of user:password."),
    ] = None,
    program: Program = None,
    output: File = None,
    replace: Replace = False,
) -> None:
    """A systemd unit that runs a broker, or the embedded ZooKeeper.

    Save it as /etc/systemd/system/hightide.service, or as hightide-zookeeper.service.
    """
    path = program or machines.installed_program()
    if zookeeper:
        if config is not None:
            wrong_usage("--config: the embedded ZooKeeper has no file of settings")
        if data is not None and len(data) != 1:
            wrong_usage("the embedded ZooKeeper has one directory: --data once")
        address = listen or machines.ZOOKEEPER_ADDRESS
        directory = data[0] if data else f"{machines.STATE}/zookeeper"
        text = machines.embedded_zookeeper_unit(path, address, directory, user, credentials)
    else:
        if listen is not None or credentials is not None:
            wrong_usage("--listen and --credentials are for --zookeeper; a broker has settings")
        text = machines.broker_unit(path, config or machines.BROKER_CONFIG, user, data or [])
    emit(text, output, replace)
    for hidden in machines.hidden_from_units([path, config, credentials, *(data or [])]):
        say(f"The unit does not see {hidden}: it has no /home, /root and /tmp of the host.")


@app.command()
def zookeeper(
    servers: Annotated[
        str,
        typer.Option(metavar="HOST,HOST,HOST", help="The members, in the order of their ids."),
    ],
    member: Annotated[
        int, typer.Option("--id", min=1, max=255, help="Which of them this host is, from 1.")
    ],
    data: Annotated[str, typer.Option(metavar="DIR", help="Its dataDir.")] = "/var/lib/zookeeper",
    config: Annotated[
        str, typer.Option(metavar="FILE", help="Where zoo.cfg is on the host.")
    ] = "/etc/hightide/zoo.cfg",
    home: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where Apache's release is unpacked; default: the Debian package zookeeper.",
        ),
    ] = None,
    user: Annotated[str, typer.Option(metavar="NAME", help="Who runs it.")] = "zookeeper",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Write the three files here."),
    ] = None,
    replace: Replace = False,
) -> None:
    """zoo.cfg, myid and a systemd unit for a member of an Apache ZooKeeper ensemble.

    zoo.cfg and the unit are the same on every member; myid has the member's id.
    """
    members = machines.hosts(servers)
    if member > len(members):
        wrong_usage(f"--id {member}: --servers has {len(members)} members")
    files = {
        "zoo.cfg": machines.zoo_cfg(members, data),
        "myid": f"{member}\n",
        "zookeeper.service": machines.zookeeper_unit(data, config, user, home),
    }
    places = {"zoo.cfg": config, "myid": f"{data}/myid"}
    emit_all(files, places, output, replace)


@app.command()
def dockerfile(
    python: Annotated[
        str, typer.Option(metavar="VERSION", help="The version of Python in the image.")
    ] = "3.13",
    package: Annotated[
        str,
        typer.Option(
            metavar="PACKAGE",
            help="What pip installs: `.` (a checkout is the build context), the path of a wheel in"
            " the build context, or a requirement.",
        ),
    ] = ".",
    tag: Annotated[str, typer.Option(metavar="NAME", help="The image's name.")] = IMAGE,
    output: File = None,
    replace: Replace = False,
) -> None:
    """A Dockerfile of an image with the broker and the command line."""
    emit(containers.dockerfile(python, package, tag), output, replace)


@app.command()
def compose(
    brokers: Annotated[int, typer.Option(min=1, max=99, help="How many brokers.")] = 3,
    image: Image = IMAGE,
    zookeeper: Annotated[
        ZooKeeperKind,
        typer.Option(help="Three Apache ZooKeepers, or the embedded one by itself."),
    ] = ZooKeeperKind.ENSEMBLE,
    port: Annotated[
        int,
        typer.Option(
            min=1024, max=65535, help="The first broker's port on this host; the others follow."
        ),
    ] = 9092,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The name of the project.")
    ] = "hightide",
    output: File = None,
    replace: Replace = False,
) -> None:
    """A Compose file: brokers and ZooKeeper in containers on one host."""
    emit(containers.compose(brokers, image, zookeeper, port, name), output, replace)


@app.command()
def k8s(
    replicas: Annotated[int, typer.Option(min=1, max=99, help="How many brokers.")] = 3,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The name of the cluster.")
    ] = "hightide",
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="The namespace, which is created.")
    ] = "hightide",
    image: Image = IMAGE,
    storage: Annotated[
        str, typer.Option(metavar="AMOUNT", help="The disk of each broker.")
    ] = "50Gi",
    storage_class: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Its storage class; default: that of the cluster."),
    ] = None,
    domain: Annotated[
        str, typer.Option(metavar="NAME", help="The DNS domain of the cluster.")
    ] = "cluster.local",
    output: File = None,
    replace: Replace = False,
) -> None:
    """Kubernetes manifests: brokers and an Apache ZooKeeper ensemble."""
    text = containers.kubernetes(
        replicas=replicas,
        name=name,
        namespace=namespace,
        image=image,
        storage=storage,
        storage_class=storage_class,
        domain=domain,
    )
    emit(text, output, replace)


def emit(text: str, output: Path | None, replace: bool) -> None:
    """Print a file, or write it."""
    if output is None:
        render.write(text)
        return
    _save(output, text, replace)


def emit_all(
    files: Mapping[str, str], places: Mapping[str, str], folder: Path | None, replace: bool
) -> None:
    """Print several files, each below a line with its place, or write them to a directory."""
    if folder is None:
        for name, text in files.items():
            place = places.get(name, f"/etc/systemd/system/{name}")
            render.write(f"# ---- {place} ----\n{text}\n")
        return
    if folder.exists() and not folder.is_dir():
        raise Failed(f"{folder} is a file; --output is the directory of the three files.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        _save(folder / name, text, replace)


def _save(path: Path, text: str, replace: bool) -> None:
    if path.is_dir():
        raise Failed(f"{path} is a directory; --output is the file to write.")
    if not path.parent.is_dir():
        raise Failed(f"{path.parent} does not exist; create the directory first.")
    if path.exists() and not replace and path.read_text("utf-8", "replace") != text:
        raise Failed(f"{path} exists with other content; --replace overwrites it.")
    path.write_text(text, "utf-8")
    say(f"Wrote {path}.")
