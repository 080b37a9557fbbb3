"""Consume, transform, produce, exactly once, while brokers and copiers are killed.

All clients copy at the same time, each to another topic.  `make exactly-once` runs the same with
more records and faults.
"""

from __future__ import annotations

import pytest

from tests.conformance.copying import CLIENTS, Copying, fill, wait_for
from tests.conformance.transaction_load import CLIENTS_DURING_OUTAGES

MESSAGES = 20_000
PARTITIONS = 3


@pytest.mark.extended
@pytest.mark.timeout(150)
def test_a_topic_is_copied_exactly_once_while_brokers_and_copiers_are_killed(
    three_transacting, tmp_path
):
    cluster = three_transacting
    source = cluster.create_topic("source", partitions=PARTITIONS)
    values = fill(cluster.bootstrap, source, PARTITIONS, MESSAGES)
    copyings = [Copying(cluster, client, source, PARTITIONS, tmp_path) for client in CLIENTS]
    for copying in copyings:
        cluster.create_topic(copying.target, partitions=PARTITIONS)
    try:
        for copying in copyings:
            copying.start()
        for round_, broker_id in enumerate(cluster.brokers[:2]):
            wait_for(copyings, 1 + round_ * MESSAGES // 4, 40)
            for copying in copyings:
                copying.copiers[round_ % 2].kill()
            cluster.kill(broker_id)
            copied = (round_ + 1) * MESSAGES // 4
            wait_for(copyings, copied, 40, clients=CLIENTS_DURING_OUTAGES)
            cluster.restart(broker_id)
            cluster.heal()
        wait_for(copyings, MESSAGES, 60)
    finally:
        for copying in copyings:
            copying.stop()
    for copying in copyings:
        copying.check(values)
        for copier in copying.copiers:
            assert copier.starts > 1
