"""Translation between this package's operations, results and errors and kazoo's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo.protocol import serialization as wire
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id

from hightide.zookeeper import acl, zookeeper_errors
from hightide.zookeeper.node import OPEN_ACL, Stat, check_path
from hightide.zookeeper.operation import Check, Create, Delete, Operation, SetData
from hightide.zookeeper.zookeeper_errors import (
    ConnectionLoss,
    MultiFailed,
    TooLarge,
    ZooKeeperError,
)

_MAX_DATA_BYTES = 1_000_000
"""Servers accept requests up to 2^20 bytes. A larger one breaks the connection for all calls."""

_BY_CODE: dict[int, type[ZooKeeperError]] = {
    error.code: error
    for error in (
        zookeeper_errors.ConnectionLoss,
        zookeeper_errors.Unimplemented,
        zookeeper_errors.BadArguments,
        zookeeper_errors.NoNode,
        zookeeper_errors.NoAuth,
        zookeeper_errors.BadVersion,
        zookeeper_errors.NoChildrenForEphemerals,
        zookeeper_errors.NodeExists,
        zookeeper_errors.NotEmpty,
        zookeeper_errors.SessionLost,
        zookeeper_errors.InvalidAcl,
        zookeeper_errors.AuthFailed,
    )
}
# ZooKeeper's operation timeout, session moved and request timeout.
_OUTCOME_UNKNOWN = frozenset({-7, -118, -122})


class Chroot:
    """The znode that a client sees as the root; "" is the root itself."""

    __slots__ = ("_prefix",)

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def outer(self, path: str) -> str:
        return self._prefix + path if path != "/" else self._prefix or "/"

    def inner(self, path: str) -> str:
        return path[len(self._prefix) :] or "/"


def request(operation: Operation, chroot: Chroot) -> Any:
    """Translate an operation to kazoo's request; raise BadArguments if its path is invalid."""
    path = chroot.outer(operation.path)
    match operation:
        case Create(_, data, ephemeral, sequence, listed):
            # The server checks the path after it has appended the sequence number.
            check_path(operation.path + "0" * sequence)
            _check_size(operation.path, data)
            return wire.Create(path, data, kazoo_acl(listed), ephemeral | sequence << 1)
        case SetData(_, data, version):
            _check_size(operation.path, data)
            translated = wire.SetData(path, data, version)
        case Delete(_, version):
            translated = wire.Delete(path, version)
        case Check(_, version):
            translated = wire.CheckVersion(path, version)
    check_path(operation.path)
    return translated


def kazoo_acl(listed: bytes) -> list[ACL]:
    """Translate an ACL as the tree stores it."""
    if listed == OPEN_ACL:
        return list(OPEN_ACL_UNSAFE)
    return [ACL(permissions, Id(scheme, name)) for permissions, scheme, name in acl.decode(listed)]


def multi_request(operations: Sequence[Operation], chroot: Chroot) -> Any:
    """Translate a multi; raise MultiFailed for the first operation that cannot be sent."""
    requests = []
    size = 0
    for index, operation in enumerate(operations):
        size += len(operation.path) + len(getattr(operation, "data", None) or b"")
        try:
            requests.append(request(operation, chroot))
            if size > _MAX_DATA_BYTES:
                raise TooLarge(operation.path, f"{size} bytes up to this operation")
        except ZooKeeperError as refusal:
            raise MultiFailed(index, refusal, len(operations)) from None
    return wire.Transaction(requests)


def multi_results(
    results: Sequence[Any], operations: Sequence[Operation], chroot: Chroot
) -> list[str | Stat | None]:
    """Translate the results of a multi; kazoo returns errors as results."""
    for index, result in enumerate(results):
        # The operations before the refused one are reported as errors too, with code 0.
        if isinstance(result, Exception) and getattr(result, "code", None) != 0:
            raise MultiFailed(index, error(result, operations[index].path), len(operations))
    return [_multi_result(result, chroot) for result in results]


def error(failure: Exception, path: str) -> ZooKeeperError:
    """Translate kazoo's exception, by ZooKeeper's error code if it has one."""
    code = getattr(failure, "code", None)
    if code in _BY_CODE:
        return _BY_CODE[code](path)
    detail = f"{type(failure).__name__} {failure}".strip()
    if code is None or code in _OUTCOME_UNKNOWN:
        return ConnectionLoss(path, detail)
    return ZooKeeperError(path, f"{detail}, code {code}")


def _multi_result(result: Any, chroot: Chroot) -> str | Stat | None:
    if isinstance(result, str):
        return chroot.inner(result)
    # The result of delete and check is True.
    return Stat._make(result) if isinstance(result, tuple) else None


def _check_size(path: str, data: bytes | None) -> None:
    if data is not None and len(data) > _MAX_DATA_BYTES:
        raise TooLarge(path, f"{len(data)} bytes, at most {_MAX_DATA_BYTES}")
