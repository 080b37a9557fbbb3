"""TLS certificates for tests, issued by trustme."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


class IssuedCertificate(NamedTuple):
    """PEM files: the certificate chain, the private key, and both in one file."""

    certificate: Path
    key: Path
    both: Path


class CertificateAuthority:
    """A certificate authority; `certificate` is the PEM file that its users trust."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._ca = trustme.CA()
        self.certificate = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.certificate)

    def issue(self, name: str, *identities: str) -> IssuedCertificate:
        """Issue a certificate for host names or addresses, by default for this host."""
        leaf = self._ca.issue_cert(*(identities or ("localhost", "127.0.0.1")))
        chain = b"".join(certificate.bytes() for certificate in leaf.cert_chain_pems)
        key = _pkcs8(leaf.private_key_pem.bytes())
        files = IssuedCertificate(
            *(self._folder / f"{name}{suffix}" for suffix in (".crt", ".key", "-both.pem"))
        )
        files.certificate.write_bytes(chain)
        files.key.write_bytes(key)
        files.both.write_bytes(key + chain)
        return files


def _pkcs8(key: bytes) -> bytes:
    """Convert a key to PKCS#8, the only form that Apache Kafka reads."""
    loaded = load_pem_private_key(key, password=None)
    return loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
