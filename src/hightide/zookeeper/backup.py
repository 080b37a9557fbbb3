"""Backup files: a snapshot as text, one JSON object per line.

    {"format": "hightide-zookeeper", "version": 1, "zxid": …, "count": …, …}
    {"path": "/brokers", "data": null, "stat": {…}}
    {"path": "/cluster/id", "text": "{\\"version\\":\\"1\\",…}", "stat": {…}}
    {"sha256": "…"}

The format is text so that an operator can read a backup with `less` and `jq` and compare two with
`diff`. Data that is not UTF-8 is in `base64` instead of `text`; an ACL is written unless it is the
open one. The last line is the checksum of all bytes before it: a truncated or edited file is
refused as a whole.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hightide.zookeeper import acl
from hightide.zookeeper.node import OPEN_ACL, Stat, Znode, check_path, split
from hightide.zookeeper.snapshot import Snapshot
from hightide.zookeeper.zookeeper_errors import BadArguments

FORMAT = "hightide-zookeeper"
OLD_FORMAT = "hightide-coordination"
"""The format name in earlier versions; the content is the same."""
VERSION = 1
MODE = 0o600
"""A backup holds what ACLs protect, password hashes among it."""

_STAT = ("czxid", "mzxid", "ctime", "mtime", "version", "cversion", "aversion", "pzxid")
"""The other fields of a Stat follow from the znode and its children."""


class DamagedBackup(Exception):
    """The file is not a backup, or it is not complete and unchanged."""


class Backup(NamedTuple):
    """A snapshot with its source and time."""

    snapshot: Snapshot
    source: str
    taken_ms: int


def write(backup: Backup, file: Path) -> None:
    """Write a backup file atomically: an existing file is replaced only by a complete one."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    try:
        with open(descriptor, "wb") as out:
            out.writelines(encode(backup))
            out.flush()
            os.fsync(descriptor)
        partial.replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read(file: Path) -> Backup:
    """Read a backup file. Raises OSError or DamagedBackup."""
    try:
        return decode(file.read_bytes())
    except DamagedBackup as damage:
        raise DamagedBackup(f"{file}: {damage}") from damage


# -- encoding --------------------------------------------------------------------------------


def encode(backup: Backup) -> Iterator[bytes]:
    """Encode a backup as the lines of its file."""
    checksum = hashlib.sha256()
    for fields in _objects(backup):
        line = _line(fields)
        checksum.update(line)
        yield line
    yield _line({"sha256": checksum.hexdigest()})


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def _objects(backup: Backup) -> Iterator[dict[str, Any]]:
    snapshot = backup.snapshot
    yield {
        "format": FORMAT,
        "version": VERSION,
        "source": backup.source,
        "taken_ms": backup.taken_ms,
        "zxid": snapshot.zxid,
        "count": len(snapshot.nodes),
        "ephemerals_left_out": snapshot.ephemeral_count,
        "brokers": list(snapshot.brokers),
    }
    for path, node in snapshot.nodes.items():
        fields: dict[str, Any] = {"path": path, **_data_fields(node.data)}
        if node.acl != OPEN_ACL:
            fields["acl"] = [list(entry) for entry in acl.decode(node.acl)]
        yield {**fields, "stat": {name: getattr(node.stat, name) for name in _STAT}}


def _data_fields(data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {"data": None}
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


# -- decoding --------------------------------------------------------------------------------


def decode(content: bytes) -> Backup:
    """Decode what `encode` wrote; raise DamagedBackup for anything else."""
    if not content:
        raise DamagedBackup("the file is empty")
    body, newline, last = content.removesuffix(b"\n").rpartition(b"\n")
    header = _parsed(content.partition(b"\n")[0])
    if header.get("format") not in (FORMAT, OLD_FORMAT):
        raise DamagedBackup("not a ZooKeeper backup")
    if header.get("version") != VERSION:
        raise DamagedBackup(
            f"format version {header.get('version')} is not supported, expected {VERSION}"
        )
    if "sha256" not in _parsed(last) or not content.endswith(b"\n"):
        raise DamagedBackup("the file is truncated: its checksum line is missing")
    if last + b"\n" != _line({"sha256": hashlib.sha256(body + newline).hexdigest()}):
        raise DamagedBackup("checksum mismatch: the file was changed or damaged")
    try:
        return _backup(header, [json.loads(line) for line in body.split(b"\n")[1:]])
    except (
        KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, BadArguments
    ) as failure:  # fmt: skip
        # The checksum is right, so the file was written like this.
        raise DamagedBackup(f"invalid content: {failure!r}") from failure


def _parsed(line: bytes) -> dict[str, Any]:
    """Parse the JSON object in a line; an empty one if there is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _backup(header: dict[str, Any], lines: list[dict[str, Any]]) -> Backup:
    if len(lines) != header["count"]:
        raise ValueError(f"expected {header['count']} znodes, found {len(lines)}")
    children: dict[str, int] = {}
    for fields in lines:
        path = fields["path"]
        check_path(path)
        if path in children or (path != "/" and split(path)[0] not in children):
            raise ValueError(f"{path} occurs twice or before its parent")
        children[path] = 0
        if path != "/":
            children[split(path)[0]] += 1
    snapshot = Snapshot(
        int(header["zxid"]),
        {fields["path"]: _node(fields, children[fields["path"]]) for fields in lines},
        int(header["ephemerals_left_out"]),
        tuple(map(str, header["brokers"])),
    )
    return Backup(snapshot, str(header["source"]), int(header["taken_ms"]))


def _node(fields: dict[str, Any], child_count: int) -> Znode:
    data = _data(fields)
    stat = {name: int(fields["stat"][name]) for name in _STAT}
    entries = (
        acl.Entry(int(permissions), str(scheme), str(name))
        for permissions, scheme, name in fields.get("acl", [acl.ANYONE])
    )
    return Znode(
        data,
        acl.encode(entries),
        Stat(**stat, ephemeral_owner=0, data_length=len(data or b""), num_children=child_count),
    )


def _data(fields: dict[str, Any]) -> bytes | None:
    if "text" in fields:
        return bytes(fields["text"].encode())
    if "base64" in fields:
        try:
            return base64.b64decode(fields["base64"], validate=True)
        except binascii.Error as failure:
            raise ValueError(f"{fields['path']}: {failure}") from failure
    if fields["data"] is not None:
        raise ValueError(f"{fields['path']} has data in an unknown encoding")
    return None
