"""Fuzz targets: text that people and other programs write: HTTP, properties, znodes, backups."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from hightide.settings import Topic, properties
from hightide.settings.declaration import InvalidSetting
from hightide.settings.listeners import parse_listeners, parse_protocol_map
from hightide.zookeeper import backup, znodes
from hightide.zookeeper.zookeeper_errors import ZooKeeperError
from tests.unit.ingest import test_http as http

ZNODES: tuple[Any, ...] = (
    znodes.ClusterId,
    znodes.Controller,
    znodes.BrokerRegistration,
    znodes.TopicAssignment,
    znodes.PartitionState,
    znodes.EntityConfig,
    znodes.ConfigChange,
    znodes.ProducerIdBlock,
    znodes.PartitionList,
    znodes.Reassignment,
    znodes.LogDirEvent,
    znodes.BrokerSecret,
)


def fuzz_http(data: bytes) -> None:
    """The ingest server answers each request in full and closes the connection."""
    cut = data[0] if data else 0
    _, writer = http.serve(data[1 : 1 + cut], data[1 + cut :])
    assert not writer.data or writer.data.startswith(b"HTTP/1.1 ")
    assert not re.search(rb"(?m)^HTTP/1\.1 500", writer.data)


def seeds_http() -> Iterator[bytes]:
    post = b"\x20POST /topics/t HTTP/1.1\r\nHost: localhost\r\n"
    packed = gzip.compress(b"abc\n", mtime=0)
    yield post + b"Content-Length: 3\r\n\r\nabc"
    yield post + b"Content-Length: 3\r\n\r\nabc" + post[1:] + b"Content-Length: 0\r\n\r\n"
    yield post + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    yield post + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed
    yield post + b"Expect: 100-continue\r\nContent-Type: application/json\r\n\r\n[1, 2]"
    yield b"\x05GET /health?a=b%20c HTTP/1.1\r\nHost: h\r\n\r\n"
    yield b"\x00HEAD http://[::1]/ HTTP/1.0\r\n\r\n"


def fuzz_properties(data: bytes) -> None:
    """Properties that are read can be written and read again; settings give InvalidSetting."""
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(properties.BadProperties):
        found = [(name, value) for _, name, value in properties.parse(text)]
        again = properties.parse(properties.write(found))
        assert [(name, value) for _, name, value in again] == found
        with contextlib.suppress(InvalidSetting):
            Topic.parse(dict(found))
    with contextlib.suppress(InvalidSetting):
        parse_listeners(text)
    with contextlib.suppress(InvalidSetting):
        parse_protocol_map(text)


def seeds_properties() -> Iterator[bytes]:
    yield b"# comment\nretention.ms = 1\\\n  000\ncleanup.policy: compact,delete\n"
    yield b"a\\ b=c\\u0041\\\\\n!x\n  d\te\r\nf\\=g==\n"
    yield b"compression.type=zstd\nmin.cleanable.dirty.ratio=0.5\n"
    yield b"PLAINTEXT://0.0.0.0:9092,SSL://[::1]:9093"
    yield b"INTERNAL:PLAINTEXT,CLIENT:SASL_SSL"


def fuzz_znodes(data: bytes) -> None:
    """The data of a znode and a backup of znodes."""
    for cls in ZNODES:
        with contextlib.suppress(ZooKeeperError):
            cls.decode(data, "/path")
    with contextlib.suppress(ZooKeeperError):
        znodes.decode_controller_epoch(data)
    with contextlib.suppress(backup.DamagedBackup):
        backup.decode(data)


def seeds_znodes() -> Iterator[bytes]:
    yield znodes.ClusterId("x").encode()
    yield znodes.Controller(1, 1_700_000_000_000).encode()
    yield znodes.encode_controller_epoch(7)
    topic_id = znodes.id_text(UUID(int=7)).encode()
    yield (
        b'{"version":3,"topic_id":"%s","partitions":{"0":[1,2],"1":[2,1]},'
        b'"adding_replicas":{"0":[2]},"removing_replicas":{}}' % topic_id
    )
    yield (
        b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1,2],'
        b'"leader_recovery_state":0}'
    )
    yield (
        b'{"version":5,"host":"h","port":9092,"jmx_port":-1,"timestamp":"17","rack":"r",'
        b'"endpoints":["PLAINTEXT://h:9092"],"features":{},'
        b'"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"}}'
    )
    yield b'{"version":1,"config":{"retention.ms":"5"}}'
    yield b'{"version":2,"entity_path":"topics/t"}'
    yield b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}'
    yield b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1]}]}'
    yield b'{"version":1,"broker":1,"event":1}'
    yield b"[" * 2000
    body = b'{"format":"%s","version":%d,"zxid":1e999,"count":0}\n' % (
        backup.FORMAT.encode(),
        backup.VERSION,
    )
    yield body + b'{"sha256":"%s"}\n' % hashlib.sha256(body).hexdigest().encode()
