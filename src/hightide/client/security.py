"""What a client must know and do to be let in: TLS and SASL, from options by Kafka's names.

The names are those of the Java client, and where librdkafka has others, those too.  Certificates
and keys are PEM, in files or inline; Java's own stores cannot be read here, and the error says how
to convert them.  An option about security that is not understood is an error: to go on without it
would mean less safety than was asked for.
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
    "Only PEM can be read here. Convert it: "
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
    """How to say who we are."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Security:
    """What every connection is made with."""

    tls: ssl.SSLContext | None = None
    sasl: Sasl | None = None


PLAINTEXT = Security()


def security_of(options: Mapping[str, str]) -> Security:
    """What the options ask for; others than those about security are not looked at."""
    unknown = sorted(each for each in options if each.startswith(FAMILIES) and each not in KNOWN)
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)}: not understood, and not ignored because it is about security. "
            f"What is understood: {', '.join(sorted(KNOWN))}."
        )
    protocol = options.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise ValueError(f"security.protocol {protocol!r} is none of {', '.join(PROTOCOLS)}.")
    return Security(
        tls=_tls(options) if protocol.endswith("SSL") else None,
        sasl=_sasl(options) if protocol.startswith("SASL") else None,
    )


# -- SASL ------------------------------------------------------------------------------------


def _sasl(options: Mapping[str, str]) -> Sasl:
    mechanism = options.get("sasl.mechanism") or options.get("sasl.mechanisms") or ""
    if mechanism not in MECHANISMS:
        raise ValueError(f"sasl.mechanism {mechanism!r} is none of {', '.join(MECHANISMS)}.")
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
            f"{mechanism} needs a user: set sasl.username and sasl.password, or sasl.jaas.config "
            'with username="…" and password="…".'
        )
    return Sasl(mechanism, username, password)


def jaas_options(text: str) -> dict[str, str]:
    """The options in a line as Java takes it: `some.LoginModule required name="value" …;`."""
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
        # Whoever names authorities means these and not the system's as well.
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
            "There is a key and no certificate: set ssl.keystore.certificate.chain too."
        )
    return context


def _trusting(given: ssl.SSLContext, trusted: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = given.check_hostname
    context.minimum_version, context.maximum_version = given.minimum_version, given.maximum_version
    try:
        context.load_verify_locations(cadata=trusted)
    except ssl.SSLError as error:
        raise ValueError(
            f"The trusted certificates cannot be read: {error.reason or error}."
        ) from error
    return context


def _set_versions(context: ssl.SSLContext, options: Mapping[str, str]) -> None:
    text = options.get("ssl.enabled.protocols") or options.get("ssl.protocol") or ""
    named = [each.strip() for each in text.split(",") if each.strip() not in ("", "TLS")]
    wrong = [each for each in named if each not in _VERSIONS]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} is none of {', '.join(_VERSIONS)}.")
    if named:
        versions = [_VERSIONS[each] for each in named]
        context.minimum_version, context.maximum_version = min(versions), max(versions)


def _pem(
    options: Mapping[str, str],
    *,
    inline: tuple[str, ...],
    files: tuple[str, ...],
    kind: str = "",
) -> str:
    """What the first of these options gives as PEM; empty if none is set."""
    stated = options.get(kind, "PEM").upper()
    for name in inline:
        if text := options.get(name):
            # Properties files hold a certificate in one line, with its line ends spelled out.
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
    """What a store is: JKS begins with a number of its own, and is what Java takes for granted."""
    if data.startswith(bytes.fromhex("feedfeed")):
        return "JKS"
    return stated if stated != "PEM" else "JKS or PKCS12"


def _load_key(context: ssl.SSLContext, pem: str, password: str | None) -> None:
    """OpenSSL takes a key from a file only, so there is one, readable by us alone, for a moment."""
    import tempfile  # here, because brokers load this module and have no use for it

    handle, path = tempfile.mkstemp(prefix="hightide-", suffix=".pem")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(pem)
        # A password that is asked for and not given would be asked for at the terminal.
        context.load_cert_chain(path, password=password or "")
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(
            f"The client's certificate and key cannot be read: {error}. The file of "
            "ssl.keystore.location holds both, and ssl.key.password opens an encrypted key."
        ) from error
    finally:
        os.unlink(path)
