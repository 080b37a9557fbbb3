"""`hightide broker`: run one broker, or act on a broker of a running `hightide up`."""

from __future__ import annotations

from typing import Annotated

import typer

from hightide.cli.options import LOCALHOST, Bootstrap, Failed
from hightide.cli.render import say
from hightide.client.routing import addresses

app = typer.Typer(no_args_is_help=True, help="Run one broker, or act on a broker of `hightide up`.")

BrokerId = Annotated[int, typer.Argument(metavar="ID", help="The broker's id.")]


@app.command(context_settings={"allow_extra_args": True})
def start() -> None:
    """Run one broker with a properties file and overrides."""


@app.command()
def kill(broker_id: BrokerId, bootstrap: Bootstrap = LOCALHOST) -> None:
    """Kill a broker of a running `hightide up`, as a crash does; it stays down."""
    _send("kill", broker_id, bootstrap)


@app.command()
def stop(broker_id: BrokerId, bootstrap: Bootstrap = LOCALHOST) -> None:
    """Stop a broker of a running `hightide up`: it hands its leaderships over; it stays down."""
    _send("stop", broker_id, bootstrap)


@app.command()
def pause(broker_id: BrokerId, bootstrap: Bootstrap = LOCALHOST) -> None:
    """Suspend a broker of a running `hightide up`, as a process that hangs."""
    _send("pause", broker_id, bootstrap)


@app.command()
def resume(broker_id: BrokerId, bootstrap: Bootstrap = LOCALHOST) -> None:
    """Let a paused broker run again."""
    _send("resume", broker_id, bootstrap)


@app.command()
def restart(broker_id: BrokerId, bootstrap: Bootstrap = LOCALHOST) -> None:
    """Start a broker of a running `hightide up` again; a running one is stopped first."""
    _send("restart", broker_id, bootstrap)


def _send(command: str, broker_id: int, bootstrap: str) -> None:
    from hightide import control

    missing = None
    for host, port in addresses(bootstrap):
        try:
            say(f"{control.send(f'{host}:{port}', command, broker_id)}.")
            return
        except control.NotRunning as error:
            missing = missing or error
        except control.Refused as refusal:
            raise Failed(f"{refusal}.") from None
    raise Failed(str(missing))
