"""The workload and the checker of `make chaos` on real brokers: they can pass and can fail."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.checker import check
from tests.chaos.findings import Findings
from tests.chaos.replicas import compare_replicas
from tests.chaos.report import Report
from tests.chaos.workload import CONFLUENT, Workload
from tests.conformance.replicated import SETTINGS, Replicated

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def cluster() -> Iterator[Replicated]:
    settings: dict[str, Any] = {
        **SETTINGS,
        "zookeeper.session.timeout.ms": 2000,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
        "group.initial.rebalance.delay.ms": 0,
    }
    with Replicated(3, settings=settings, ends_sessions=False) as made:
        yield made


def checked(workload: Workload, folder: Path) -> Findings:
    """Drain and check; the report stays in the folder of the test."""
    workload.drain()
    findings = check(workload.folder)
    Report(findings).write(folder / "report.html")
    return findings


@pytest.mark.extended
def test_all_clients_survive_the_kill_of_a_leader(cluster: Replicated, tmp_path: Path) -> None:
    workload = Workload(cluster.bootstrap, tmp_path / "history", rate=600, compacted=True)
    workload.create_topics()
    workload.start()
    try:
        workload.wait_for_acks()
        workload.wait_for_commits()
        with workload.fault("kill leader") as fault:
            leader = cluster.leader_now(workload.topic)
            cluster.kill(leader)
            workload.wait_for_acks()
            cluster.restart(leader)
            workload.healed(fault)
            workload.wait_for_acks()
            workload.wait_for_commits()
        cluster.heal()
        findings = checked(workload, tmp_path)
    finally:
        workload.stop()
    data = {broker: cluster.data(broker) for broker in cluster.brokers}
    findings.add(compare_replicas(data, compacted=[workload.keyed]))
    assert not findings.anomalies, findings.text()
    (row,) = findings.rows()
    assert (row.fault, row.cycles, row.healed) == ("kill leader", 1, 1)
    assert row.acknowledged > 0
    assert 0.5 < row.longest_gap_s < 60
    assert findings.totals["transactions committed"] > 0
    assert findings.totals["offset commits"] > 0


@pytest.mark.extended
def test_settings_that_lose_records_are_seen_to_lose_them(
    cluster: Replicated, tmp_path: Path
) -> None:
    """One replica is enough here, and any replica may lead: what only a dead leader has is lost."""
    workload = Workload(
        cluster.bootstrap,
        tmp_path / "history",
        rate=500,
        partitions=1,
        clients=[CONFLUENT],
        copiers=[],
        members=0,
    )
    unsafe = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    workload.create_topics(config=unsafe)
    workload.start()
    try:
        workload.wait_for_acks()
        with workload.fault("unclean election") as fault:
            leader = cluster.leader_now(workload.topic)
            others = [broker for broker in cluster.brokers if broker != leader]
            for broker in others:
                cluster.kill(broker)
            workload.wait_for_acks()
            time.sleep(1)  # so that only the leader has some records
            cluster.kill(leader)
            for broker in others:
                cluster.restart(broker)
            workload.wait_for_acks()
            cluster.restart(leader)
            workload.healed(fault)
            workload.wait_for_acks()
        cluster.heal()
        findings = checked(workload, tmp_path)
    finally:
        workload.stop()
    assert findings.count("lost") > 100, findings.text()
    assert findings.kinds() & {"dirty-read", "inconsistent-offsets"}, findings.text()
    (row,) = findings.rows()
    assert row.lost == findings.count("lost")
