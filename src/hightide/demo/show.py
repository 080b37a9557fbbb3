"""The demonstration as a whole: what is started in which order, the loop, and the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from hightide.demo.control import Control
from hightide.demo.ledger import Ledger
from hightide.demo.names import CLICKS, DEAD_LETTERS, ENRICHED, ORDERS, REVENUE, USERS
from hightide.demo.observer import Observer
from hightide.demo.pipeline import PipelineProcess
from hightide.demo.results import Results
from hightide.demo.scene import Event, Events, Rate, Scene
from hightide.demo.sending import Sender
from hightide.demo.stage import Stage
from hightide.demo.traffic import Traffic
from hightide.spark.blocking_client import brokers

STALL_S = 2.0
FLUSH_S = 10.0
PIPELINE_STOP_S = 8.0
MOST_RESTARTS = 3
PARTITIONS = {ORDERS: 3, CLICKS: 3, USERS: 1, ENRICHED: 3, REVENUE: 1, DEAD_LETTERS: 1}
SAFE = {"min.insync.replicas": "2"}
TABLE = {"cleanup.policy": "compact"}


class Demo:
    """Everything that runs besides the brokers."""

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        *,
        rate: float,
        listen: Callable[[Event], None],
        pipeline: PipelineProcess | None,
        why_none: str,
    ) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._pipeline, self._why_none = pipeline, why_none
        self._brokers = brokers({"bootstrap.servers": bootstrap, "client.id": "hightide-demo"})
        self._started = time.monotonic()
        run = f"{int(time.time()):x}"
        self.ledger = Ledger()
        self.events = Events(listen)
        # Without a pipeline the orders themselves are read back.
        outputs = (ENRICHED, DEAD_LETTERS, REVENUE) if pipeline else (ORDERS,)
        self._sender = Sender(self._brokers, Traffic(run, rate), self.ledger)
        self._results = Results(self._brokers, self.ledger, run, outputs, pipeline)
        self._observer = Observer(bootstrap, self.events.tell)
        self._rates = {ORDERS: Rate(), CLICKS: Rate()}
        self._control: Control | None = None
        self._is_stalled = False
        self._restarts = 0
        self.results_since: float | None = None
        """When the first results came."""
        self.stage: Stage | None = None

    def start(self, stage: Stage) -> None:
        self.stage = stage
        for topic, count in PARTITIONS.items():
            settings = SAFE | (TABLE if topic == USERS else {})
            self._brokers.create_topic(topic, count, -1, settings)
        self._results.start()
        self._sender.start(self._brokers.topics([ORDERS, CLICKS, USERS]))
        self._observer.start()
        self._control = Control(self._folder, self._bootstrap, self._obey)
        if self._pipeline is None:
            self.events.tell(f"There is no pipeline: {self._why_none}")
        else:
            self.events.tell("The pipeline is starting; Spark takes 10 to 30 seconds.")
            self._pipeline.launch()

    def _obey(self, words: list[str]) -> str:
        assert self.stage is not None
        match words:
            case ["kill"]:
                return self.stage.kill(None, self._observer.picture)
            case ["kill", broker] if broker.isdecimal():
                return self.stage.kill(int(broker), self._observer.picture)
            case ["restart"]:
                return self.stage.restart()
        return f"{' '.join(words)!r} is not understood."

    def key(self, key: str) -> bool:
        """Do what a key says; False if that is to quit."""
        if key in ("k", "r"):
            told = self._obey(["kill" if key == "k" else "restart"])
            if key == "r" or "down" in told:
                self.events.tell(told)
        return key not in ("q", "\x03")

    def turn(self) -> None:
        """What is to be done every now and then; raises what ends the demonstration."""
        assert self.stage is not None
        self.stage.tend(self._observer.picture)
        if self._sender.failure is not None:
            raise self._sender.failure
        if self.ledger.read_back and self.results_since is None:
            self.results_since = time.monotonic()
            self.events.tell("The first results are there.")
        silent_s = self._silent_s()
        if silent_s > STALL_S and not self._is_stalled:
            self._is_stalled = True
            self.events.tell("No record is being acknowledged; producers wait for new leaders.")
        elif silent_s < STALL_S / 2 and self._is_stalled:
            self._is_stalled = False
            self.events.tell("Records are being acknowledged again.")
        if self._pipeline is None:
            return
        if not self._pipeline.is_running():
            self._start_pipeline_again()

    def _start_pipeline_again(self) -> None:
        """It goes on where it was, so nothing is lost by that either."""
        assert self._pipeline is not None
        failure = self._pipeline.died()
        self._restarts += 1
        if self._restarts > MOST_RESTARTS:
            raise failure
        words = self._pipeline.last_lines(1)
        self.events.tell(f"The pipeline has failed and is started again. {words}")
        self._pipeline.launch()

    def _silent_s(self) -> float:
        if not self._sender.is_sending:
            return 0.0
        return time.monotonic() - self._sender.last_acknowledged

    def scene(self) -> Scene:
        now, app = time.monotonic(), self._results.app
        if self._pipeline is None:
            pipeline = "none"
        else:
            pipeline = str(app.state) if app else "starting"
        assert self.stage is not None
        return Scene(
            bootstrap=self._bootstrap,
            elapsed_s=now - self._started,
            rates={
                topic: rate.at(now, self._sender.acknowledged(topic))
                for topic, rate in self._rates.items()
            },
            silent_s=self._silent_s(),
            acknowledged=self.ledger.acknowledged,
            read_back=self.ledger.read_back,
            outstanding=self.ledger.outstanding,
            duplicates=self.ledger.duplicates,
            picture=self._observer.picture,
            dead=self.stage.dead,
            pipeline=pipeline,
            app=app,
            revenue=list(self._results.revenue),
            events=list(self.events.kept),
        )

    def is_over(self, duration_s: float | None) -> bool:
        """Whether there have been results for so long."""
        if duration_s is None or self.results_since is None:
            return False
        return time.monotonic() - self.results_since >= duration_s

    def drain(self, patience_s: float, asked: threading.Event) -> bool:
        """Send no more, and wait until all has come back or nobody has patience; whether it has."""
        self._sender.stop(patience_s)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline and not asked.is_set():
            if not self.ledger.outstanding:
                return True
            self.turn()
            asked.wait(0.25)
        return not self.ledger.outstanding

    def stop(self) -> None:
        """End everything but the brokers."""
        if self._control is not None:
            self._control.close()
        self._sender.stop(FLUSH_S if not self._is_stalled else 0)
        if self._pipeline is not None and self._pipeline.is_running():
            self._pipeline.stop(PIPELINE_STOP_S)
        self._results.stop()
        self._observer.stop()
        self._brokers.close()
