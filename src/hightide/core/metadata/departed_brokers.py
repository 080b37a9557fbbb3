"""The brokers that were in the metadata image and are gone: their addresses, and since when.

ZooKeeper forgets a broker with its session, and Metadata lists live brokers only.  An operator
needs the address of a dead broker, so each broker remembers those that it saw leave since it
started.  A broker that returns is not remembered any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hightide.wire.messages.replication import PublishedBroker, PublishedEndpoint

REMEMBERED = 100
"""How many brokers are remembered; those that left first are forgotten first."""


class DepartedBrokers:
    """Takes the live brokers of one image after the other."""

    def __init__(self) -> None:
        self._live: Mapping[int, PublishedBroker] = {}
        self._departed: dict[int, tuple[PublishedBroker, int]] = {}

    def published(self, brokers: Mapping[int, PublishedBroker], now_ms: int) -> None:
        """The controller published these live brokers at `now_ms` of a clock that is never set."""
        for broker_id in brokers:
            self._departed.pop(broker_id, None)
        for broker_id, broker in self._live.items():
            if broker_id not in brokers:
                self._departed[broker_id] = broker, now_ms
        while len(self._departed) > REMEMBERED:
            del self._departed[next(iter(self._departed))]
        self._live = dict(brokers)

    def endpoints(self, listener: str) -> Iterator[tuple[int, PublishedEndpoint | None, int]]:
        """Each broker with its endpoint of this listener, and the time of its departure."""
        for broker_id, (broker, at_ms) in self._departed.items():
            found = (one for one in broker.endpoints if one.listener == listener)
            yield broker_id, next(found, None), at_ms
