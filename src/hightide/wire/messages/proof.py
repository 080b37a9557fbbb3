"""The proof of a connection between brokers, which Kafka does not have; only brokers send it.

    broker ── ProveBroker, nonce ─────────▶ broker
           ◀── nonce, broker id ───────────
           ── ProveBroker, nonce, proof ──▶          served as a broker from here on
           ◀── proof ──────────────────────

`broker/membership/broker_proof.py` says what is proved, and how.
"""

from __future__ import annotations

from hightide.wire.types import i16, i32, i64, message


@message(key=30007, versions=(0, 0), flexible=0)
class ProveBrokerRequest:
    """Ask for a nonce (without a proof), or prove to be the broker that is named."""

    broker_id: i32
    broker_epoch: i64
    nonce: bytes
    proof: bytes = b""


@message(key=30007, versions=(0, 0), flexible=0)
class ProveBrokerResponse:
    """The receiver's nonce, or its own proof.

    CLUSTER_AUTHORIZATION_FAILED: the proof is wrong, or the listener is not for brokers.
    """

    error_code: i16 = 0
    broker_id: i32 = -1
    nonce: bytes = b""
    proof: bytes = b""
