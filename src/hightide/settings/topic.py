"""The settings of a topic.

A value comes from the topic, or from the broker setting that it inherits, or from the default. So a
`Topic` is always complete: the log reads `segment_bytes` and need not know its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from hightide.settings.declaration import (
    DescribedSetting,
    InvalidSetting,
    Scope,
    Settings,
    Source,
    Synonym,
    long,
    names,
    setting,
)
from hightide.wire.compression import DEFAULT_INFLATED_BYTES, MAX_INFLATED_BYTES

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
    """All settings of one topic, with every value resolved."""

    absent: ClassVar[dict[str, str]] = {
        "remote.": "tiered storage",
        "local.retention.": "tiered storage",
    }

    cleanup_policy: names = setting(
        default=("delete",),
        doc="What happens to old segments: delete removes them by age and size, compact keeps the"
        " latest record of each key; both can be combined.",
        scope=CLUSTER,
        one_of=("compact", "delete"),
        inherits=("log.cleanup.policy",),
    )
    compression_type: str = setting(
        default="producer",
        doc="Compression codec of stored batches; producer keeps the codec of the producer.",
        scope=CLUSTER,
        one_of=CODECS,
        inherits=("compression.type",),
    )
    compression_gzip_level: int = setting(
        default=-1,
        doc="Compression level if compression.type is gzip; -1 means the default of gzip.",
        scope=CLUSTER,
        one_of=GZIP_LEVELS,
        inherits=("compression.gzip.level",),
    )
    compression_lz4_level: int = setting(
        default=9,
        doc="Compression level if compression.type is lz4.",
        scope=CLUSTER,
        at_least=1,
        at_most=17,
        inherits=("compression.lz4.level",),
    )
    compression_zstd_level: int = setting(
        default=3,
        doc="Compression level if compression.type is zstd.",
        scope=CLUSTER,
        at_least=-131072,
        at_most=22,
        inherits=("compression.zstd.level",),
    )
    delete_retention_ms: long = setting(
        default=DAY_MS,
        doc="How long compaction keeps a tombstone, so that slow consumers see the deletion.",
        scope=CLUSTER,
        at_least=0,
        inherits=("log.cleaner.delete.retention.ms",),
    )
    file_delete_delay_ms: long = setting(
        default=MINUTE_MS,
        doc="How long a deleted segment stays on disk for reads in progress.",
        scope=CLUSTER,
        at_least=0,
        inherits=("log.segment.delete.delay.ms",),
    )
    flush_messages: long = setting(
        default=MAX_LONG,
        doc="Number of records after which the log is flushed to disk; 1 flushes every append"
        " before its acknowledgement.",
        scope=CLUSTER,
        at_least=1,
        inherits=("log.flush.interval.messages",),
    )
    flush_ms: long = setting(
        default=MAX_LONG,
        doc="Maximum time until a record is flushed to disk.",
        scope=CLUSTER,
        at_least=0,
        inherits=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    follower_replication_throttled_replicas: names = setting(
        default=(),
        doc="Replicas whose followers are throttled, as partition:broker, or * for all.",
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
        doc="Replicas whose leaders are throttled, as partition:broker, or * for all.",
        scope=CLUSTER,
    )
    max_compaction_lag_ms: long = setting(
        default=MAX_LONG,
        doc="Maximum time that a record stays uncompacted.",
        scope=CLUSTER,
        at_least=1,
        inherits=("log.cleaner.max.compaction.lag.ms",),
    )
    max_decompressed_message_bytes: int = setting(
        default=DEFAULT_INFLATED_BYTES,
        doc="Maximum size of the records of a batch after decompression. A larger batch is refused"
        " with MESSAGE_TOO_LARGE.",
        scope=CLUSTER,
        at_least=64 * 1024,
        at_most=MAX_INFLATED_BYTES,
        inherits=("message.max.decompressed.bytes",),
    )
    max_message_bytes: int = setting(
        default=1024 * 1024 + 12,
        doc="Maximum size of a record batch, after compression by the producer.",
        scope=CLUSTER,
        at_least=0,
        inherits=("message.max.bytes",),
    )
    message_timestamp_after_max_ms: long = setting(
        default=HOUR_MS,
        doc="How far the timestamp of a record may be ahead of the broker's clock.",
        scope=CLUSTER,
        at_least=0,
        inherits=("log.message.timestamp.after.max.ms",),
    )
    message_timestamp_before_max_ms: long = setting(
        default=MAX_LONG,
        doc="How far the timestamp of a record may be behind the broker's clock.",
        scope=CLUSTER,
        at_least=0,
        inherits=("log.message.timestamp.before.max.ms",),
    )
    message_timestamp_type: str = setting(
        default="CreateTime",
        doc="Whether a record has the timestamp of the producer or the time of its append.",
        scope=CLUSTER,
        one_of=("CreateTime", "LogAppendTime"),
        inherits=("log.message.timestamp.type",),
    )
    min_cleanable_dirty_ratio: float = setting(
        default=0.5,
        doc="Ratio of uncompacted bytes to all bytes above which a log is compacted.",
        scope=CLUSTER,
        at_least=0,
        at_most=1,
        inherits=("log.cleaner.min.cleanable.ratio",),
    )
    min_compaction_lag_ms: long = setting(
        default=0,
        doc="Minimum time that a record stays uncompacted.",
        scope=CLUSTER,
        at_least=0,
        inherits=("log.cleaner.min.compaction.lag.ms",),
    )
    min_insync_replicas: int = setting(
        default=1,
        doc="Minimum size of the ISR for a write with acks=all.",
        scope=CLUSTER,
        at_least=1,
        inherits=("min.insync.replicas",),
    )
    preallocate: bool = setting(
        default=False,
        doc="Whether the file of a new segment is preallocated.",
        scope=CLUSTER,
        inherits=("log.preallocate",),
        ignored="a segment file grows as it is written",
    )
    record_validation_enable: bool = setting(
        default=True,
        doc="Whether the framing of every record is checked before a batch is stored, compressed"
        " batches too. Without it, a batch that no consumer can read may be stored.",
        scope=CLUSTER,
        inherits=("log.record.validation.enable",),
    )
    retention_bytes: long = setting(
        default=-1,
        doc="Size of a partition above which old segments are deleted; -1 means no limit.",
        scope=CLUSTER,
        inherits=("log.retention.bytes",),
    )
    retention_ms: long = setting(
        default=7 * DAY_MS,
        doc="Age at which a segment is deleted; -1 means never.",
        scope=CLUSTER,
        at_least=-1,
        inherits=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    segment_bytes: int = setting(
        default=1024 * 1024 * 1024,
        doc="Size at which the log rolls to a new segment.",
        scope=CLUSTER,
        at_least=14,
        inherits=("log.segment.bytes",),
    )
    segment_index_bytes: int = setting(
        default=10 * 1024 * 1024,
        doc="Maximum size of an index file; a full index rolls the segment.",
        scope=CLUSTER,
        at_least=4,
        inherits=("log.index.size.max.bytes",),
    )
    segment_jitter_ms: long = setting(
        default=0,
        doc="Maximum random reduction of segment.ms, so that segments do not all roll at once.",
        scope=CLUSTER,
        at_least=0,
        inherits=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    segment_ms: long = setting(
        default=7 * DAY_MS,
        doc="Age at which the log rolls to a new segment, even if the old one is not full.",
        scope=CLUSTER,
        at_least=1,
        inherits=("log.roll.ms", "log.roll.hours"),
    )
    unclean_leader_election_enable: bool = setting(
        default=False,
        doc="Whether a replica outside the ISR may become leader, which can lose records.",
        scope=CLUSTER,
        inherits=("unclean.leader.election.enable",),
    )
    unclean_recovery_strategy: str = setting(
        default="Balanced",
        doc="What happens if no replica is known to have all committed records. Balanced waits for"
        " all members of the last ISR and ELR and elects the longest log; Aggressive elects the"
        " longest log of the live replicas; None leaves it to an administrator.",
        scope=CLUSTER,
        one_of=("None", "Balanced", "Aggressive"),
        inherits=("unclean.recovery.strategy",),
    )

    @classmethod
    def check(cls, overrides: Mapping[str, str]) -> None:
        """Raise InvalidSetting unless a topic may have these settings."""
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
        """Return the settings of a topic with these overrides, on this broker."""
        values = cls.parse(overrides)
        for name, about in cls.declared.items():
            if name not in overrides:
                value = _inherited(broker, about.inherits)
                if value is not None and value != about.default:
                    values[about.attribute] = value
        topic = cls(**values)
        topic.__dict__["layers"] = ((Source.TOPIC, dict(overrides)), *broker.layers)
        return topic

    def describe(self) -> Iterator[DescribedSetting]:
        """Yield every setting with its value and its synonyms."""
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
    """Return the first value in the chain, converted to milliseconds if its unit is another."""
    for name in chain:
        value = getattr(broker, name.replace(".", "_"))
        if value is not None:
            unit = _UNIT_MS.get(name.rpartition(".")[2], 1)
            return value * unit if unit != 1 and value > 0 else value
    return None
