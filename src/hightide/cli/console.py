"""`hightide console`: the console of any Kafka cluster, in a browser."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from hightide import process
from hightide.cli.options import LOCALHOST, Bootstrap, wrong_usage
from hightide.client.routing import addresses


def console(
    bootstrap: Bootstrap = LOCALHOST,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Where to listen; 0 picks one.")
    ] = 8088,
    host: Annotated[
        str, typer.Option("--host", help="Where to listen. Other than loopback needs a password.")
    ] = "127.0.0.1",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse everything that changes the cluster.")
    ] = False,
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file", metavar="FILE", help="Ask for the password of this file, one line."
        ),
    ] = None,
    set_password: Annotated[
        bool,
        typer.Option(
            "--set-password", help="Ask for a password, write its hash to --password-file, and end."
        ),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A name of this server; repeatable."),
    ] = None,
    pipelines: Annotated[
        Path | None,
        typer.Option(
            "--pipelines", metavar="DIR", help="The folder in which pipelines keep their state."
        ),
    ] = None,
    banner_file: Annotated[
        Path | None,
        typer.Option(
            "--banner-file",
            metavar="FILE",
            help="A sentence for the top of every page, that another process writes: JSON,"
            ' {"text": …, "level": "ok", "warn", "bad" or "off"}.',
        ),
    ] = None,
    schema_registry: Annotated[
        str | None,
        typer.Option(
            "--schema-registry",
            metavar="URL",
            envvar="HIGHTIDE_SCHEMA_REGISTRY",
            help="The registry of the Avro schemas of messages; a URL with a password belongs into"
            " the variable.",
        ),
    ] = None,
    title: Annotated[str, typer.Option("--title", help="A name for the cluster.")] = "",
) -> None:
    """Serve the console of a cluster, until Ctrl-C.

    It works with any Kafka cluster; what the protocol does not tell is said to be unknown. The
    cluster may be away: the pages show it when it comes. `hightide up` has a console already.
    """
    try:
        addresses(bootstrap)
    except ValueError as error:
        wrong_usage(str(error))
    words = ["--bootstrap", bootstrap, "--host", host, "--port", str(port)]
    words += ["--read-only"] * read_only + ["--set-password"] * set_password
    files = {
        "--password-file": password_file,
        "--pipelines": pipelines,
        "--banner-file": banner_file,
    }
    for name, value in files.items():
        words += [] if value is None else [name, str(value)]
    words += ["--title", title] if title else []
    for name in allow_host or ():
        words += ["--allow-host", name]
    if schema_registry:
        os.environ["HIGHTIDE_SCHEMA_REGISTRY"] = schema_registry
    # The console takes the place of this process: the command line never loads it.
    command = [sys.executable, "-P", "-m", "hightide.console", *words]
    os.execve(sys.executable, command, process.environment("hightide"))
