"""DescribeEvents, which Kafka does not have: what has happened on a broker, as data.

ApiVersions does not list it, since clients do not know it.
"""

from __future__ import annotations

from hightide.wire.messages.replicas import DepartedBroker, TopicPartitions
from hightide.wire.types import field, i8, i16, i32, i64, message, part


@message(key=30008, versions=(0, 0), flexible=0)
class DescribeEventsRequest:
    """Request events of a broker: the newest ones, or those after a position."""

    start_id: str = ""
    """The start of the broker that `after` belongs to; "" for the newest events."""
    after: i64 = 0
    """The last sequence number that the sender has."""
    limit: i32 = 100
    severity: i8 = 0
    """The least severity: 0 debug, 1 info, 2 warning, 3 error."""
    kinds: list[str] = field(default=[])
    """Only these kinds; empty stands for all."""
    topics: list[TopicPartitions] = field(default=[])
    """Only events about these topics; without partitions, about all of the topic."""


@part
class DescribedEvent:
    """One event; the two times are in milliseconds."""

    sequence: i64
    time_ms: i64
    monotonic_ms: i64
    kind: str
    severity: i8
    text: str
    """The sentence."""
    data: str
    """The fields, as a JSON object."""


@message(key=30008, versions=(0, 0), flexible=0)
class DescribeEventsResponse:
    """Events in the order of their sequence numbers, which count from 1 at each start."""

    error_code: i16 = 0
    error_message: str | None = None
    start_id: str = ""
    """Which start of the broker this is: another id means that it has restarted, and `events`
    begins with the oldest event since."""
    position: i64 = 0
    """The next request is for what comes after this sequence number."""
    has_more: bool = False
    dropped: i64 = 0
    """The newest sequence number, of these kinds, that is not kept any more."""
    events: list[DescribedEvent]
    departed: list[DepartedBroker] = field(tag=0, default=[])
