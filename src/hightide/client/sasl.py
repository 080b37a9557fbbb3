"""SASL, the client's side: PLAIN, SCRAM (RFC 5802, 7677), and OAUTHBEARER with a given token.

SCRAM proves that both sides know the password without sending it.  The client checks the broker's
proof too, so that another server cannot pose as the broker.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import unicodedata
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from hightide.client.security import Sasl
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

FEWEST_ITERATIONS = 4096
MOST_ITERATIONS = 1_000_000
"""A false broker could ask for more to keep the client busy."""

Steps = Generator[bytes, bytes, None]
"""Yields a message to send and receives the answer; ends when both sides are authenticated."""


async def authenticate(send: Callable[[Any], Awaitable[Any]], sasl: Sasl, address: str) -> None:
    """Authenticate on a connection that was just opened; raise the broker's refusal."""
    answer = await send(SaslHandshakeRequest(mechanism=sasl.mechanism))
    if answer.error_code:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            f"{address} does not offer {sasl.mechanism}. It offers {', '.join(answer.mechanisms)}.",
        )
    steps = exchange(sasl)
    message = next(steps)
    try:
        while True:
            answer = await send(SaslAuthenticateRequest(auth_bytes=message))
            if answer.error_code:
                raise refused(f"{address}: {answer.error_message or 'authentication was refused'}")
            message = steps.send(bytes(answer.auth_bytes))
    except StopIteration:
        return


def exchange(sasl: Sasl, nonce: str | None = None) -> Steps:
    """The messages of the mechanism."""
    if sasl.mechanism == "PLAIN":
        return _plain(sasl)
    if sasl.mechanism == "OAUTHBEARER":
        return _bearer(sasl)
    digest = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[sasl.mechanism]
    return _scram(sasl, digest, nonce or secrets.token_hex(16))


def refused(why: str) -> KafkaError:
    return KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, why)


def _plain(sasl: Sasl) -> Steps:
    yield f"\0{sasl.username}\0{sasl.password}".encode()


def _bearer(sasl: Sasl) -> Steps:
    answer = yield f"n,,\1auth=Bearer {sasl.token}\1\1".encode()
    if answer:
        # The broker sends the reason first, and refuses after the client has acknowledged it.
        yield b"\1"
        reason = json.loads(answer) if answer.startswith(b"{") else {}
        raise refused(f"the token was not accepted: {reason.get('status', 'no reason was given')}.")


def _scram(sasl: Sasl, digest: str, nonce: str) -> Steps:
    username = _prepared(sasl.username).replace("=", "=3D").replace(",", "=2C")
    first = f"n={username},r={nonce}"
    challenge = yield f"n,,{first}".encode()
    agreed, salt, iterations = _challenge(challenge, nonce)
    salted = hashlib.pbkdf2_hmac(digest, _prepared(sasl.password).encode(), salt, iterations)
    without_proof = f"c=biws,r={agreed}"
    everything = f"{first},{challenge.decode()},{without_proof}".encode()
    client_key = hmac.digest(salted, b"Client Key", digest)
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), everything, digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    last = yield f"{without_proof},p={base64.b64encode(proof).decode()}".encode()
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), everything, digest)
    if not hmac.compare_digest(_fields(last).get("v", "").encode(), base64.b64encode(expected)):
        raise refused(
            "the broker did not prove that it knows the password, so it may be another server."
        )


def _challenge(message: bytes, nonce: str) -> tuple[str, bytes, int]:
    """The combined nonce, the salt and the number of iterations."""
    fields = _fields(message)
    try:
        agreed, salt, iterations = fields["r"], base64.b64decode(fields["s"]), int(fields["i"])
    except (KeyError, ValueError) as error:
        raise refused("the broker's answer is not a SCRAM message.") from error
    if not agreed.startswith(nonce) or agreed == nonce:
        raise refused("the broker's answer does not begin with the client's nonce.")
    if not FEWEST_ITERATIONS <= iterations <= MOST_ITERATIONS:
        raise refused(
            f"the broker asks for {iterations} iterations; allowed are {FEWEST_ITERATIONS} to "
            f"{MOST_ITERATIONS}."
        )
    return agreed, salt, iterations


def _fields(message: bytes) -> dict[str, str]:
    try:
        pairs = (part.split("=", 1) for part in message.decode().split(","))
        found = dict(pairs)
    except ValueError as error:
        raise refused("the broker's answer is not a SCRAM message.") from error
    if "e" in found:
        raise refused(f"the broker answered {found['e']}.")
    return found


def _prepared(text: str) -> str:
    """Normalise typed text as SASLprep does: one form for each character."""
    return unicodedata.normalize("NFKC", text)
