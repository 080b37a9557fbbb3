"""Source and sink on Apache Kafka: the same tests with another broker."""

from __future__ import annotations

from tests.spark.test_exactly_once import *  # noqa: F403
from tests.spark.test_sink_transactions import *  # noqa: F403
from tests.spark.test_source import *  # noqa: F403
from tests.spark.test_source_stream import *  # noqa: F403
