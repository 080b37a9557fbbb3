"""The brokers of the demonstration: killed on demand, and started again after a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from hightide.demo.observer import Picture
from hightide.process import BrokerProcess, ServiceFailed, ZooKeeperProcess

RESTART_S = 15.0
CALM_S = 10.0
"""A process that dies twice within this time is not started again."""


class Stage:
    """Kills and restarts; may be asked by several threads."""

    def __init__(
        self,
        brokers: Sequence[BrokerProcess],
        coordinator: ZooKeeperProcess,
        tell: Callable[[str], None],
        *,
        keeps_data: bool,
    ) -> None:
        self._brokers = dict(enumerate(brokers, 1))
        self._coordinator = coordinator
        self._tell = tell
        self._keeps_data = keeps_data
        self._lock = threading.RLock()
        self._died: dict[int, float] = {}
        self._coordinator_started = -CALM_S

    @property
    def dead(self) -> list[int]:
        return sorted(self._died)

    def kill(self, broker: int | None, picture: Picture) -> str:
        """SIGKILL to a broker, or to the one that leads most; what was done."""
        with self._lock:
            running = [nth for nth, each in self._brokers.items() if each.is_running()]
            if broker is None:
                if len(running) < len(self._brokers):
                    return f"Broker {self._missing()} is down already; it will be back."
                broker = max(running, key=lambda each: len(picture.led_by(each)))
            if broker not in self._brokers:
                return f"There is no broker {broker}, only {', '.join(map(str, self._brokers))}."
            if broker not in running:
                return f"Broker {broker} is down already."
            led = ", ".join(f"{topic}/{index}" for topic, index in picture.led_by(broker))
            self._brokers[broker].kill()
            self._died[broker] = time.monotonic()
            told = f"Broker {broker} was killed; it led {led or 'nothing'}."
            self._tell(told)
            return told

    def restart(self) -> str:
        """Start those that are down, without more waiting."""
        with self._lock:
            if not self._died:
                return "All brokers are up."
            for each in self._died:
                self._died[each] = -RESTART_S
            return f"Broker {self._missing()} is being started."

    def tend(self, picture: Picture) -> None:
        """Start again what has been down for long enough; raises what cannot be started."""
        with self._lock:
            if not self._coordinator.is_running():
                self._restart_coordinator()
            for nth, each in self._brokers.items():
                if not each.is_running() and nth not in self._died:
                    self._died[nth] = time.monotonic()
                    self._tell(f"Broker {nth} has died by itself; its log is {each.log}.")
            for nth, died in list(self._died.items()):
                if time.monotonic() - died >= RESTART_S and self._may_return(nth, picture):
                    del self._died[nth]
                    self._tell(f"Broker {nth} is started again.")
                    self._brokers[nth].launch()
                    threading.Thread(target=self._await, args=(nth,), daemon=True).start()

    def _may_return(self, broker: int, picture: Picture) -> bool:
        # One that kept nothing must not come back as one of those who have everything.
        return self._keeps_data or not picture.is_in_sync_anywhere(broker)

    def _await(self, broker: int) -> None:
        try:
            self._brokers[broker].wait_until_it_listens()
        except ServiceFailed as failure:
            self._tell(str(failure))

    def _restart_coordinator(self) -> None:
        failure = self._coordinator.died()
        now = time.monotonic()
        if not self._keeps_data or now - self._coordinator_started < CALM_S:
            raise failure
        self._coordinator_started = now
        self._tell("The coordinator has died, and is started again.")
        self._coordinator.start()

    def _missing(self) -> str:
        return ", ".join(map(str, sorted(self._died)))
