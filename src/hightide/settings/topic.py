"""The settings of a topic.

A value comes from the topic itself, else from the broker setting that it inherits from, else from
the default.  So a `Topic` is always complete: the log reads `segment_bytes` and need not know which
of the three it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from hightide.settings.declaration import (
    Described,
    InvalidSetting,
    Scope,
    Settings,
    Source,
    Synonym,
    long,
    names,
    setting,
)

MINUTE_MS = 60 * 1000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
MAX_LONG = (1 << 63) - 1
CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
CLUSTER = Scope.CLUSTER
GZIP_LEVELS = (-1, *range(1, 10))

_REPLICA = re.compile(r"[0-9]+:[0-9]+")
_UNIT_MS = {"minutes": MINUTE_MS, "hours": HOUR_MS}


class Topic(Settings):
    """All settings of one topic, every value filled in."""

    absent: ClassVar[dict[str, str]] = {
        "remote.": "tiered storage",
        "local.retention.": "tiered storage",
    }

    cleanup_policy: names = setting(
        default=("delete",),
        doc="What happens to old segments: delete drops them by age and size, compact keeps the"
        " latest record of each key; both may be given.",
        scope=CLUSTER,
        one_of=("compact", "delete"),
        inherits=("log.cleanup.policy",),
    )
    compression_type: str = setting(
        default="producer",
        doc="Codec of the stored batches; producer keeps what the producer chose.",
        scope=CLUSTER,
        one_of=CODECS,
        inherits=("compression.type",),
    )
    compression_gzip_level: int = setting(
        default=-1,
        doc="Effort of gzip when compression.type is gzip; -1 leaves it to the codec.",
        scope=CLUSTER,
        one_of=GZIP_LEVELS,
        inherits=("compression.gzip.level",),
    )
    compression_lz4_level: int = setting(
        default=9,
        doc="Effort of lz4 when compression.type is lz4.",
        scope=CLUSTER,
        at_least=1,
        at_most=17,
        inherits=("compression.lz4.level",),
    )
    compression_zstd_level: int = setting(
        default=3,
        doc="Effort of zstd when compression.type is zstd.",
        scope=CLUSTER,
        at_least=-131072,
        at_most=22,
        inherits=("compression.zstd.level",),
    )
    delete_retention_ms: long = setting(
        default=DAY_MS,
        doc="How long compaction keeps a tombstone, so that slow readers see the deletion.",
        scope=CLUSTER,
        at_least=0,
        inherits=("log.cleaner.delete.retention.ms",),
    )
    file_delete_delay_ms: long = setting(
        default=MINUTE_MS,
        doc="How long a dropped segment stays on disk for the reads that still use it.",
        scope=CLUSTER,
        at_least=0,
        inherits=("log.segment.delete.delay.ms",),
    )
    flush_messages: long = setting(
        default=MAX_LONG,
        doc="Records after which the log is forced to disk; 1 forces every append before its"
        " acknowledgement.",
        scope=CLUSTER,
        at_least=1,
        inherits=("log.flush.interval.messages",),
    )
    flush_ms: long = setting(
        default=MAX_LONG,
        doc="Longest time that a record waits to be forced to disk.",
        scope=CLUSTER,
        at_least=0,
        inherits=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    follower_replication_throttled_replicas: names = setting(
        default=(),
        doc="Replicas whose followers fetch at the throttled rate, as partition:broker, or *.",
        scope=CLUSTER,
    )
    index_interval_bytes: int = setting(
        default=4096,
        doc="Bytes of log between two entries of the offset index.",
        scope=CLUSTER,
        at_least=0,
        inherits=("log.index.interval.bytes",),
    )
    leader_replication_throttled_replicas: names = setting(
        default=(),
        doc="Replicas whose leaders serve at the throttled rate, as partition:broker, or *.",
        scope=CLUSTER,
    )
    max_compaction_lag_ms: long = setting(
        default=MAX_LONG,
        doc="Longest time that a record may stay uncompacted.",
        scope=CLUSTER,
        at_least=1,
        inherits=("log.cleaner.max.compaction.lag.ms",),
    )
    max_message_bytes: int = setting(
        default=1024 * 1024 + 12,
        doc="Largest record batch that is accepted, compressed as it comes.",
        scope=CLUSTER,
        at_least=0,
        inherits=("message.max.bytes",),
    )
    message_timestamp_after_max_ms: long = setting(
        default=HOUR_MS,
        doc="How far ahead of the broker's clock a record's timestamp may be.",
        scope=CLUSTER,
        at_least=0,
        inherits=("log.message.timestamp.after.max.ms",),
    )
    message_timestamp_before_max_ms: long = setting(
        default=MAX_LONG,
        doc="How far behind the broker's clock a record's timestamp may be.",
        scope=CLUSTER,
        at_least=0,
        inherits=("log.message.timestamp.before.max.ms",),
    )
    message_timestamp_type: str = setting(
        default="CreateTime",
        doc="Whether a record keeps the producer's time or gets the time of its append.",
        scope=CLUSTER,
        one_of=("CreateTime", "LogAppendTime"),
        inherits=("log.message.timestamp.type",),
    )
    min_cleanable_dirty_ratio: float = setting(
        default=0.5,
        doc="Share of a log that must be uncompacted before it is compacted again.",
        scope=CLUSTER,
        at_least=0,
        at_most=1,
        inherits=("log.cleaner.min.cleanable.ratio",),
    )
    min_compaction_lag_ms: long = setting(
        default=0,
        doc="Shortest time that a record stays uncompacted.",
        scope=CLUSTER,
        at_least=0,
        inherits=("log.cleaner.min.compaction.lag.ms",),
    )
    min_insync_replicas: int = setting(
        default=1,
        doc="Fewest in-sync replicas that an acks=all write needs.",
        scope=CLUSTER,
        at_least=1,
        inherits=("min.insync.replicas",),
    )
    preallocate: bool = setting(
        default=False,
        doc="Whether a new segment takes its whole size on disk at once.",
        scope=CLUSTER,
        inherits=("log.preallocate",),
        ignored="a segment grows as it is written",
    )
    retention_bytes: long = setting(
        default=-1,
        doc="Size of a partition above which its oldest segments are deleted; -1 is no limit.",
        scope=CLUSTER,
        inherits=("log.retention.bytes",),
    )
    retention_ms: long = setting(
        default=7 * DAY_MS,
        doc="Age at which a segment is deleted; -1 keeps it for ever.",
        scope=CLUSTER,
        at_least=-1,
        inherits=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    segment_bytes: int = setting(
        default=1024 * 1024 * 1024,
        doc="Size at which a segment is closed and the next one begun.",
        scope=CLUSTER,
        at_least=14,
        inherits=("log.segment.bytes",),
    )
    segment_index_bytes: int = setting(
        default=10 * 1024 * 1024,
        doc="Largest size of a segment's offset index; a full index closes the segment.",
        scope=CLUSTER,
        at_least=4,
        inherits=("log.index.size.max.bytes",),
    )
    segment_jitter_ms: long = setting(
        default=0,
        doc="Most that chance takes off segment.ms, so that segments do not all roll at once.",
        scope=CLUSTER,
        at_least=0,
        inherits=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    segment_ms: long = setting(
        default=7 * DAY_MS,
        doc="Age at which a segment is closed though it is not full.",
        scope=CLUSTER,
        at_least=1,
        inherits=("log.roll.ms", "log.roll.hours"),
    )
    unclean_leader_election_enable: bool = setting(
        default=False,
        doc="Whether a replica that is not in sync may become leader, which loses records.",
        scope=CLUSTER,
        inherits=("unclean.leader.election.enable",),
    )

    @classmethod
    def check(cls, overrides: Mapping[str, str]) -> None:
        """Raise InvalidSetting unless a topic may have these settings of its own."""
        topic = cls(**cls.parse(overrides))
        if topic.min_compaction_lag_ms > topic.max_compaction_lag_ms:
            raise InvalidSetting(
                "min.compaction.lag.ms must not be more than max.compaction.lag.ms"
            )
        for name in ("leader", "follower"):
            listed = getattr(topic, f"{name}_replication_throttled_replicas")
            if listed != ("*",) and not all(map(_REPLICA.fullmatch, listed)):
                raise InvalidSetting(
                    f"{name}.replication.throttled.replicas must be * or a list of"
                    f" partition:broker, not {','.join(listed)!r}"
                )

    @classmethod
    def effective(cls, broker: Settings, overrides: Mapping[str, str]) -> Self:
        """The settings of a topic with these settings of its own, on this broker."""
        values = cls.parse(overrides)
        for name, about in cls.declared.items():
            if name not in overrides:
                value = _inherited(broker, about.inherits)
                if value is not None and value != about.default:
                    values[about.attribute] = value
        topic = cls(**values)
        topic.__dict__["layers"] = ((Source.TOPIC, dict(overrides)), *broker.layers)
        return topic

    def describe(self) -> Iterator[Described]:
        """Every setting with its value and the weaker values behind it."""
        for about, value in self._values():
            synonyms = []
            for source, given in self.layers:
                own = (about.name,) if source is Source.TOPIC else about.inherits
                synonyms += [
                    Synonym(name, None if about.secret else given[name], source)
                    for name in own
                    if name in given
                ]
            default = (*about.inherits, about.name)[0]
            synonyms.append(Synonym(default, about.text(about.default), Source.DEFAULT))
            yield self._described(about, value, synonyms)


def _inherited(broker: Settings, chain: tuple[str, ...]) -> Any:
    """The first value in the chain, turned into milliseconds if the name ends in another unit."""
    for name in chain:
        value = getattr(broker, name.replace(".", "_"))
        if value is not None:
            unit = _UNIT_MS.get(name.rpartition(".")[2], 1)
            return value * unit if unit != 1 and value > 0 else value
    return None
