"""Hightide's messages against two independent implementations of the protocol.

For every declared message and version: kafka-python encodes the same values to the same bytes,
which Hightide decodes to the same values; kio decodes Hightide's bytes to the same values, and
encodes them to the same bytes.

Messages that an oracle does not know are listed by name, so that missing coverage is visible.
"""

import json
import re
from importlib import resources
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from kio.schema.errors import ErrorCode as KioErrorCode

from hightide.wire.errors import ErrorCode
from hightide.wire.messages import APIS, REQUESTS, RESPONSES
from hightide.wire.types import (
    NEVER,
    UUID_SHAPE,
    Array,
    Blob,
    Fixed,
    Shape,
    Struct,
    Text,
    api_of,
    fields_of,
)
from tests.unit.wire.message_values import bare, drawn, every_case, every_message, full, versions_of
from tests.unit.wire.oracles import (
    agrees_with_kafka_python,
    agrees_with_kio,
    kafka_python_knows,
    kio_class,
)


def both(name: str, *versions: int) -> set[tuple[str, int]]:
    """Versions of a request, and of its response."""
    return {(name + kind, version) for kind in ("Request", "Response") for version in versions}


# Messages, or versions of messages, that an oracle does not know. For messages that neither knows,
# test_replication.py has the bytes.
OURS = (
    both("ResignController", 0)
    | both("PublishState", 0)
    | both("DescribeReplicas", 0)
    | both("GroupStatus", 0)
    | both("OpenMarkerConnection", 0)
    | both("ReportFailures", 0)
    | both("ReplicaLogInfo", 0)
    | both("ProveBroker", 0)
    | both("DescribeEvents", 0)
    | both("DescribeConnections", 0)
)
NO_ORACLE = OURS | both("ControlledShutdown", 2, 3)
NEWER_GROUPS = both("ConsumerGroupHeartbeat", 0, 1) | both("ConsumerGroupDescribe", 0, 1)
TELEMETRY = both("GetTelemetrySubscriptions", 0) | both("PushTelemetry", 0)
KAFKA_PYTHON_LACKS = NO_ORACLE | NEWER_GROUPS | TELEMETRY | both("AlterPartition", 2, 3)
KIO_LACKS = NO_ORACLE

CASES = every_case()
FEW = settings(
    max_examples=3, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize(("cls", "version"), CASES)
def test_encodes_and_decodes_as_kafka_python_does(cls: type, version: int) -> None:
    if (cls.__name__, version) in KAFKA_PYTHON_LACKS:
        assert not kafka_python_knows(cls, version)
        return
    agrees_with_kafka_python(full(cls, version), version)
    agrees_with_kafka_python(bare(cls, version), version)

    @FEW
    @given(drawn(cls, version))
    def agree(message: Any) -> None:
        agrees_with_kafka_python(message, version)

    agree()


@pytest.mark.parametrize(("cls", "version"), CASES)
def test_encodes_and_decodes_as_kio_does(cls: type, version: int) -> None:
    if (cls.__name__, version) in KIO_LACKS:
        assert kio_class(cls, version) is None
        return
    agrees_with_kio(full(cls, version), version)
    agrees_with_kio(bare(cls, version), version)

    @FEW
    @given(drawn(cls, version))
    def agree(message: Any) -> None:
        agrees_with_kio(message, version)

    agree()


# -- cover ---------------------------------------------------------------------------------


def test_every_message_and_version_has_an_oracle_or_is_listed() -> None:
    every = {(cls, version) for cls in every_message() for version in versions_of(cls)}
    assert {
        (cls.__name__, version) for cls, version in every if not kafka_python_knows(cls, version)
    } == KAFKA_PYTHON_LACKS
    assert {
        (cls.__name__, version) for cls, version in every if kio_class(cls, version) is None
    } == KIO_LACKS
    assert KAFKA_PYTHON_LACKS & KIO_LACKS == NO_ORACLE


def test_the_table_of_apis_is_that_of_the_declarations() -> None:
    for key, (name, module) in APIS.items():
        request, response = REQUESTS[key], RESPONSES[key]
        assert (request.__name__, response.__name__) == (name + "Request", name + "Response")
        assert api_of(request) == api_of(response)
        assert api_of(request).key == key
        assert request.__module__.endswith("." + module)


def test_error_codes_are_numbered_and_retriable_as_kio_has_them() -> None:
    assert {(code.value, code.name, code.retriable) for code in ErrorCode} == {
        (code.value, code.name.upper(), code.retriable) for code in KioErrorCode
    }
    assert all(code.meaning.endswith(".") for code in ErrorCode)


# -- the schemas themselves ----------------------------------------------------------------

SCALARS = {
    "int8": Fixed("b", 1),
    "int16": Fixed("h", 2),
    "int32": Fixed("i", 4),
    "int64": Fixed("q", 8),
    "uint16": Fixed("H", 2),
    "uint32": Fixed("I", 4),
    "float64": Fixed("d", 8),
    "bool": Fixed("?", 1),
    "uuid": UUID_SHAPE,
    "string": Text(),
    "bytes": Blob(view=False),
    "records": Blob(view=True),
}


def schema(name: str) -> dict[str, Any]:
    text = resources.files("kafka.protocol.schemas.resources").joinpath(name + ".json").read_text()
    found: dict[str, Any] = json.loads(re.sub(r"(?m)^\s*//.*$", "", text))
    return found


def span(text: str) -> tuple[int, int]:
    """Return the versions that a schema means by 3, 3-5, 3+ or none."""
    if text == "none":
        return NEVER, -1
    low, _, high = text.rstrip("+").partition("-")
    return int(low), NEVER if text.endswith("+") else int(high or low)


def overlap(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), min(one[1], other[1])


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def compare(cls: type, theirs: dict[str, Any], served: tuple[int, int], where: str) -> None:
    """Assert that a class has the fields of a schema in the served versions."""
    expected = [field for field in theirs["fields"] if is_served(field, served)]
    assert [declared.name for declared in fields_of(cls)] == [snake(f["name"]) for f in expected], (
        where
    )
    for declared, field in zip(fields_of(cls), expected, strict=True):
        inside = f"{where}.{declared.name}"
        assert overlap((declared.spec.since, declared.spec.until), served) == within(
            field, served
        ), inside
        assert declared.spec.tag == field.get("tag"), inside
        compare_null(declared, field, served, inside)
        if declared.spec.since > served[0] or declared.spec.until < served[1]:
            assert declared.spec.ignorable == field.get("ignorable", False), inside
        if "default" in field:
            assert is_default(declared.default, field["default"]), inside
        compare_shape(declared.shape, field, theirs, within(field, served), inside)


def within(field: dict[str, Any], served: tuple[int, int]) -> tuple[int, int]:
    return overlap(span(field["versions"]), served)


def is_served(field: dict[str, Any], served: tuple[int, int]) -> bool:
    low, high = within(field, served)
    return low <= high


def compare_null(declared: Any, field: dict[str, Any], served: tuple[int, int], where: str) -> None:
    versions = within(field, served)
    nullable = overlap(span(field.get("nullableVersions", "none")), versions)
    for version in range(versions[0], versions[1] + 1):
        assert declared.nullable_in(version) == (nullable[0] <= version <= nullable[1]), where


def is_default(ours: Any, theirs: Any) -> bool:
    if theirs == "null":
        return ours is None
    if isinstance(ours, bool):
        return str(theirs).lower() == str(ours).lower()
    if isinstance(ours, int):
        return ours == int(str(theirs), 0)
    return bool(ours == theirs)


def compare_shape(
    ours: Shape, field: dict[str, Any], parent: dict[str, Any], served: tuple[int, int], where: str
) -> None:
    kind: str = field["type"]
    if kind.startswith("[]"):
        assert isinstance(ours, Array), where
        ours, kind = ours.item, kind[2:]
    if kind in SCALARS:
        assert ours == SCALARS[kind], where
        return
    assert isinstance(ours, Struct), where
    shared = parent.get("commonStructs", [])
    inner = (
        field if "fields" in field else next(struct for struct in shared if struct["name"] == kind)
    )
    if inner is not field:
        # A struct that several fields share is declared for the versions of all of them.
        served = parent["served"]
    compare(ours.cls, {**inner, "commonStructs": shared, "served": parent["served"]}, served, where)


WITH_SCHEMA = [
    cls
    for cls in every_message()
    if not all((cls.__name__, version) in KAFKA_PYTHON_LACKS for version in versions_of(cls))
]


@pytest.mark.parametrize("cls", WITH_SCHEMA, ids=lambda cls: cls.__name__)
def test_is_declared_as_kafkas_schema_has_it(cls: type) -> None:
    api, theirs = api_of(cls), schema(cls.__name__)
    assert api.key == theirs["apiKey"]
    assert api.flexible == span(theirs["flexibleVersions"])[0]
    assert api.versions[1] <= span(theirs["validVersions"])[1]
    compare(cls, {**theirs, "served": api.versions}, api.versions, cls.__name__)


def test_a_strategy_makes_more_than_defaults() -> None:
    """Without values the oracles would agree on anything."""
    seen: set[str] = set()

    @settings(FEW, max_examples=60)
    @given(drawn(cast(Any, REQUESTS[1]), 17))
    def look(message: Any) -> None:
        seen.update(name for name in ("replica_state", "cluster_id") if getattr(message, name))
        seen.update("topics" for topic in message.topics if topic.partitions)

    look()
    assert seen == {"replica_state", "cluster_id", "topics"}
