"""The next command to type, with the address of the cluster that this command asked."""

from __future__ import annotations

import os
from dataclasses import replace

from hightide.cli.options import LOCALHOST
from hightide.client.model.diagnosis import NextStep

ON_THE_HOST = "hightide broker start"
"""Takes no --bootstrap: it is typed on the host of the broker."""


def is_local(bootstrap: str) -> bool:
    """Whether `hightide up` on this host runs the cluster: `hightide broker` acts on it."""
    from hightide import control  # only a cluster that is not healthy asks

    return control.is_running(bootstrap)


def here(step: NextStep, bootstrap: str) -> NextStep:
    """The step with --bootstrap, if its command would ask another cluster without it."""
    is_default = bootstrap == os.environ.get("HIGHTIDE_BOOTSTRAP", LOCALHOST)
    asks = step.command.startswith("hightide ") and not step.command.startswith(ON_THE_HOST)
    if is_default or not asks:
        return step
    return replace(step, command=f"{step.command} --bootstrap {bootstrap}")


def line(step: NextStep) -> str:
    """The step for people: the command, and its advice behind a `#` as in a shell."""
    return f"next: {step.command}" + (f"   # {step.advice}" if step.advice else "")
