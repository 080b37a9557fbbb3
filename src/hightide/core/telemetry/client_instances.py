"""Client instances: what each may push, and when.

    GetTelemetrySubscriptions ─▶ find ─▶ subscribed ─▶ an error, or the instance's subscription
    PushTelemetry             ─▶ find ─▶ pushed     ─▶ an error, or the payload is read
                                         has_read      the payload was read, or could not be

A client chooses its push times at random between half the interval and one and a half, so the first
push after its subscription is always taken, and later ones after one interval.  When subscriptions
change, an instance gets its new one with its next request, whatever the time.

An instance is forgotten when its connection closes, when it has been silent for three intervals,
and when there are too many: then the one that has been silent for longest.  A client does not
notice: subscription ids are computed from the subscriptions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from uuid import UUID

from hightide.core.telemetry.subscription import ALL, Attributes, Subscription, subscription_id
from hightide.settings.telemetry import ClientMetrics
from hightide.wire.compression import Codec
from hightide.wire.errors import ErrorCode

MOST_INSTANCES = 16_384
KEPT_MS = 60_000
KEPT_INTERVALS = 3
DEFAULT_INTERVAL_MS = ClientMetrics().interval_ms

ACCEPTED_CODECS = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
"""In the order of preference; uncompressed metrics are accepted too."""
_CODECS = frozenset((Codec.NONE, *ACCEPTED_CODECS))
_ASK_AGAIN = frozenset((ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE))
"""After these errors a client requests its subscription at once."""


@dataclass(slots=True)
class ClientInstance:
    """One client, and what it is subscribed to."""

    id: UUID
    attributes: Attributes
    metrics: tuple[str, ...] = ()
    interval_ms: int = DEFAULT_INTERVAL_MS
    subscription_id: int = 0
    version: int = -1
    """Of the subscriptions that the instance was matched with."""
    active_at_ms: int = 0
    asked_at_ms: int | None = None
    """When the instance got its subscription or pushed; None if that does not count any more."""
    pushed_at_ms: int | None = None
    may_push_early: bool = False
    """Whether the instance has got its subscription after its last push."""
    is_terminating: bool = False
    last_error: ErrorCode = ErrorCode.NONE

    @property
    def expires_at_ms(self) -> int:
        return self.active_at_ms + max(KEPT_MS, KEPT_INTERVALS * self.interval_ms)

    def wants(self, metric: str) -> bool:
        """Whether the instance is subscribed to a metric."""
        return self.metrics == (ALL,) or metric.startswith(self.metrics)


@dataclass(frozen=True, slots=True)
class Push:
    """A PushTelemetry request, without its payload."""

    subscription_id: int
    compression_type: int
    size_bytes: int
    is_terminating: bool = False


@dataclass(slots=True)
class Counts:
    """What has happened to the requests of clients."""

    throttled: int = 0
    unknown_subscription: int = 0
    invalid: int = 0
    pushed: int = 0
    forgotten: int = 0


class ClientInstances:
    """The client instances that talk to this broker, and the subscriptions."""

    def __init__(self, most: int = MOST_INSTANCES) -> None:
        self._most = most
        self._instances: OrderedDict[UUID, ClientInstance] = OrderedDict()
        self._subscriptions: dict[str, Subscription] = {}
        self._version = 0
        self.counts = Counts()

    def __len__(self) -> int:
        return len(self._instances)

    def __contains__(self, client_instance_id: UUID) -> bool:
        return client_instance_id in self._instances

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        return self._subscriptions

    def configured(self, name: str, subscription: Subscription | None) -> None:
        """A subscription has changed; None: it was deleted."""
        if subscription is not None:
            self._subscriptions[name] = subscription
        elif self._subscriptions.pop(name, None) is None:
            return
        self._version += 1

    def find(
        self, client_instance_id: UUID, attributes: Attributes, now_ms: int
    ) -> Generator[None, None, ClientInstance]:
        """Return an instance with its present subscription; create it if it is not known."""
        instance = self._instances.get(client_instance_id)
        if instance is None:
            instance = ClientInstance(client_instance_id, attributes, active_at_ms=now_ms)
            self._instances[client_instance_id] = instance
            self._evict(now_ms)
        self._instances.move_to_end(client_instance_id)
        instance.active_at_ms = now_ms
        while instance.version != self._version:
            yield from self._match(instance)
        return instance

    def _match(self, instance: ClientInstance) -> Generator[None, None, None]:
        version = self._version
        metrics: set[str] = set()
        interval_ms = DEFAULT_INTERVAL_MS
        for subscription in [*self._subscriptions.values()]:
            if (yield from subscription.matches(instance.attributes)):
                metrics |= subscription.metrics
                interval_ms = min(interval_ms, subscription.interval_ms)
        wanted = [ALL] if ALL in metrics else sorted(metrics)
        instance.metrics, instance.interval_ms = tuple(wanted), interval_ms
        instance.subscription_id = subscription_id(wanted, interval_ms, instance.id)
        instance.version = version
        # The new subscription is for the next request, whenever it comes.
        instance.asked_at_ms = instance.pushed_at_ms = None

    def _evict(self, now_ms: int) -> None:
        """Forget the instances that have been silent for longest: expired ones, or too many."""
        while self._instances:
            oldest = next(iter(self._instances.values()))
            if len(self._instances) <= self._most and oldest.expires_at_ms > now_ms:
                return
            del self._instances[oldest.id]
            self.counts.forgotten += 1

    def subscribed(self, instance: ClientInstance, now_ms: int) -> ErrorCode:
        """An instance has requested its subscription."""
        last_ms = instance.asked_at_ms
        is_early = last_ms is not None and now_ms - last_ms < instance.interval_ms
        if is_early and instance.last_error not in _ASK_AGAIN:
            self.counts.throttled += 1
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        instance.asked_at_ms = now_ms
        instance.may_push_early = True
        instance.last_error = ErrorCode.NONE
        return ErrorCode.NONE

    def pushed(
        self, instance: ClientInstance, push: Push, max_bytes: int, now_ms: int
    ) -> ErrorCode:
        """An instance has pushed metrics; without an error, the payload is to be read."""
        error = self._check(instance, push, max_bytes, now_ms)
        instance.last_error = error
        instance.is_terminating |= push.is_terminating
        match error:
            case ErrorCode.NONE:
                pass
            case ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                self.counts.throttled += 1
            case ErrorCode.UNKNOWN_SUBSCRIPTION_ID:
                self.counts.unknown_subscription += 1
            case _:
                self.counts.invalid += 1
        return error

    @staticmethod
    def _check(instance: ClientInstance, push: Push, max_bytes: int, now_ms: int) -> ErrorCode:
        if instance.is_terminating:
            return ErrorCode.INVALID_REQUEST
        last_ms = instance.pushed_at_ms
        is_due = (
            instance.may_push_early or last_ms is None or now_ms - last_ms >= instance.interval_ms
        )
        if is_due:
            instance.pushed_at_ms = instance.asked_at_ms = now_ms
            instance.may_push_early = False
        elif not push.is_terminating:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if push.subscription_id != instance.subscription_id:
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if push.compression_type not in _CODECS:
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        if push.size_bytes > max_bytes:
            return ErrorCode.TELEMETRY_TOO_LARGE
        return ErrorCode.NONE

    def has_read(self, instance: ClientInstance, error: ErrorCode) -> None:
        """The payload of a push was read; with an error, it could not be."""
        instance.last_error = error
        if error:
            self.counts.invalid += 1
        else:
            self.counts.pushed += 1

    def disconnected(self, client_instance_id: UUID) -> None:
        """The connection of an instance has closed."""
        self._instances.pop(client_instance_id, None)
