"""The rates and the lag of an app's queries in /metrics of a broker."""

from __future__ import annotations

import asyncio

import pytest
from pyspark.sql import functions as F

import hightide.spark.streams as st
from hightide.client.admin import Admin
from hightide.client.model.cluster import ResourceType
from hightide.testing import Cluster
from tests.spark.shop_data import order, send
from tests.support.eventually import eventually
from tests.support.scrape import scrape

ROWS = 30


@pytest.fixture(scope="module")
def measured():
    """A broker with metrics, to which pipelines push more often than by default."""

    async def subscribe():
        async with Admin(cluster.bootstrap) as admin:
            often = {"metrics": "spark.query.", "interval.ms": "300"}
            await admin.configs.alter(ResourceType.CLIENT_METRICS, "often", values=often)

    with Cluster(metrics=True, memory=True) as cluster:
        asyncio.run(subscribe())
        yield cluster


@pytest.mark.extended
def test_metrics_show_the_rate_and_the_lag_of_a_query(spark, measured, tmp_path):
    topic = measured.create_topic("measured")
    send(measured, topic, [order(n, "ada", 1.0, n) for n in range(ROWS)])
    app = st.App("metrics", brokers=measured.bootstrap, state=tmp_path / "state")
    orders = app.topic(
        topic, "id BIGINT, user STRING", options={"maxOffsetsPerTrigger": str(ROWS // 3)}
    )

    @app.query(to="measured-copies")
    def copies():
        return orders.stream().select(F.col("id"))

    running = app.start()
    try:
        # The broker names the group of the query, as its lag by the coordinator does.
        labels = {"query": "copies", "group_id": app.group("copies")}

        def seen():
            found = scrape(measured.metrics())
            rows = found.all("spark_query_input_rows_total", **labels)
            return found if sum(rows.values()) == ROWS else None

        found = eventually(seen)
        for name, expected in {
            "spark_query_lag_records": [0],
            "spark_query_output_rows_total": [ROWS],
            "spark_query_active": [1],
            "spark_query_failed": [0],
        }.items():
            assert [*found.all(name, **labels).values()] == expected, name
        assert next(iter(found.all("spark_query_batch_duration_ms", **labels).values())) > 0
        assert len(found.all("spark_query_input_rows_per_second", **labels)) == 1
    finally:
        running.stop()
    # The last push says that the query has ended.
    ended = scrape(measured.metrics())
    assert [*ended.all("spark_query_active", **labels).values()] == [0]
    assert ended.value("hightide_client_instances") is not None
