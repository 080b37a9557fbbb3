"""A cluster whose topic is copied exactly once, under faults.

The copiers are killed and paused like the brokers.  At any time, a reader of committed records must
see a prefix of the source in the copy, and at the end all of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.simulation.checkers import Violated
from tests.simulation.shipped.copying import COPY, Copier, Groups, Reader
from tests.simulation.shipped.machine import PORT
from tests.simulation.shipped.members import classic, newer
from tests.simulation.shipped.simulation import FAULTS_S, REST_S, TOPIC, Shape, Simulation

CATCH_UP_S = 40.0


class Pipeline(Simulation):
    """One run."""

    def _choose(self) -> Shape:
        shape = super()._choose()
        # Lost committed records would leave nothing to compare, so nothing may lose them. Synced
        # records survive a power cut.
        is_safe = shape.flushes
        return replace(shape, unclean=False, power_cuts=shape.power_cuts and is_safe, deletes=False)

    def _more_settings(self) -> dict[str, Any]:
        shape = self.shape
        return {
            "offsets_topic_num_partitions": 1 + shape.lag_ms % 3,
            "transaction_state_log_num_partitions": 1 + shape.brokers % 2,
            "transaction_state_log_min_isr": shape.min_isr,
            "min_insync_replicas": shape.min_isr,
            "group_min_session_timeout_ms": 500,
            "group_consumer_session_timeout_ms": 2000,
            "group_consumer_min_session_timeout_ms": 500,
            "group_consumer_heartbeat_interval_ms": 500,
            "group_consumer_min_heartbeat_interval_ms": 100,
            "group_initial_rebalance_delay_ms": 200 if shape.moves else 0,
            "transaction_abort_timed_out_transaction_cleanup_interval_ms": 500,
            "log_flush_interval_messages": 1 if shape.flushes else 2**63 - 1,
        }

    def _make_clients(self) -> None:
        super()._make_clients()
        world, random = self.world, self.world.random
        brokers = {machine.broker_id: (machine.name, PORT) for machine in self.machines.values()}
        count = self.shape.partitions
        membership: Any = classic(Groups(), TOPIC, count)
        if random.random() < 0.4:
            membership = newer(TOPIC)
        self.copiers = [
            Copier(world, f"copier-{nth}", brokers, self.checker, TOPIC, membership)
            for nth in range(random.choice((1, 2, 3)))
        ]
        self.readers = [
            Reader(world, f"reader-{index}", brokers, self.checker, (TOPIC, index))
            for index in range(count)
        ]
        self.clients += [*self.copiers, *self.readers]
        for index in range(count):
            self.partitions[COPY, index] = self.partitions[TOPIC, index]

    def run(self) -> None:
        self._create(COPY)
        self.world.at(4.0, self._disturb_a_copier)
        self.world.at(FAULTS_S, self._hurry)
        super().run()
        self._catch_up()

    def _hurry(self) -> None:
        for copier in self.copiers:
            copier.hurries = True

    def _disturb_a_copier(self) -> None:
        world, random = self.world, self.world.random
        copier = random.choice(self.copiers)
        if world.now > FAULTS_S:
            return
        if random.random() < 0.5 and copier.is_up:
            copier.crash()
            world.at(random.choice((0.1, 1.0, 4.0)), self._start, copier)
        elif copier.is_up and not copier.is_paused:
            copier.pause()
            world.at(random.choice((0.5, 2.5, 5.0)), self._resume, copier, copier.incarnation)
        world.at(random.uniform(0.5, 4.0), self._disturb_a_copier)

    def _start(self, copier: Copier) -> None:
        if not copier.is_up:
            copier.begin()

    def _resume(self, copier: Copier, incarnation: int) -> None:
        if copier.is_up and copier.is_paused and copier.incarnation == incarnation:
            copier.resume()

    def _catch_up(self) -> None:
        """L5: at the end everything is copied."""
        due = FAULTS_S + REST_S + CATCH_UP_S
        while self.world.now < due and not self._is_copied():
            self.world.run(self.world.now + 1.0)
        if not self._is_copied():
            raise Violated(f"L5 {self._progress()} are copied, and not more")

    def _is_copied(self) -> bool:
        return all(seen == there for seen, there in self._progress())

    def _progress(self) -> list[tuple[int, int]]:
        return [
            (reader.seen, len(self.checker.truth((TOPIC, index)).committed))
            for index, reader in enumerate(self.readers)
        ]
