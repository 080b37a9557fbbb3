"""The network of the machine room: one namespace for each machine, joined by a bridge.

Everything is inside the network namespace of the run itself, which `room.enter` makes: clients are
at the bridge's own address and reach every machine.  A cut is a rule of iptables in the namespace
of the receiver, so it can also be one way.  The kernel removes all of it when the run has ended,
however it ended.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from tests.chaos.delay import Delayer

BRIDGE = "room"
NET = "10.77.0"
CLIENTS = f"{NET}.254"
IPTABLES = "/usr/sbin/iptables-legacy"


def command(*words: str) -> None:
    """Run a system program; a failure has its words."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


class Network:
    """The bridge, the namespaces, and the rules in them."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._delayers: list[Delayer] = []
        command("ip", "link", "set", "lo", "up")
        command("ip", "link", "add", BRIDGE, "type", "bridge")
        command("ip", "addr", "add", f"{CLIENTS}/24", "dev", BRIDGE)
        command("ip", "link", "set", BRIDGE, "up")

    def add(self, name: str) -> str:
        """Make the namespace of one machine, and return its address."""
        address = f"{NET}.{len(self._addresses) + 1}"
        self._addresses[name] = address
        cable = f"to-{name}"
        command("ip", "netns", "add", name)
        command("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        command("ip", "link", "set", cable, "master", BRIDGE, "up")
        command("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        command("ip", "-n", name, "link", "set", "eth0", "up")
        command("ip", "-n", name, "link", "set", "lo", "up")
        return address

    def unplug(self, name: str) -> None:
        """Take the cable out: no packet arrives or leaves, and no connection is closed."""
        command("ip", "link", "set", f"to-{name}", "down")

    def plug(self, name: str) -> None:
        command("ip", "link", "set", f"to-{name}", "up")

    def remove(self) -> None:
        self.heal()
        for name in self._addresses:
            command("ip", "link", "delete", f"to-{name}")
            command("ip", "netns", "delete", name)
        command("ip", "link", "delete", BRIDGE)
        self._addresses.clear()

    # -- rules -----------------------------------------------------------------------------

    def drop(self, sender: str, receiver: str, probability: float = 1.0) -> None:
        """Drop packets from one machine to another, one way."""
        chance = ["-m", "statistic", "--mode", "random", "--probability", f"{probability:.3f}"]
        self._rule(receiver, sender, *(chance if probability < 1 else ()), "-j", "DROP")

    def cut(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Drop all packets between two sets of machines, both ways."""
        for one in some:
            for other in others:
                if one != other:
                    self.drop(one, other)
                    self.drop(other, one)

    def cut_clients(self, name: str) -> None:
        """Drop what the clients send to one machine: they get no answer."""
        rule = ["-A", "INPUT", "-s", CLIENTS, "-j", "DROP"]
        command("ip", "netns", "exec", name, IPTABLES, *rule)

    def delay(self, name: str, low_ms: float, high_ms: float) -> None:
        """Delay every packet that one machine receives, each by another time: they overtake."""
        self._delayers.append(Delayer(name, low_ms, high_ms))
        rule = ["-A", "INPUT", "-i", "eth0", "-j", "NFQUEUE", "--queue-num", "0"]
        command("ip", "netns", "exec", name, IPTABLES, *rule)

    def heal(self) -> None:
        """Remove all rules."""
        for name in self._addresses:
            command("ip", "netns", "exec", name, IPTABLES, "-F")
        while self._delayers:
            self._delayers.pop().stop()

    def _rule(self, inside: str, sender: str, *words: str) -> None:
        where = ["ip", "netns", "exec", inside, IPTABLES]
        command(*where, "-A", "INPUT", "-s", self._addresses[sender], *words)
