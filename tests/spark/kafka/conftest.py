"""The tests of the pipeline with Apache Kafka instead of a Hightide broker.

On demand (`make spark-kafka`), because Kafka and the download of its jars take longer than the
tests.
"""

from __future__ import annotations

import itertools

import pytest

from hightide.spark.blocking_client import shared_client
from tests.spark.apache import Kafka, NoKafka


class Node:
    """Apache Kafka with the interface of `hightide.testing.Cluster` that tests use."""

    _numbers = itertools.count(1)

    def __init__(self, kafka: Kafka) -> None:
        self.bootstrap = kafka.address()

    def create_topic(self, name=None, *, partitions=1, config=None):
        chosen = name or f"test-{next(self._numbers)}"
        settings = {key: str(value) for key, value in (config or {}).items()}
        made = shared_client({"bootstrap.servers": self.bootstrap}).create_topic(
            chosen, partitions, settings=settings
        )
        assert made, f"{chosen} was there already"
        return chosen


@pytest.fixture(scope="session")
def kafka():
    try:
        with Kafka() as started:
            yield started
    except NoKafka as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def broker(kafka):
    return Node(kafka)
