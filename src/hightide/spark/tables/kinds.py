"""The ledger of each kind of table; `deltalake` and `pyiceberg` are loaded only when used."""

from __future__ import annotations

from hightide.spark.tables.ledger import Ledger
from hightide.spark.tables.target import Kind, Target, parse


def ledger_of(target: str | Target) -> Ledger:
    found = parse(target) if isinstance(target, str) else target
    match found.kind:
        case Kind.PARQUET:
            from hightide.spark.tables.parquet import ParquetLedger

            return ParquetLedger(found.path)
        case Kind.DELTA:
            from hightide.spark.tables.delta import DeltaLedger

            return DeltaLedger(found.path)
        case Kind.ICEBERG:
            from hightide.spark.tables.iceberg import IcebergLedger

            return IcebergLedger(found.path)
