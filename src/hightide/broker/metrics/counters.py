"""Counters on the hot path: plain attributes that requests add to, and that a scrape reads.

Each replica holds the `TopicTraffic` of its topic and each connection the `RequestCounts` of the
API that it serves, so that a request looks up nothing.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterator

RECENT = 1024
"""Quantiles are those of so many of the last requests, as in Kafka."""
LAST = RECENT - 1
_DURATIONS = 256


class TopicTraffic:
    """What clients have produced to a topic and fetched from it, at this broker."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "messages_in",
        "produces",
        "replicas",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.messages_in = 0
        self.bytes_out = 0
        # Kafka counts these for each partition of a request.
        self.produces = 0
        self.failed_produces = 0
        self.fetches = 0
        self.failed_fetches = 0
        self.replicas = 0
        """The replicas of the topic on this broker."""

    def produced(self, messages: int, size: int) -> None:
        """A batch was appended; the usual request counts without this call."""
        self.produces += 1
        self.messages_in += messages
        self.bytes_in += size

    def add(self, other: TopicTraffic) -> None:
        """Add what another topic has counted."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Traffic:
    """The traffic of all topics, and that between brokers."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicTraffic] = {}
        self.elsewhere = TopicTraffic()
        """Requests for partitions that are not here, and topics that have left this broker."""
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0

    def replica_added(self, topic: str) -> TopicTraffic:
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicTraffic()
        found.replicas += 1
        return found

    def replica_removed(self, topic: str) -> None:
        """Forget a topic with its last replica; the totals keep what it has counted."""
        found = self.topics[topic]
        found.replicas -= 1
        if not found.replicas:
            self.elsewhere.add(self.topics.pop(topic))

    def total(self) -> TopicTraffic:
        total = TopicTraffic()
        for traffic in (self.elsewhere, *self.topics.values()):
            total.add(traffic)
        return total


class RequestCounts:
    """The requests of one API: how many, how long they took, and their errors.

    The times of a request are at its number modulo `RECENT`.  `Connection` writes them:

        queued    from the arrival of its bytes until it is served
        local     until it has a response, or waits for something
        remote    until that has come: replicas, records, other members
        behind    until the responses before it on the connection are sent
    """

    __slots__ = (
        "behind",
        "by_version",
        "errors",
        "local",
        "local_s",
        "queued",
        "remote",
        "remote_s",
        "requests",
        "send_s",
        "sent",
    )

    def __init__(self) -> None:
        self.requests = 0
        self.by_version = array("q", bytes(8 * 256))  # by the low byte of the version
        self.queued = array("d", bytes(8 * RECENT))
        self.local = array("d", bytes(8 * RECENT))
        self.local_s = 0.0
        # Few requests wait, so these are kept with their numbers.
        self.remote: dict[int, tuple[int, float]] = {}
        self.remote_s = 0.0
        self.behind: dict[int, tuple[int, float]] = {}
        self.send_s = array("d")
        self.sent = 0
        """Responses whose sending took several writes."""
        self.errors: Counter[int] = Counter()

    def has_waited(self, number: int, seconds: float) -> None:
        """The request of this number has got what it waited for."""
        self.remote[number & LAST] = (number, seconds)
        self.remote_s += seconds

    def has_queued(self, number: int, seconds: float) -> None:
        """The response to the request of this number waited for others before it."""
        self.behind[number & LAST] = (number, seconds)

    def has_sent(self, seconds: float) -> None:
        """The socket has taken a response that is too large for one write."""
        if self.sent < RECENT:
            self.send_s.append(seconds)
        else:
            self.send_s[self.sent & LAST] = seconds
        self.sent += 1

    def failed(self, code: int) -> None:
        self.errors[code] += 1


class Durations:
    """How long the last few things took, and all of them together."""

    def __init__(self) -> None:
        self.recent_s: deque[float] = deque(maxlen=_DURATIONS)
        self.count = 0
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.recent_s.append(seconds)
        self.count += 1
        self.sum_s += seconds


FOLLOWER_FETCH = -1
"""In place of an API key: the Fetch requests of brokers, as Kafka counts them apart."""


class Requests:
    """The counts of all APIs."""

    def __init__(self) -> None:
        self._by_key: dict[int, RequestCounts] = {}
        self.of_followers = self.of(FOLLOWER_FETCH)

    def of(self, api_key: int) -> RequestCounts:
        found = self._by_key.get(api_key)
        if found is None:
            found = self._by_key[api_key] = RequestCounts()
        return found

    def __iter__(self) -> Iterator[tuple[int, RequestCounts]]:
        return iter(list(self._by_key.items()))


NO_REQUESTS = RequestCounts()
"""Takes the counts of connections that have served nothing yet."""


def count_errors(counts: RequestCounts, response: object) -> None:
    """Count the errors in a response: its own, and those of its parts.

    Only the first two levels have errors of requests; deeper parts describe things.
    """
    _count_errors(counts.errors, response, 2)


def _count_errors(errors: Counter[int], message: object, depth: int) -> None:
    for name in getattr(message, "__slots__", ()):
        value = getattr(message, name)
        if name == "error_code":
            if value:
                errors[int(value)] += 1
        elif depth and isinstance(value, list):
            for item in value:
                if not hasattr(item, "__slots__"):
                    break
                _count_errors(errors, item, depth - 1)
