"""Which test runs the commands and snippets of which page, and what is not run, and why.

A test of a page runs all its blocks but those in `NOT_RUN`, so a new block is run, or has a reason
here.
"""

from __future__ import annotations

from tests.support.pages import Block, blocks

LANGUAGES = ("sh", "python", "sql", "yaml")

DOCUMENTS = "tests/conformance/test_documents.py"
SPARK = "tests/spark/test_documents.py"

RUN_BY: dict[str, str] = {
    "README.md": DOCUMENTS,
    "docs/tutorial.md": DOCUMENTS,
    "docs/guide/command-line.md": DOCUMENTS,
    "docs/guide/events.md": DOCUMENTS,
    "docs/guide/formats.md": SPARK,
    "docs/guide/generate.md": DOCUMENTS,
    "docs/guide/groups.md": DOCUMENTS,
    "docs/guide/logs.md": DOCUMENTS,
    "docs/guide/metrics.md": DOCUMENTS,
    "docs/guide/migrate.md": DOCUMENTS,
    "docs/guide/pipelines.md": SPARK,
    "docs/guide/replication-in-pictures.md": DOCUMENTS,
    "docs/guide/replication.md": DOCUMENTS,
    "docs/guide/spark.md": SPARK,
    "docs/guide/streams.md": SPARK,
    "docs/guide/testing.md": DOCUMENTS,
    "docs/guide/three-machines.md": "tests/conformance/test_three_machines.py",
    "docs/guide/transactions.md": DOCUMENTS,
    "docs/guide/troubleshooting.md": DOCUMENTS,
    "docs/guide/zookeeper.md": DOCUMENTS,
    "docs/internals/classic.md": DOCUMENTS,
}

PROJECT = "is a target of make, or of those who work on the project"
NOT_YET = "is not run yet; the names of its commands and options are checked"
PART = "is not a program: it shows a part, or a signature"
INSTALLS = "installs what a test must not install"

NOT_RUN: dict[str, dict[str, str]] = {
    "CONTRIBUTING.md": {
        "make setup ": PROJECT,
        ".venv/bin/pip freeze": PROJECT,
    },
    "README.md": {
        "make run ": PROJECT,
        "def test_orders(hightide):": PART,
        "orders = (": "is the first program of the guide to Spark, which runs",
    },
    "docs/reliability.md": {"make chaos ": PROJECT},
    "docs/tutorial.md": {"git clone ": INSTALLS},
    "docs/guide/console.md": {
        "hightide console --bootstrap": "serves until it is ended; tests/console starts both",
    },
    "docs/guide/events.md": {"hightide events -o json --kind leaders_elected": "needs jq"},
    "docs/guide/formats.md": {"@dataclass": PART},
    "docs/guide/ingest.md": {"hightide ingest files": NOT_YET},
    "docs/guide/measuring.md": {
        "hightide perf run --compare": "needs two clusters, and minutes",
        "hightide perf latency orders": "needs a quiet machine; Troubleshooting has a lower rate",
    },
    "docs/guide/pipelines.md": {
        "pip install": INSTALLS,
        "hightide pipeline run shop.py --master": "needs a Spark cluster; tests/spark starts one",
    },
    "docs/guide/replication.md": {
        "for machine in": "needs ssh; tests/conformance/test_three_machines.py runs this loop",
        "hightide partition list --offline": "needs brokers that never return; the pictures run it",
    },
    "docs/guide/spark.md": {
        "pip install": INSTALLS,
    },
    "docs/guide/streams.md": {
        "App(name, ": PART,
        "app.topic(name, ": PART,
        "@app.query(to, ": PART,
        "order, payment = ": PART,
        "hightide topic create orders": NOT_YET,
    },
    "docs/guide/tables.md": {
        "hightide table create clicks": NOT_YET,
        "hightide table create users": NOT_YET,
        "from pyiceberg": NOT_YET,
        "@app.query(": PART,
        "from hightide.spark.tables": NOT_YET,
    },
    "docs/guide/upgrade.md": {"hightide cluster health": INSTALLS},
    "docs/guide/zookeeper.md": {
        "hightide zookeeper start": "stands for longer commands; tests/zookeeper starts both",
        "zkCli.sh ": "needs zkCli.sh; tests/zookeeper/test_zkcli.py runs it",
        "echo 'brokers:": "needs a certificate; tests/zookeeper/test_client_access.py has one",
        "hightide zookeeper backup": "needs an ensemble; tests/zookeeper/test_backup.py has one",
    },
}


def reason(block: Block) -> str:
    """Return why a block is not run; nothing if its page's test runs it."""
    found = [why for start, why in NOT_RUN.get(block.page, {}).items() if starts(block, start)]
    return found[0] if found else ""


def starts(block: Block, text: str) -> bool:
    return block.text.startswith(text)


def to_run(page: str, *languages: str) -> list[Block]:
    """Return the blocks of a page that its test runs."""
    return [block for block in blocks(page, *languages) if not reason(block)]
