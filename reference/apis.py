"""docs/reference/apis.md: the API keys and versions that the broker serves."""

from __future__ import annotations

from hightide.broker.network.dispatch import FIRST_PRIVATE, advertised, served_versions
from hightide.wire.messages import APIS
from reference.pages import head, table

_ABSENT = (
    "APIs of Kafka that are not in these tables are not served, and ApiVersions does not list them:"
    " a client that"
    "\nasks first, as all clients do, does not send them. A request of an unknown API or version"
    " closes the connection, as in Kafka."
)


def page() -> str:
    served = served_versions()
    listed = advertised(served)
    between = {key for key in served if key < FIRST_PRIVATE and key not in listed}
    own = {key for key in served if key >= FIRST_PRIVATE}
    undecided = sorted(set(APIS) - set(served))
    lines = head("APIs and versions", "the table of the dispatcher")
    lines += [
        "What ApiVersions tells clients. Versions are inclusive.",
        "",
        *table(
            ("key", "API", "versions"),
            ((str(key), APIS[key][0], _versions(*listed[key])) for key in sorted(listed)),
        ),
        "",
        "- Produce is listed from version 0 because old clients of librdkafka look for it; versions"
        " 0 to 2 are refused.",
        "- GetTelemetrySubscriptions and PushTelemetry are listed by brokers with"
        " `metrics.listeners`.",
        "- AddPartitionsToTxn, EndTxn and TxnOffsetCommit end before the versions of the second"
        " protocol of transactions",
        "  (KIP-890), which is not offered.",
        "",
        "## Between brokers",
        "",
        "Kafka's requests that only brokers send. They are not listed, and refused from everyone"
        " else ([how](../internals/broker-proof.md)).",
        "",
        *table(
            ("key", "API", "versions"),
            ((str(key), APIS[key][0], _versions(*served[key])) for key in sorted(between)),
        ),
        "",
        "## Hightide's own",
        "",
        "Requests that Kafka does not have. They are not listed, so that clients of Kafka do not"
        " meet keys that they do not",
        "know; `hightide` commands try them and do without them on other brokers.",
        "",
        *table(
            ("key", "API", "versions"),
            ((str(key), APIS[key][0], _versions(*served[key])) for key in sorted(own)),
        ),
        "",
        "## Not served",
        "",
        _ABSENT,
    ]
    if undecided:
        names = ", ".join(f"{APIS[key][0]} ({key})" for key in undecided)
        lines += ["", f"Their messages are declared, and no broker serves them yet: {names}."]
    return "\n".join(lines) + "\n"


def _versions(lowest: int, highest: int) -> str:
    return str(lowest) if lowest == highest else f"{lowest} to {highest}"
