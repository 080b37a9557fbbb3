"""Where the positions in files are stored: in a file beside the collector, or in a compacted topic.

The file is written to a temporary file that replaces it, so it is always whole. It is locked: two
collectors that share it would both be wrong.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hightide import private_files
from hightide.client.librdkafka import consumer, library
from hightide.ingest.file_identity import FilePosition, Identity
from hightide.ingest.sender import IngestError

POSITIONS_TOPIC = "hightide-ingest-positions"
DEADLINE_S = 120
Positions = dict[Identity, FilePosition]


def to_json(place: FilePosition) -> bytes:
    made = {
        "path": place.path,
        "position": place.position,
        "fingerprint": place.fingerprint,
    }
    return json.dumps(made).encode()


def from_json(data: bytes | str) -> FilePosition:
    found = json.loads(data)
    return FilePosition(found["path"], int(found["position"]), found["fingerprint"])


class StateFile:
    """Positions in a JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(private_files.DIRECTORY_MODE, parents=True, exist_ok=True)
        self._lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise IngestError(
                f"Another `hightide ingest` stores its positions in {path}; set --name or --state."
            ) from None

    def load(self) -> Positions:
        try:
            found: dict[str, Any] = json.loads(self.path.read_text("utf-8"))
            return {Identity.parse(key): from_json(json.dumps(it)) for key, it in found.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise IngestError(
                f"{self.path} is invalid ({error}); delete it to read all files from the beginning."
            ) from None

    def save(self, places: Mapping[Identity, FilePosition]) -> None:
        text = json.dumps({str(key): json.loads(to_json(it)) for key, it in places.items()})
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.touch(private_files.FILE_MODE)
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)

    def close(self) -> None:
        os.close(self._lock)


def load_from_topic(
    bootstrap: str, topic: str, name: str, settings: Mapping[str, Any]
) -> Positions:
    """Return the positions that committed transactions have stored under a name.

    Transactions of other collectors may be open at the end of the topic, with ours behind them. So
    this reads up to the end that `read_uncommitted` sees.
    """
    kafka = library()
    wanted = {
        **settings,
        "group.id": f"hightide-ingest-{name}",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
    }
    watching = consumer(bootstrap, {**wanted, "isolation.level": "read_uncommitted"})
    reading = consumer(bootstrap, {**wanted, "isolation.level": "read_committed"})
    try:
        start, end = watching.get_watermark_offsets(
            kafka.TopicPartition(topic, 0), timeout=DEADLINE_S
        )
        if start == end:
            return {}
        reading.assign([kafka.TopicPartition(topic, 0, start)])
        return _positions(_messages(reading, end), f"{name}/")
    except kafka.KafkaException as error:
        raise IngestError(
            f"The positions in {topic} cannot be read: {error.args[0].str()}."
        ) from None
    finally:
        watching.close()
        reading.close()


def _messages(reading: Any, end: int) -> Iterable[Any]:
    kafka = library()
    while True:
        message = reading.poll(DEADLINE_S)
        if message is None:
            raise IngestError("The positions could not be read in time; a transaction may be open.")
        error = message.error()
        if error is None:
            yield message
        elif error.code() != kafka.KafkaError._PARTITION_EOF:
            raise kafka.KafkaException(error)
        if message.offset() >= end - (error is None):
            return


def _positions(messages: Iterable[Any], prefix: str) -> Positions:
    found: Positions = {}
    for message in messages:
        key = (message.key() or b"").decode()
        if not key.startswith(prefix):
            continue
        identity = Identity.parse(key.removeprefix(prefix))
        if message.value() is None:
            found.pop(identity, None)
        else:
            found[identity] = from_json(message.value())
    return found
