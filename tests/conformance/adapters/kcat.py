"""kcat, as users run it: one command per call."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.adapters import DEADLINE_S, Read, Refused

NAME = "kcat"
CAN = {"produce", "read", "times", "bounds", "describe", "idempotence", "isolation", "reset"}
PLACES = {"earliest": "beginning", "latest": "end"}
# Lengths first, so that keys and values may hold any bytes.
FORMAT = r"%p %o %T %K %S %h\n%k%s\n"
ERRORS = {
    "Unknown topic or partition": "UNKNOWN_TOPIC_OR_PARTITION",
    "Unknown topic": "UNKNOWN_TOPIC_OR_PARTITION",
    "Message size too large": "MESSAGE_TOO_LARGE",
    "Broker: Message size too large": "MESSAGE_TOO_LARGE",
    "Offset out of range": "OFFSET_OUT_OF_RANGE",
    "out of range": "OFFSET_OUT_OF_RANGE",
}


def is_installed():
    return shutil.which("kcat") is not None


def codecs():
    return {"none", "gzip", "snappy", "lz4", "zstd"}


def kcat(bootstrap, *arguments, stdin=b""):
    done = subprocess.run(
        ["kcat", "-b", bootstrap, "-m", "10", *arguments],
        input=stdin,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    said = done.stderr.decode(errors="replace")
    failed = done.returncode or "Delivery failed" in said
    if failed:
        for text, name in ERRORS.items():
            if text in said:
                raise Refused(name, said)
        raise Refused("kcat", said)
    return done.stdout


def produce(
    bootstrap, topic, records, *, partition=0, acks="all", codec="none", idempotent=False, **given
):
    """Write consecutive records that share headers and key with one command."""
    options = [
        *("-X", f"acks={acks}"),
        *("-X", f"enable.idempotence={str(idempotent).lower()}"),
        *("-X", f"message.max.bytes={given.get('max_bytes', 1_000_000)}"),
        *("-X", f"message.timeout.ms={int(given.get('timeout_ms', DEADLINE_S * 1000))}"),
        *("-X", "topic.metadata.propagation.max.ms=1000"),
        *("-X", "linger.ms=20"),
    ]
    if codec != "none":
        options += ["-z", codec]
    with tempfile.TemporaryDirectory() as folder:
        for at, (key, headers, group) in enumerate(grouped(records)):
            more = [] if key is None else ["-k", key.decode()]
            for name, value in headers:
                more += ["-H", f"{name}={value.decode()}"]
            if group == [None]:
                # kcat skips empty lines, but not a key without a value.
                null = ["-P", "-t", topic, "-p", str(partition), "-Z", "-K", ":", *options, *more]
                kcat(bootstrap, *null, stdin=key + b":\n")
                continue
            files = []
            for number, value in enumerate(group):
                files.append(Path(folder, f"{at}-{number}"))
                files[-1].write_bytes(value)
            kcat(
                bootstrap,
                *("-P", "-t", topic, "-p", str(partition), *options, *more, *map(str, files)),
            )
    return [None] * len(records)


def grouped(records):
    groups = []
    for record in records:
        last = groups[-1] if groups else None
        if (
            last
            and record.value is not None
            and None not in last[2]
            and (last[0], last[1]) == (record.key, record.headers)
        ):
            last[2].append(record.value)
        else:
            groups.append((record.key, record.headers, [record.value]))
    return groups


def parse(output):
    found, at = [], 0
    while at < len(output):
        end = output.index(b"\n", at)
        partition, offset, timestamp, key_size, value_size, headers = (
            output[at:end].decode().split(" ", 5)
        )
        at = end + 1
        sizes = [int(key_size), int(value_size)]
        parts = []
        for size in sizes:
            parts.append(None if size < 0 else output[at : at + size])
            at += max(size, 0)
        assert output[at : at + 1] == b"\n"
        at += 1
        pairs = (pair.partition("=") for pair in headers.split(",") if pair)
        found.append(
            Read(
                partition=int(partition),
                offset=int(offset),
                timestamp=int(timestamp),
                key=parts[0],
                value=parts[1],
                headers=tuple((name, value.encode()) for name, _, value in pairs),
            )
        )
    return found


def consume_arguments(topic, count, partition, start):
    place = PLACES.get(start, str(start))
    arguments = ["-C", "-q", "-t", topic, "-p", str(partition), "-o", place, "-f", FORMAT]
    return [*arguments, "-c", str(count), "-X", "check.crcs=true"]


def read(bootstrap, topic, count, *, partition=0, start="earliest", reset="error", **given):
    arguments = consume_arguments(topic, count, partition, start)
    arguments += ["-X", f"topic.auto.offset.reset={reset}"]
    if "max_bytes" in given:
        arguments += ["-X", f"fetch.message.max.bytes={given['max_bytes']}"]
    if "isolation" in given:
        arguments += ["-X", f"isolation.level={given['isolation']}"]
    return parse(kcat(bootstrap, *arguments))


@contextmanager
def waiting(bootstrap, topic, offset, *, partition=0, isolation="read_committed"):
    arguments = consume_arguments(topic, 1, partition, offset)
    arguments += ["-X", "fetch.wait.max.ms=60000", "-X", f"isolation.level={isolation}"]
    child = subprocess.Popen(["kcat", "-b", bootstrap, *arguments], stdout=subprocess.PIPE)
    try:
        yield lambda: parse(child.communicate(timeout=DEADLINE_S)[0])[0]
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def query(bootstrap, topic, partition, timestamp, isolation="read_committed"):
    level = ("-X", f"isolation.level={isolation}")
    said = kcat(bootstrap, "-Q", "-t", f"{topic}:{partition}:{timestamp}", *level).decode()
    found = re.search(r"offset (-?\d+)", said)
    assert found is not None, said
    return int(found[1])


def bounds(bootstrap, topic, partition=0, isolation="read_committed"):
    return tuple(query(bootstrap, topic, partition, end, isolation) for end in (-2, -1))


def offset_at(bootstrap, topic, timestamp, partition=0):
    found = query(bootstrap, topic, partition, timestamp)
    return None if found < 0 else found


def metadata(bootstrap, *arguments):
    return json.loads(kcat(bootstrap, "-L", "-J", *arguments))


def topics(bootstrap):
    return {topic["topic"] for topic in metadata(bootstrap)["topics"]}


def describe_topic(bootstrap, topic):
    (found,) = metadata(bootstrap, "-t", topic)["topics"]
    if "error" in found:
        raise Refused("UNKNOWN_TOPIC_OR_PARTITION", found["error"])
    return {
        partition["partition"]: (
            partition["leader"],
            [replica["id"] for replica in partition["replicas"]],
            [replica["id"] for replica in partition["isrs"]],
        )
        for partition in found["partitions"]
    }


def cluster(bootstrap):
    found = metadata(bootstrap)
    return None, sorted(broker["id"] for broker in found["brokers"]), found["controllerid"]
