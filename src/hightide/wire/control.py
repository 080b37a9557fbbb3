"""Control records: the markers that end a transaction in a partition.

A control record has its own batch with the control flag, which consumers never show. The key says
whether the transaction commits or aborts, the value has the coordinator epoch.
"""

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from hightide.wire.batch import Record, build
from hightide.wire.errors import Corrupt

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_VERSION = 0


class ControlType(IntEnum):
    """The types in a partition; Kafka has others in its metadata log."""

    ABORT = 0
    COMMIT = 1


class Marker(NamedTuple):
    """The end of a transaction."""

    type: ControlType
    coordinator_epoch: int


def build_marker(
    marker: Marker,
    *,
    offset: int = 0,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    leader_epoch: int = -1,
) -> bytearray:
    """Build a batch with one marker for the producer whose transaction ends."""
    key = _KEY.pack(_VERSION, marker.type)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return build(
        [Record(offset, timestamp, key, value)],
        base_offset=offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def control_type(record: Record) -> int:
    """Return the type number, known or not: readers skip unknown types."""
    key = record.key
    if key is None or len(key) < _KEY.size:
        raise Corrupt(f"the control record at offset {record.offset} has no complete key")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise Corrupt(f"the control record at offset {record.offset} has version {version}")
    return int(number)


def parse_marker(record: Record) -> Marker | None:
    """Return the marker in a control record, or None if the record has another type.

    Later versions may add fields at the end, so longer keys and values are accepted.
    """
    number = control_type(record)
    if number not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    value = record.value
    if value is None or len(value) < _VALUE.size:
        raise Corrupt(f"the transaction marker at offset {record.offset} has no complete value")
    version, coordinator_epoch = _VALUE.unpack_from(value)
    if version < 0:
        raise Corrupt(f"the transaction marker at offset {record.offset} has version {version}")
    return Marker(ControlType(number), coordinator_epoch)
