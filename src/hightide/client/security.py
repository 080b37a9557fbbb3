"""TLS and SASL of a client, from options with Kafka's names.

The names are those of the Java client, and librdkafka's where they differ.  Certificates and keys
are PEM, in files or inline.  Java's key stores cannot be read, and the error says how to convert
them.  An unknown security option is an error: to ignore it would mean less security than the user
asked for.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
FAMILIES = ("security.", "sasl.", "ssl.")

CONVERT = (
    "Only PEM can be read. Convert it: "
    "`keytool -importkeystore -srckeystore STORE -destkeystore store.p12 -deststoretype PKCS12`, "
    "then `openssl pkcs12 -in store.p12 -nodes -out store.pem`, and name store.pem."
)

KNOWN = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.jaas.config",
        "sasl.username",
        "sasl.password",
        "sasl.oauthbearer.token",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.password",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "ssl.protocol",
        "ssl.enabled.protocols",
    }
)
_JAAS_OPTION = re.compile(r"""([\w.]+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"']+)""")
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class Sasl:
    """The credentials of a client."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Security:
    """TLS and SASL of every connection; None for without."""

    tls: ssl.SSLContext | None = None
    sasl: Sasl | None = None


PLAINTEXT = Security()


def security_of(options: Mapping[str, str]) -> Security:
    """Read the security options; other options are ignored."""
    unknown = sorted(name for name in options if name.startswith(FAMILIES) and name not in KNOWN)
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)}: unknown, and not ignored because it concerns security. "
            f"Known options: {', '.join(sorted(KNOWN))}."
        )
    protocol = options.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise ValueError(f"security.protocol {protocol!r} is not one of {', '.join(PROTOCOLS)}.")
    return Security(
        tls=_tls(options) if protocol.endswith("SSL") else None,
        sasl=_sasl(options) if protocol.startswith("SASL") else None,
    )


# -- SASL ------------------------------------------------------------------------------------


def _sasl(options: Mapping[str, str]) -> Sasl:
    mechanism = options.get("sasl.mechanism") or options.get("sasl.mechanisms") or ""
    if mechanism not in MECHANISMS:
        raise ValueError(f"sasl.mechanism {mechanism!r} is not one of {', '.join(MECHANISMS)}.")
    if mechanism == "OAUTHBEARER":
        token = options.get("sasl.oauthbearer.token", "")
        if not token:
            raise ValueError("OAUTHBEARER needs a token: set sasl.oauthbearer.token.")
        return Sasl(mechanism, token=token)
    jaas = jaas_options(options.get("sasl.jaas.config", ""))
    username = options.get("sasl.username", jaas.get("username"))
    password = options.get("sasl.password", jaas.get("password"))
    if username is None or password is None:
        raise ValueError(
            f"{mechanism} needs credentials: set sasl.username and sasl.password, or "
            'sasl.jaas.config with username="…" and password="…".'
        )
    return Sasl(mechanism, username, password)


def jaas_options(text: str) -> dict[str, str]:
    """Parse a JAAS line: `some.LoginModule required name="value" …;`."""
    found = {}
    for name, value in _JAAS_OPTION.findall(text):
        if value[0] in "\"'":
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        found[name] = value
    return found


# -- TLS -------------------------------------------------------------------------------------


def _tls(options: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    if options.get("ssl.endpoint.identification.algorithm", "https").strip().lower() in (
        "",
        "none",
    ):
        context.check_hostname = False
    _set_versions(context, options)
    trusted = _pem(
        options,
        inline=("ssl.truststore.certificates", "ssl.ca.pem"),
        files=("ssl.truststore.location", "ssl.ca.location"),
        kind="ssl.truststore.type",
    )
    if trusted:
        # The named authorities replace those of the system.
        context = _trusting(context, trusted)
    chain = _pem(
        options,
        inline=("ssl.keystore.certificate.chain", "ssl.certificate.pem"),
        files=("ssl.keystore.location", "ssl.certificate.location"),
        kind="ssl.keystore.type",
    )
    key = _pem(options, inline=("ssl.keystore.key", "ssl.key.pem"), files=("ssl.key.location",))
    if chain:
        password = options.get("ssl.key.password") or options.get("ssl.keystore.password")
        _load_key(context, chain + "\n" + key, password)
    elif key:
        raise ValueError(
            "There is a key but no certificate: set ssl.keystore.certificate.chain too."
        )
    return context


def _trusting(base: ssl.SSLContext, trusted: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = base.check_hostname
    context.minimum_version, context.maximum_version = base.minimum_version, base.maximum_version
    try:
        context.load_verify_locations(cadata=trusted)
    except ssl.SSLError as error:
        raise ValueError(
            f"The trusted certificates cannot be read: {error.reason or error}."
        ) from error
    return context


def _set_versions(context: ssl.SSLContext, options: Mapping[str, str]) -> None:
    text = options.get("ssl.enabled.protocols") or options.get("ssl.protocol") or ""
    named = [name.strip() for name in text.split(",") if name.strip() not in ("", "TLS")]
    wrong = [name for name in named if name not in _VERSIONS]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} is not one of {', '.join(_VERSIONS)}.")
    if named:
        versions = [_VERSIONS[name] for name in named]
        context.minimum_version, context.maximum_version = min(versions), max(versions)


def _pem(
    options: Mapping[str, str],
    *,
    inline: tuple[str, ...],
    files: tuple[str, ...],
    kind: str = "",
) -> str:
    """The PEM text of the first of these options that is set; empty if none is."""
    stated = options.get(kind, "PEM").upper()
    for name in inline:
        if text := options.get(name):
            # Properties files hold a certificate in one line, with line ends written as \\n.
            return text.replace("\\n", "\n")
    for name in files:
        if not (path := options.get(name)):
            continue
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise ValueError(f"{name} {path!r} cannot be read: {error.strerror}.") from error
        if stated not in ("PEM", "JKS") or b"-----BEGIN" not in data:
            raise ValueError(f"{name} {path!r} is a store of type {_type(stated, data)}. {CONVERT}")
        return data.decode("utf-8", "replace")
    return ""


def _type(stated: str, data: bytes) -> str:
    """The type of a key store: JKS begins with a magic number, and is Java's default."""
    if data.startswith(bytes.fromhex("feedfeed")):
        return "JKS"
    return stated if stated != "PEM" else "JKS or PKCS12"


def _load_key(context: ssl.SSLContext, pem: str, password: str | None) -> None:
    """Load a key through a temporary file that only this user can read: OpenSSL needs a file."""
    import tempfile  # imported here, because brokers load this module and do not need it

    handle, path = tempfile.mkstemp(prefix="hightide-", suffix=".pem")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(pem)
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(path, password=password or "")
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(
            f"The client's certificate and key cannot be read: {error}. The file of "
            "ssl.keystore.location must hold both, and an encrypted key needs ssl.key.password."
        ) from error
    finally:
        os.unlink(path)
