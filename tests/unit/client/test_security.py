"""Security options, and SCRAM with the examples of its standards."""

from __future__ import annotations

import ssl

import pytest

from hightide.client.sasl import exchange
from hightide.client.security import PLAINTEXT, Sasl, jaas_options, security_of
from hightide.wire.errors import KafkaError
from tests.support.certificates import CertificateAuthority

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required\n"
    '  username="alice" password="a \\"b\\\\c\\"; d=\'e\'" serviceName=kafka;'
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return CertificateAuthority(tmp_path_factory.mktemp("pem"))


@pytest.fixture(scope="module")
def issued(authority):
    return authority.issue("client")


def test_without_options_a_connection_is_plain():
    assert security_of({"bootstrap.servers": "a:1", "fetch.max.bytes": "7"}) == PLAINTEXT


def test_a_user_is_read_from_a_line_of_jaas_as_java_users_write_it():
    assert jaas_options(JAAS) == {
        "username": "alice",
        "password": "a \"b\\c\"; d='e'",
        "serviceName": "kafka",
    }
    made = security_of(
        {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS}
    )
    assert made.sasl == Sasl("PLAIN", "alice", "a \"b\\c\"; d='e'")
    assert "b" not in repr(made.sasl).replace("alice", "").removeprefix("Sasl")


def test_a_user_may_also_be_given_as_librdkafka_takes_it():
    made = security_of(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "u",
            "sasl.password": "p",
        }
    )
    assert made.sasl == Sasl("SCRAM-SHA-512", "u", "p")
    assert made.tls is not None
    assert made.tls.check_hostname


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"security.protocol": "TLS"}, "is not one of PLAINTEXT, SSL"),
        ({"ssl.cipher.suites": "X"}, "ssl.cipher.suites: unknown"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "'GSSAPI' is not one of"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.username"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "needs a token"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/no/such"}, "cannot be read"),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "SSLv3"}, "SSLv3 is not one of"),
        ({"security.protocol": "SSL", "ssl.truststore.certificates": "junk"}, "cannot be read"),
        ({"security.protocol": "SSL", "ssl.keystore.key": "junk"}, "no certificate"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(options, words):
    with pytest.raises(ValueError, match=words):
        security_of(options)


@pytest.mark.parametrize(("data", "kind"), [(b"\xfe\xed\xfe\xed\0", "JKS"), (b"0\x82", "PKCS12")])
def test_stores_of_java_are_refused_with_the_way_to_convert_them(tmp_path, data, kind):
    store = tmp_path / "store"
    store.write_bytes(data)
    options = {"security.protocol": "SSL", "ssl.truststore.location": str(store)}
    with pytest.raises(ValueError, match=rf"{kind}.*openssl pkcs12"):
        security_of(options)


@pytest.mark.parametrize(
    "how",
    ["store", "inline", "one line", "librdkafka"],
)
def test_certificates_and_keys_come_in_files_or_inline(authority, issued, how):
    trusted = authority.certificate.read_text()
    certificate, key = issued.certificate.read_text(), issued.key.read_text()
    options = {
        "store": {
            "ssl.truststore.location": str(authority.certificate),
            "ssl.truststore.type": "PEM",
            "ssl.keystore.location": str(issued.both),
        },
        "inline": {
            "ssl.truststore.certificates": trusted,
            "ssl.keystore.certificate.chain": certificate,
            "ssl.keystore.key": key,
        },
        "one line": {
            "ssl.truststore.certificates": trusted.replace("\n", "\\n"),
            "ssl.keystore.certificate.chain": certificate.replace("\n", "\\n"),
            "ssl.keystore.key": key.replace("\n", "\\n"),
        },
        "librdkafka": {
            "ssl.ca.location": str(authority.certificate),
            "ssl.certificate.location": str(issued.certificate),
            "ssl.key.location": str(issued.key),
        },
    }[how]
    made = security_of({"security.protocol": "SSL", "ssl.protocol": "TLSv1.3", **options}).tls
    assert made is not None
    expected = ssl.create_default_context(cafile=authority.certificate).get_ca_certs()
    assert len(expected) == 1
    assert made.get_ca_certs() == expected
    assert made.minimum_version == ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize("algorithm", ["", "none"])
def test_the_name_of_a_broker_is_checked_unless_that_is_turned_off(algorithm):
    option = {"ssl.endpoint.identification.algorithm": algorithm}
    made = security_of({"security.protocol": "SSL", **option}).tls
    assert made is not None
    assert not made.check_hostname
    assert made.verify_mode is ssl.CERT_REQUIRED


def test_scram_agrees_with_the_example_of_its_standard():
    """RFC 7677, section 3."""
    steps = exchange(Sasl("SCRAM-SHA-256", "user", "pencil"), nonce="rOprNGfwEbeRWgbNEkqO")
    assert next(steps) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    asked = (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert steps.send(asked) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        steps.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"r=another,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not begin with the client's nonce"),
        (b"r=mine-and-yours,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1", "1 iterations"),
        (b"r=mine-and-yours,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=2000000000", "iterations"),
        (b"e=unknown-user", "unknown-user"),
        (b"junk", "not a SCRAM message"),
        (b"r=mine-and-yours,s=!,i=x", "not a SCRAM message"),
    ],
)
def test_a_broker_that_does_not_keep_to_scram_is_refused(answer, words):
    steps = exchange(Sasl("SCRAM-SHA-256", "user", "pencil"), nonce="mine")
    next(steps)
    with pytest.raises(KafkaError, match=words):
        steps.send(answer)


def test_a_broker_that_does_not_know_the_password_is_refused():
    steps = exchange(Sasl("SCRAM-SHA-512", "user", "pencil"), nonce="mine")
    next(steps)
    steps.send(b"r=mine-and-yours,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    with pytest.raises(KafkaError, match="did not prove that it knows the password"):
        steps.send(b"v=AAAA")


def test_a_token_is_sent_as_it_is_and_a_refusal_told():
    steps = exchange(Sasl("OAUTHBEARER", token="t0"))
    assert next(steps) == b"n,,\x01auth=Bearer t0\x01\x01"
    assert steps.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(KafkaError, match="invalid_token"):
        steps.send(b"")
