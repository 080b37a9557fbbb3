"""Files for machines: systemd units, and the configuration of an Apache ZooKeeper ensemble."""

from __future__ import annotations

import ipaddress
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from hightide.cli.generate.template import fill, matching, one_line, systemd_path, systemd_word
from hightide.cli.options import wrong_usage

STATE = "/var/lib/hightide"
"""systemd creates it for the user: StateDirectory=hightide."""

BROKER_CONFIG = "/etc/hightide/server.properties"
ZOOKEEPER_ADDRESS = "127.0.0.1:2181"
"""Of the embedded ZooKeeper."""

HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
"""What ProtectHome= and PrivateTmp= take away from a unit."""

HOST = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?"
USER = r"[a-z_][a-z0-9_-]{0,30}"
JARS = "/usr/share/java"
# Debian's jar of ZooKeeper names the jars that it needs, except two; and one writes the log.
DEBIAN_CLASSPATH = ":".join(
    f"{JARS}/{name}.jar" for name in ("zookeeper", "slf4j-simple", "netty-codec", "netty-resolver")
)


def installed_program() -> str:
    """The path of the `hightide` that runs now, or else its usual place."""
    beside = Path(sys.executable).parent / "hightide"
    found = shutil.which("hightide") or (str(beside) if beside.exists() else None)
    return str(Path(found).absolute()) if found else "/opt/hightide/bin/hightide"


def broker_unit(program: str, config: str, user: str, data: Sequence[str]) -> str:
    return fill(
        "hightide.service",
        {
            "program": systemd_word(absolute(program)),
            "config": systemd_word(absolute(config)),
            "user": matching(USER, user, "the name of a user"),
            "data": writable(data),
        },
    )


def embedded_zookeeper_unit(
    program: str, listen: str, data: str, user: str, credentials: str | None
) -> str:
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or not is_host(host.strip("[]")):
        wrong_usage(f"--listen {listen}: expected HOST:PORT")
    if credentials is None and not (host.startswith("127.") or host in ("localhost", "[::1]")):
        wrong_usage(
            f"--listen {listen}: other hosts reach this address, so the embedded ZooKeeper needs"
            " --credentials"
        )
    given = f" --credentials {systemd_word(absolute(credentials))}" if credentials else ""
    return fill(
        "hightide-zookeeper.service",
        {
            "program": systemd_word(absolute(program)),
            "listen": systemd_word(listen),
            "data_directory": systemd_word(absolute(data)),
            "credentials": given,
            "user": matching(USER, user, "the name of a user"),
            "data": writable([data]),
        },
    )


def writable(directories: Sequence[str]) -> str:
    """The line that opens the directories which systemd does not create."""
    outside = [
        systemd_path(absolute(directory))
        for directory in directories
        if not (Path(directory) == Path(STATE) or Path(STATE) in Path(directory).parents)
    ]
    return f"ReadWritePaths={' '.join(outside)}\n" if outside else ""


def hidden_from_units(paths: Iterable[str | None]) -> list[str]:
    """The paths that a process of a unit does not see, because they are private to users."""
    return [
        path
        for path in paths
        if path and any(Path(folder) in Path(path).parents for folder in HIDDEN)
    ]


def zoo_cfg(servers: Sequence[str], data: str, *, all_addresses: bool = False) -> str:
    """The configuration of each member; one with `all_addresses` does not bind to its own name."""
    lines = []
    for number, host in enumerate(servers, 1):
        name = f"[{host}]" if ":" in host else host
        client = "2181" if all_addresses else f"{name}:2181"
        lines.append(f"server.{number}={name}:2888:3888;{client}")
    if all_addresses:
        lines.append("quorumListenOnAllIPs=true")
    # A backslash is the escape of Java's properties.
    directory = absolute(data).replace("\\", "\\\\")
    return fill("zoo.cfg", {"data_directory": directory, "servers": "\n".join(lines)})


def zookeeper_unit(data: str, config: str, user: str, home: str | None) -> str:
    classpath = DEBIAN_CLASSPATH
    if home is not None:
        classpath = f"{absolute(home)}/lib/*:{home}/conf"
    return fill(
        "zookeeper.service",
        {
            "java": "/usr/bin/java",
            "classpath": systemd_word(classpath),
            "config": systemd_word(absolute(config)),
            "user": matching(USER, user, "the name of a user"),
            "data_directory": systemd_path(absolute(data)),
        },
    )


def hosts(text: str) -> list[str]:
    """The members of an ensemble: at least three hosts, and an odd number of them."""
    found = [host.strip() for host in text.split(",")]
    for host in found:
        if not is_host(host):
            wrong_usage(f"--servers {text}: {host!r} is not the name of a host")
    if len(found) != len(set(found)):
        wrong_usage(f"--servers {text}: a host is named twice")
    if len(found) < 3 or len(found) % 2 == 0:
        wrong_usage(
            f"--servers {text}: an ensemble has three or five members, because more than half of"
            " them must be alive; for a single server see `hightide zookeeper start`"
        )
    return found


def is_host(text: str) -> bool:
    """Whether this is a name or an address, without a port."""
    if ":" not in text:
        return re.fullmatch(HOST, text) is not None
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def absolute(path: str) -> str:
    if not one_line(path).startswith("/"):
        wrong_usage(f"{path} must be an absolute path: systemd has no current directory")
    return path
