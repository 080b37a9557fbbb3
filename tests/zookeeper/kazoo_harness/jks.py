"""Replaces pyjks, whose installation needs a compiler, for kazoo's test harness.

The harness writes the keys of its TLS test as Java key stores. This module writes PEM files
instead, which the embedded server reads, and Apache ZooKeeper too if it is configured to.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
)
from cryptography.x509 import load_der_x509_certificate


def _certificate(der: bytes) -> bytes:
    return load_der_x509_certificate(der).public_bytes(Encoding.PEM)


class TrustedCertEntry(NamedTuple):
    pem: bytes

    @classmethod
    def new(cls, _alias: str, der: bytes) -> TrustedCertEntry:
        return cls(_certificate(der))


class PrivateKeyEntry(NamedTuple):
    pem: bytes

    @classmethod
    def new(cls, _alias: str, chain: list[bytes], der: bytes, _form: str) -> PrivateKeyEntry:
        key = load_der_private_key(der, password=None)
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return cls(text + b"".join(_certificate(certificate) for certificate in chain))


class KeyStore(NamedTuple):
    pem: bytes

    @classmethod
    def new(cls, _form: str, entries: list[TrustedCertEntry | PrivateKeyEntry]) -> KeyStore:
        return cls(b"".join(entry.pem for entry in entries))

    def save(self, path: str, _password: str) -> None:
        Path(path).write_bytes(self.pem)
