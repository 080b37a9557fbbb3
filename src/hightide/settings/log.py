"""Broker settings for logs: their directories, and the settings that topics inherit.

A setting that topics inherit is declared once, in `topic`; here it gets its broker name.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hightide.settings.declaration import Scope, Settings, java_class, long, names, setting
from hightide.settings.topic import DAY_MS, HOUR_MS, MAX_LONG, MINUTE_MS, Topic

CLUSTER = Scope.CLUSTER


def for_topics(name: str, **differences: Any) -> Any:
    """Declare the broker setting that is the default of a topic setting."""
    about = Topic.declared[name]
    doc = f"{about.doc} The default of the topic setting {name}."
    return dataclasses.replace(about, inherits=(), **({"doc": doc} | differences))


class LogSettings(Settings):
    """Directories, segments, retention, compaction and flushing."""

    log_dir: str = setting(
        default="hightide-data",
        doc="Log directory if log.dirs is not set. Kafka's default is under /tmp, which many"
        " systems empty.",
    )
    log_dirs: names | None = setting(
        default=None, doc="Log directories; a new partition goes to the one with the fewest."
    )
    log_dir_reserve_bytes: long = setting(
        default=8 * 1024 * 1024,
        doc="Space that each log directory reserves for checkpoints, recovery and a clean shutdown"
        " when its disk is full. 0 reserves nothing.",
        at_least=0,
    )
    log_dir_full_timeout_ms: long = setting(
        default=3000,
        doc="How long the disk of a log directory may be full before the leaders on it hand their"
        " leadership over. Followers leave the ISR at once.",
        scope=CLUSTER,
        at_least=0,
    )
    num_partitions: int = setting(
        default=1, doc="Default number of partitions of a new topic.", at_least=1
    )
    num_recovery_threads_per_data_dir: int = setting(
        default=2,
        doc="Threads per log directory that recover logs after an unclean shutdown.",
        scope=CLUSTER,
        at_least=1,
    )
    auto_create_topics_enable: bool = setting(
        default=True, doc="Whether a request for an unknown topic creates the topic."
    )
    auto_create_topics_max_per_request: int = setting(
        default=100,
        doc="Maximum number of topics that one Metadata request creates; further topics get"
        " LEADER_NOT_AVAILABLE, and the client asks again.",
        at_least=1,
    )
    delete_topic_enable: bool = setting(default=True, doc="Whether topics can be deleted.")
    message_max_bytes: int = for_topics("max.message.bytes")
    message_max_decompressed_bytes: int = for_topics("max.decompressed.message.bytes")
    log_record_validation_enable: bool = for_topics("record.validation.enable")
    min_insync_replicas: int = for_topics("min.insync.replicas")
    unclean_leader_election_enable: bool = for_topics("unclean.leader.election.enable")
    unclean_recovery_strategy: str = for_topics("unclean.recovery.strategy")
    compression_type: str = for_topics("compression.type")
    compression_gzip_level: int = for_topics("compression.gzip.level")
    compression_lz4_level: int = for_topics("compression.lz4.level")
    compression_zstd_level: int = for_topics("compression.zstd.level")

    log_segment_bytes: int = for_topics("segment.bytes")
    log_segment_delete_delay_ms: long = for_topics("file.delete.delay.ms")
    log_preallocate: bool = for_topics("preallocate")
    log_index_interval_bytes: int = for_topics("index.interval.bytes")
    log_index_size_max_bytes: int = for_topics("segment.index.bytes")
    log_roll_ms: long | None = for_topics("segment.ms", default=None)
    log_roll_hours: int = setting(
        default=7 * 24, doc="log.roll.ms in hours, used if log.roll.ms is not set.", at_least=1
    )
    log_roll_jitter_ms: long | None = for_topics("segment.jitter.ms", default=None)
    log_roll_jitter_hours: int = setting(
        default=0, doc="log.roll.jitter.ms in hours, used if that is not set.", at_least=0
    )

    log_retention_bytes: long = for_topics("retention.bytes")
    log_retention_ms: long | None = for_topics("retention.ms", default=None)
    log_retention_minutes: int | None = setting(
        default=None, doc="log.retention.ms in minutes, used if that is not set.", at_least=-1
    )
    log_retention_hours: int = setting(
        default=7 * 24,
        doc="log.retention.ms in hours, used if neither that nor log.retention.minutes is set.",
        at_least=-1,
    )
    log_retention_check_interval_ms: long = setting(
        default=5 * MINUTE_MS, doc="Time between two checks for segments to delete.", at_least=1
    )
    log_initial_task_delay_ms: long = setting(
        default=30 * 1000,
        doc="Time from the start of the broker to the first retention, flush and checkpoint.",
        at_least=0,
    )
    log_cleanup_policy: names = for_topics("cleanup.policy")

    log_cleaner_enable: bool = setting(default=True, doc="Whether the log cleaner compacts topics.")
    log_cleaner_backoff_ms: long = setting(
        default=15 * 1000,
        doc="Time between two checks for logs to compact.",
        scope=CLUSTER,
        at_least=0,
    )
    log_cleaner_dedupe_buffer_size: long = setting(
        default=128 * 1024 * 1024,
        doc="Memory for the keys of all cleaner threads; a log with more keys needs more rounds.",
        scope=CLUSTER,
        at_least=1024 * 1024,
    )
    log_cleaner_delete_retention_ms: long = for_topics("delete.retention.ms")
    log_cleaner_io_buffer_load_factor: float = setting(
        default=0.9,
        doc="Maximum fill factor of Kafka's key table.",
        scope=CLUSTER,
        ignored="keys are in a dict, which grows as needed",
    )
    log_cleaner_io_buffer_size: int = setting(
        default=512 * 1024,
        doc="Buffer size for reads and writes of the log cleaner.",
        scope=CLUSTER,
        at_least=0,
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        default=1.7976931348623157e308,
        doc="Maximum bytes per second that the log cleaner reads and writes.",
        scope=CLUSTER,
        later="the log cleaner has no throttle",
    )
    log_cleaner_max_compaction_lag_ms: long = for_topics("max.compaction.lag.ms")
    log_cleaner_min_cleanable_ratio: float = for_topics("min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: long = for_topics("min.compaction.lag.ms")
    log_cleaner_threads: int = setting(
        default=1,
        doc="Number of logs that are compacted at the same time.",
        scope=CLUSTER,
        at_least=0,
    )

    log_flush_interval_messages: long = for_topics("flush.messages")
    log_flush_interval_ms: long | None = for_topics("flush.ms", default=None)
    log_flush_scheduler_interval_ms: long = setting(
        default=MAX_LONG,
        doc="Time between two checks for logs to flush; also the value of log.flush.interval.ms if"
        " that is not set.",
        at_least=0,
    )
    log_scrub_interval_ms: long = setting(
        default=7 * 24 * 60 * MINUTE_MS,
        doc="Time within which the CRC of every record batch on disk is checked, so that damage is"
        " found and repaired while other replicas are intact; -1: never.",
        scope=CLUSTER,
        at_least=-1,
    )
    log_scrub_bytes_per_second: long = setting(
        default=10 * 1024 * 1024,
        doc="How fast the scrub reads. It ends in time only if all logs are smaller than this times"
        " log.scrub.interval.ms.",
        scope=CLUSTER,
        at_least=1024,
    )
    log_damaged_retention_ms: long = setting(
        default=7 * 24 * 60 * MINUTE_MS,
        doc="How long damaged files are kept, in directories whose names end in -damaged.",
        scope=CLUSTER,
        at_least=0,
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        default=MINUTE_MS,
        doc="Time between two checkpoints of the recovery points, from which recovery after an"
        " unclean shutdown reads the logs.",
        at_least=0,
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        default=MINUTE_MS,
        doc="Time between two checkpoints of the log start offsets.",
        at_least=0,
        ignored="they are written as soon as they change",
    )

    log_message_timestamp_type: str = for_topics("message.timestamp.type")
    log_message_timestamp_before_max_ms: long = for_topics("message.timestamp.before.max.ms")
    log_message_timestamp_after_max_ms: long = for_topics("message.timestamp.after.max.ms")
    log_message_timestamp_difference_max_ms: long = setting(
        default=MAX_LONG,
        doc="Maximum difference between the timestamp of a record and the broker's clock.",
        at_least=0,
        ignored="Kafka replaced it with log.message.timestamp.before.max.ms and .after.max.ms",
    )
    log_message_format_version: str = setting(
        default="3.0-IV1",
        doc="Format of stored records.",
        ignored="records are always stored in format 2",
    )
    log_message_downconversion_enable: bool = setting(
        default=True,
        doc="Whether records are converted for clients older than Kafka 0.11.",
        ignored="the broker serves no request version that needs it",
    )
    log_dir_failure_timeout_ms: long = setting(
        default=30 * 1000,
        doc="How long a broker may fail to report a failed directory to the controller.",
        at_least=1,
        later="failed directories are not reported to the controller",
    )

    producer_id_expiration_ms: int = setting(
        default=DAY_MS,
        doc="How long the broker keeps the state of an idle producer id.",
        scope=CLUSTER,
        at_least=1,
    )
    producer_id_expiration_check_interval_ms: int = setting(
        default=10 * MINUTE_MS, doc="Time between two checks for expired producer ids.", at_least=1
    )
    create_topic_policy_class_name: java_class | None = setting(
        default=None,
        doc="A class that validates new topics.",
        ignored="Java classes cannot be loaded",
    )
    alter_config_policy_class_name: java_class | None = setting(
        default=None,
        doc="A class that validates changes of settings.",
        ignored="Java classes cannot be loaded",
    )


assert HOUR_MS * LogSettings.log_retention_hours == Topic.retention_ms
