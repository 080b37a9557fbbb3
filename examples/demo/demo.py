"""The demo as a whole: what starts in which order, the periodic work, and the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from examples.demo.control import ControlServer
from examples.demo.local_cluster import KillableBrokers
from examples.demo.observer import ClusterState, Observer
from examples.demo.order_check import OrderCheck
from examples.demo.output_reader import OutputReader
from examples.demo.pipeline import PipelineProcess
from examples.demo.sender import Sender
from examples.demo.snapshot import Event, EventLog, Rate, Snapshot
from examples.demo.topics import CLICKS, DEAD_LETTERS, ENRICHED, ORDERS, REVENUE, USERS
from examples.demo.traffic import Traffic
from hightide.spark.blocking_client import shared_client

STALL_S = 2.0
FLUSH_S = 10.0
PIPELINE_STOP_S = 8.0
MAX_RESTARTS = 3
PARTITIONS = {ORDERS: 3, CLICKS: 3, USERS: 1, ENRICHED: 3, REVENUE: 1, DEAD_LETTERS: 1}
DURABLE = {"min.insync.replicas": "2"}
COMPACTED = {"cleanup.policy": "compact"}


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
        no_pipeline_reason: str,
    ) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._pipeline, self._no_pipeline_reason = pipeline, no_pipeline_reason
        self._brokers = shared_client(
            {"bootstrap.servers": bootstrap, "client.id": "hightide-demo"}
        )
        self._started = time.monotonic()
        run = f"{int(time.time()):x}"
        self.check = OrderCheck()
        self.events = EventLog(listen)
        # Without a pipeline the orders themselves are read back.
        outputs = (ENRICHED, DEAD_LETTERS, REVENUE) if pipeline else (ORDERS,)
        self._sender = Sender(self._brokers, Traffic(run, rate), self.check)
        self._output = OutputReader(self._brokers, self.check, run, outputs, pipeline)
        self._observer = Observer(bootstrap, self.events.add)
        self._rates = {ORDERS: Rate(), CLICKS: Rate()}
        self._control: ControlServer | None = None
        self._is_stalled = False
        self._restarts = 0
        self.first_output_at: float | None = None
        self.killable: KillableBrokers | None = None

    def start(self, killable: KillableBrokers) -> None:
        self.killable = killable
        for topic, count in PARTITIONS.items():
            settings = DURABLE | (COMPACTED if topic == USERS else {})
            self._brokers.create_topic(topic, count, -1, settings)
        self._output.start()
        self._sender.start(self._brokers.topics([ORDERS, CLICKS, USERS]))
        self._observer.start()
        self._control = ControlServer(self._folder, self._bootstrap, self._execute)
        if self._pipeline is None:
            self.events.add(f"There is no pipeline: {self._no_pipeline_reason}")
        else:
            self.events.add("The pipeline is starting; Spark takes 10 to 30 seconds.")
            self._pipeline.launch()

    def _execute(self, words: list[str]) -> str:
        assert self.killable is not None
        match words:
            case ["kill"]:
                return self.killable.kill(None, self._observer.state)
            case ["kill", broker] if broker.isdecimal():
                return self.killable.kill(int(broker), self._observer.state)
            case ["restart"]:
                return self.killable.restart()
        return f"{' '.join(words)!r} is not a command; the commands are kill and restart."

    @property
    def cluster(self) -> ClusterState:
        """The newest look at the cluster."""
        return self._observer.state

    def press(self, key: str) -> bool:
        """Execute a key; False if it quits."""
        if key in ("k", "r"):
            answer = self._execute(["kill" if key == "k" else "restart"])
            if key == "r" or "down" in answer:
                self.events.add(answer)
        return key not in ("q", "\x03")

    def tick(self) -> None:
        """Do the periodic work; raises the failure that ends the demo."""
        assert self.killable is not None
        self.killable.restart_due(self._observer.state)
        if self._sender.failure is not None:
            raise self._sender.failure
        if self.check.read_back and self.first_output_at is None:
            self.first_output_at = time.monotonic()
            self.events.add("The first results are there.")
        silent_s = self._silent_s()
        if silent_s > STALL_S and not self._is_stalled:
            self._is_stalled = True
            self.events.add("No record is being acknowledged; producers wait for new leaders.")
        elif silent_s < STALL_S / 2 and self._is_stalled:
            self._is_stalled = False
            self.events.add("Records are being acknowledged again.")
        if self._pipeline is not None and not self._pipeline.is_running():
            self._restart_pipeline()

    def _restart_pipeline(self) -> None:
        """Restart the pipeline; it resumes at its checkpoint, so no order is lost."""
        assert self._pipeline is not None
        failure = self._pipeline.died()
        self._restarts += 1
        if self._restarts > MAX_RESTARTS:
            raise failure
        last_line = self._pipeline.last_lines(1)
        self.events.add(f"The pipeline failed; restarting it. {last_line}")
        self._pipeline.launch()

    def _silent_s(self) -> float:
        if not self._sender.is_sending:
            return 0.0
        return time.monotonic() - self._sender.last_acknowledged

    def snapshot(self) -> Snapshot:
        now, app = time.monotonic(), self._output.app
        if self._pipeline is None:
            pipeline = "none"
        else:
            pipeline = str(app.state) if app else "starting"
        assert self.killable is not None
        return Snapshot(
            bootstrap=self._bootstrap,
            elapsed_s=now - self._started,
            rates={
                topic: rate.at(now, self._sender.acknowledged(topic))
                for topic, rate in self._rates.items()
            },
            silent_s=self._silent_s(),
            acknowledged=self.check.acknowledged,
            read_back=self.check.read_back,
            outstanding=self.check.outstanding,
            duplicates=self.check.duplicates,
            cluster=self._observer.state,
            dead=self.killable.dead,
            pipeline=pipeline,
            app=app,
            revenue=list(self._output.revenue),
            events=list(self.events.events),
        )

    def is_over(self, duration_s: float | None) -> bool:
        """Return whether the first output is that long ago."""
        if duration_s is None or self.first_output_at is None:
            return False
        return time.monotonic() - self.first_output_at >= duration_s

    def drain(self, timeout_s: float, stop: threading.Event) -> bool:
        """Stop sending, and wait until every order is read back; whether that happened in time."""
        self._sender.stop(timeout_s)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not stop.is_set():
            if not self.check.outstanding:
                return True
            self.tick()
            stop.wait(0.25)
        return not self.check.outstanding

    def stop(self) -> None:
        """Stop everything but the brokers."""
        if self._control is not None:
            self._control.close()
        self._sender.stop(FLUSH_S if not self._is_stalled else 0)
        if self._pipeline is not None and self._pipeline.is_running():
            self._pipeline.stop(PIPELINE_STOP_S)
        self._output.stop()
        self._observer.stop()
        self._brokers.close()
