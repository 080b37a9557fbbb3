"""The demo's brokers: killed on demand, and restarted after a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from examples.demo.observer import ClusterState
from hightide.control import Refused
from hightide.process import BrokerProcess, ServiceFailed, ZooKeeperProcess

RESTART_S = 15.0
MIN_UPTIME_S = 10.0
"""ZooKeeper is not restarted if it dies twice within this time."""


class KillableBrokers:
    """Kills and restarts brokers; callable from several threads."""

    def __init__(
        self,
        brokers: Sequence[BrokerProcess],
        zookeeper: ZooKeeperProcess,
        report: Callable[[str], None],
        *,
        keeps_data: bool,
    ) -> None:
        self._brokers = dict(enumerate(brokers, 1))
        self._zookeeper = zookeeper
        self._report = report
        self._keeps_data = keeps_data
        self._lock = threading.RLock()
        self._died_at: dict[int, float] = {}
        self._held: set[int] = set()
        """Ended by a command of the console or of `hightide broker`: these wait for another one."""
        self._zookeeper_started = -MIN_UPTIME_S

    @property
    def dead(self) -> list[int]:
        return sorted(self._died_at)

    def kill(self, broker_id: int | None, cluster: ClusterState) -> str:
        """Send SIGKILL to a broker, by default to the one that leads most; return what happened."""
        with self._lock:
            running = [nth for nth, broker in self._brokers.items() if broker.is_running()]
            if broker_id is None:
                if len(running) < len(self._brokers):
                    return f"Broker {self._listed_dead()} is already down; it restarts soon."
                broker_id = max(running, key=lambda nth: len(cluster.led_by(nth)))
            if broker_id not in self._brokers:
                known = ", ".join(map(str, self._brokers))
                return f"There is no broker {broker_id}; the brokers are {known}."
            if broker_id not in running:
                return f"Broker {broker_id} is already down."
            led = ", ".join(f"{topic}/{index}" for topic, index in cluster.led_by(broker_id))
            self._brokers[broker_id].kill()
            self._died_at[broker_id] = time.monotonic()
            sentence = f"Broker {broker_id} was killed; it led {led or 'no partition'}."
            self._report(sentence)
            return sentence

    def restart(self) -> str:
        """Restart the dead brokers without further waiting."""
        with self._lock:
            if not self._died_at:
                return "All brokers are up."
            self._held.clear()
            for broker_id in self._died_at:
                self._died_at[broker_id] = -RESTART_S
            return f"Restarting broker {self._listed_dead()}."

    def restart_due(self, cluster: ClusterState) -> None:
        """Restart what has been down for long enough; raises if ZooKeeper cannot be restarted."""
        with self._lock:
            if not self._zookeeper.is_running():
                self._restart_zookeeper()
            for broker_id, broker in self._brokers.items():
                if not broker.is_running() and broker_id not in self._died_at:
                    self._died_at[broker_id] = time.monotonic()
                    self._report(f"Broker {broker_id} died unexpectedly; its log is {broker.log}.")
            for broker_id, died_at in list(self._died_at.items()):
                is_due = time.monotonic() - died_at >= RESTART_S and broker_id not in self._held
                if is_due and self._may_restart(broker_id, cluster):
                    del self._died_at[broker_id]
                    self._report(f"Restarting broker {broker_id}.")
                    self._brokers[broker_id].launch()
                    threading.Thread(target=self._await, args=(broker_id,), daemon=True).start()

    # -- commands of the console, and of `hightide broker` ------------------------------------

    def execute(self, command: str, broker_id: int, cluster: ClusterState) -> str:
        """Do as `hightide broker COMMAND ID`; Refused if it cannot be done."""
        broker = self._brokers.get(broker_id)
        if broker is None:
            known = ", ".join(map(str, self._brokers))
            raise Refused(f"there is no broker {broker_id}; the brokers are {known}")
        if command != "restart" and not broker.is_running():
            raise Refused(f"broker {broker_id} is not running; `restart` starts it")
        match command:
            case "kill" | "stop":
                return self._end(broker_id, command)
            case "pause":
                broker.pause()
                self._report(f"Broker {broker_id} is paused.")
                return f"broker {broker_id} is paused; `resume` lets it run again"
            case "resume":
                broker.resume()
                self._report(f"Broker {broker_id} runs again.")
                return f"broker {broker_id} runs again"
            case "restart":
                return self._restart_now(broker_id, cluster)
        raise Refused(f"there is no command {command!r}")

    def _end(self, broker_id: int, command: str) -> str:
        broker = self._brokers[broker_id]
        with self._lock:
            self._died_at[broker_id] = time.monotonic()
            self._held.add(broker_id)
        if command == "kill":
            broker.kill()
        else:
            broker.stop()
        self._report(f"Broker {broker_id} has ended by the command {command}.")
        return f"broker {broker_id} has ended; `restart` starts it again"

    def _restart_now(self, broker_id: int, cluster: ClusterState) -> str:
        broker = self._brokers[broker_id]
        if broker.is_running():
            self._end(broker_id, "stop")
        with self._lock:
            if not self._may_restart(broker_id, cluster):
                raise Refused(
                    f"the data of broker {broker_id} was in memory, and it is in sync by name:"
                    " try again when it is out of the ISRs"
                )
            self._died_at.pop(broker_id, None)
            self._held.discard(broker_id)
            self._report(f"Restarting broker {broker_id}.")
            broker.launch()
        try:
            broker.wait_until_it_listens()
        except ServiceFailed as failure:
            raise Refused(f"broker {broker_id} did not start: {failure}") from failure
        return f"broker {broker_id} serves on {broker.address}"

    def _may_restart(self, broker_id: int, cluster: ClusterState) -> bool:
        # A broker without its data must not return while an ISR still counts it as complete.
        return self._keeps_data or not cluster.is_in_any_isr(broker_id)

    def _await(self, broker_id: int) -> None:
        try:
            self._brokers[broker_id].wait_until_it_listens()
        except ServiceFailed as failure:
            self._report(str(failure))

    def _restart_zookeeper(self) -> None:
        failure = self._zookeeper.died()
        now = time.monotonic()
        if not self._keeps_data or now - self._zookeeper_started < MIN_UPTIME_S:
            raise failure
        self._zookeeper_started = now
        self._report("ZooKeeper died; restarting it.")
        self._zookeeper.start()

    def _listed_dead(self) -> str:
        return ", ".join(map(str, sorted(self._died_at)))
