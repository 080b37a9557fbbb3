"""Requests over a plain socket, for bytes that no client library would send."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
from pathlib import Path
from typing import Any

from hightide.wire import batch
from hightide.wire.frame import decode_response, encode_request
from hightide.wire.messages import REQUESTS, RESPONSES
from hightide.wire.messages.api_versions import ApiVersionsRequest
from hightide.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from hightide.wire.types import NO_UUID, Array, Blob, Fixed, Struct, api_of, fields_of
from tests.support.proving import first_step, second_step, secret_at

DEADLINE_S = 25.0
PRODUCE, FETCH = 0, 1


class Raw:
    """One connection."""

    def __init__(self, cluster, broker_id=1):
        address = (cluster.host(broker_id), cluster.port(broker_id))
        self._address = f"{address[0]}:{address[1]}"
        self._socket = socket.create_connection(address, DEADLINE_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def send(self, data):
        """Send bytes; the broker may already have closed the connection."""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            self._socket.sendall(data)

    def send_frame(self, body):
        self.send(struct.pack(">i", len(body)) + body)

    def finish(self):
        """Close the sending side."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def receive(self):
        """Return the next response without its length, or None after the end of the connection."""
        head = self._exactly(4)
        if head is None:
            return None
        (size,) = struct.unpack(">i", head)
        assert 4 <= size < 2**26, f"an answer of {size} bytes"
        return self._exactly(size)

    def _exactly(self, count):
        found = b""
        while len(found) < count:
            try:
                part = self._socket.recv(count - len(found))
            except ConnectionResetError:
                part = b""
            if not part:
                assert not found, "the broker hung up in the middle of an answer"
                return None
            found += part
        return found

    def ask(self, request, version, correlation_id=7):
        """Send a request; return its response, or None if the broker closes the connection."""
        self.begin(request, version, correlation_id)
        return self.end(request, version, correlation_id)

    def prove(self, cluster, broker_id, broker_epoch=0, secret=None):
        """Prove to be a broker, with the secret that the brokers share in ZooKeeper."""
        first = first_step(broker_id, broker_epoch)
        key, cluster_id = secret or secret_at(cluster.zookeeper)
        second = second_step(key, cluster_id, self._address, first, self.ask(first, 0))
        assert self.ask(second, 0).error_code == 0
        return self

    def begin(self, request, version, correlation_id=7):
        """Send a request whose response may take long."""
        self.send(encode_request(request, version, correlation_id, "raw"))

    def end(self, request, version, correlation_id=7):
        """Return the response to a request that `begin` sent."""
        answer = self.receive()
        if answer is None:
            return None
        key = api_of(type(request)).key
        assert key is not None
        found, message = decode_response(RESPONSES[key], answer, version)
        assert found == correlation_id
        return message


def advertised(cluster) -> dict[int, tuple[int, int]]:
    with Raw(cluster) as raw:
        answer = raw.ask(ApiVersionsRequest(), 0)
    return {
        api_key.api_key: (api_key.min_version, api_key.max_version) for api_key in answer.api_keys
    }


def served(versions: dict[int, tuple[int, int]]):
    """Return every API and version that the broker advertises and serves."""
    for key, (low, high) in versions.items():
        # Produce is advertised from version 0 for old clients, but served from 3.
        for version in range(max(low, api_of(REQUESTS[key]).versions[0]), high + 1):
            yield key, version


def filled(cls: type, version: int, kind: str) -> Any:
    """Return a message with empty arrays, with nulls, or with one blank element per array."""
    values = {}
    for field in fields_of(cls):
        if not field.spec.carried_by(version):
            continue
        if field.spec.tag is not None:
            continue
        values[field.name] = blank(field, version, kind)
    missing = {
        attribute.name: blank(
            next(field for field in fields_of(cls) if field.name == attribute.name), 2**14, kind
        )
        for attribute in dataclasses.fields(cls)
        if attribute.name not in values
        and attribute.default is dataclasses.MISSING
        and attribute.default_factory is dataclasses.MISSING
    }
    return cls(**values, **missing)


def blank(field, version, kind):
    if kind == "null" and field.nullable_in(version):
        return None
    match field.shape:
        case Array(item=Struct(cls=cls)):
            return [filled(cls, version, kind)] if kind == "one" else []
        case Array():
            return []
        case Struct(cls=cls):
            return filled(cls, version, kind)
        case Blob():
            return b""
        case Fixed(code="?"):
            return False
        case Fixed(size=16):
            return NO_UUID
        case Fixed():
            return 0
        case _:
            return ""


def produce_request(topic, records, *, partition=0, acks=1, transactional_id=None, timeout_ms=5000):
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(
                name=topic,
                partition_data=[PartitionProduceData(index=partition, records=records)],
            )
        ],
    )


def produced(answer):
    """Return the one partition of a Produce response."""
    return answer.responses[0].partition_responses[0]


def good_batch(count=3, **options):
    rows = [batch.Record(at, 1_700_000_000_000, b"k", b"v%d" % at, ()) for at in range(count)]
    return batch.build(rows, **options)


def resident_bytes(cluster):
    """Return the resident memory of the broker."""
    return int(Path(f"/proc/{cluster.pid()}/statm").read_text().split()[1]) * 4096
