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
EVERY = 8
"""Of many requests each eighth is a sample."""
LAST_OF_EVERY = EVERY - 1
UNTIMED = -1
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


class ApiCounts:
    """The requests of one API: their errors, and the times of some of the last ones.

    A ring keeps four times of a request, at the number of the sample modulo `RECENT`:

        queued    from the arrival of its bytes until it is served
        local     until it has a response, or waits for something
        remote    until that has come: replicas, records, other members
        behind    until the responses before it on the connection are sent
    """

    __slots__ = (
        "behind",
        "errors",
        "local",
        "queued",
        "remote",
        "remote_s",
        "samples",
        "send_s",
        "sent",
        "versions",
    )

    def __init__(self) -> None:
        self.versions: dict[int, RequestCounts] = {}
        self.samples = 0
        self.queued = array("d", bytes(8 * RECENT))
        self.local = array("d", bytes(8 * RECENT))
        # Few requests wait, so these are kept with the numbers of their samples.
        self.remote: dict[int, tuple[int, float]] = {}
        self.remote_s = 0.0
        self.behind: dict[int, tuple[int, float]] = {}
        self.send_s = array("d")
        self.sent = 0
        """Responses whose sending took several writes."""
        self.errors: Counter[int] = Counter()

    def at(self, version: int) -> RequestCounts:
        found = self.versions.get(version)
        if found is None:
            found = self.versions[version] = RequestCounts(self)
        return found

    def add(self, queued_s: float, local_s: float) -> int:
        """Keep the times of a request; return the number of the sample."""
        number = self.samples
        self.samples = number + 1
        self.queued[number & LAST] = queued_s
        self.local[number & LAST] = local_s
        return number

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


class RequestCounts:
    """The requests of one API in one version: how many, and how long they took together.

    One of `EVERY` is a sample for the quantiles, and all of the first ones.
    """

    __slots__ = ("api", "local_s", "requests")

    def __init__(self, api: ApiCounts) -> None:
        self.api = api
        self.requests = 0
        self.local_s = 0.0

    def served(self, count: int, queued_s: float, local_s: float) -> None:
        """Count requests that were served one after the other and had responses at once.

        They are one sample, of the mean: clients send many at once where each takes microseconds.
        """
        self.requests = after = self.requests + count
        self.local_s += local_s
        if after & LAST_OF_EVERY < count or after < RECENT:
            self.api.add(queued_s, local_s / count)

    def waits(self, queued_s: float, local_s: float) -> int:
        """Count a request whose response waits; return the number of its sample, or `UNTIMED`."""
        number = self.requests
        self.requests = number + 1
        self.local_s += local_s
        is_timed = number < RECENT or not number % EVERY
        return self.api.add(queued_s, local_s) if is_timed else UNTIMED

    def has_waited(self, sample: int | None, seconds: float) -> None:
        """The request of this sample has got what it waited for."""
        self.api.remote_s += seconds
        if sample is not None and sample != UNTIMED:
            self.api.remote[sample & LAST] = (sample, seconds)

    def has_queued(self, sample: int | None, seconds: float) -> None:
        """The response to the request of this sample waited for others before it."""
        if sample is not None and sample != UNTIMED:
            self.api.behind[sample & LAST] = (sample, seconds)

    def has_sent(self, seconds: float) -> None:
        """The socket has taken a response that is too large for one write."""
        api = self.api
        if api.sent < RECENT:
            api.send_s.append(seconds)
        else:
            api.send_s[api.sent & LAST] = seconds
        api.sent += 1

    def failed(self, code: int) -> None:
        self.api.errors[code] += 1


FOLLOWER_FETCH = -1
"""In place of an API key: the Fetch requests of brokers, as Kafka counts them apart."""


class Requests:
    """The counts of all APIs."""

    def __init__(self) -> None:
        self._by_key: dict[int, ApiCounts] = {}
        self.of_followers = self.of(FOLLOWER_FETCH)

    def of(self, api_key: int) -> ApiCounts:
        found = self._by_key.get(api_key)
        if found is None:
            found = self._by_key[api_key] = ApiCounts()
        return found

    def __iter__(self) -> Iterator[tuple[int, ApiCounts]]:
        return iter(list(self._by_key.items()))


NO_REQUESTS = RequestCounts(ApiCounts())
"""Takes the counts of connections that have served nothing yet."""


def count_errors(counts: RequestCounts | ApiCounts, response: object) -> None:
    """Count the errors in a response: its own, and those of its parts.

    Only the first two levels have errors of requests; deeper parts describe things.
    """
    errors = counts.errors if isinstance(counts, ApiCounts) else counts.api.errors
    _count_errors(errors, response, 2)


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
