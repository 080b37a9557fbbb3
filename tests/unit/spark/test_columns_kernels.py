"""The kernels give the same results compiled and uncompiled, and need neither numba nor a cache."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hightide
from hightide.spark.columns import arrow_buffers, kernels, partitioner, record_schema
from hightide.spark.columns import encode as encoding
from hightide.spark.columns.decode import Decoder
from hightide.spark.columns.encode import encode
from hightide.wire.errors import Corrupt

pytestmark = pytest.mark.skipif(not kernels.is_compiled, reason="numba is not installed")


@pytest.fixture(scope="module")
def uncompiled() -> ModuleType:
    """The kernels as imported without numba."""
    path = kernels.__file__
    module = ModuleType("uncompiled")
    kept = sys.modules.get("numba")
    sys.modules["numba"] = None  # type: ignore[assignment]
    try:
        exec(compile(Path(path).read_text("utf-8"), path, "exec"), module.__dict__)
    finally:
        if kept is None:
            del sys.modules["numba"]
        else:
            sys.modules["numba"] = kept
    assert not module.is_compiled
    # Used only for the comparison.
    module.is_compiled = True  # type: ignore[attr-defined]
    return module


maybe_bytes = st.none() | st.binary(max_size=30)
some_rows = st.lists(
    st.fixed_dictionaries(
        {
            "key": maybe_bytes,
            "value": maybe_bytes,
            "timestamp": st.none() | st.integers(-1, 2**50),
            "headers": st.none()
            | st.lists(
                st.fixed_dictionaries({"key": st.text(max_size=3), "value": maybe_bytes}),
                min_size=1,
                max_size=2,
            ),
        }
    ),
    min_size=1,
    max_size=5,
)
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.int64()),
        ("headers", record_schema.HEADERS_TYPE),
    ]
)


def decoded(data: bytes) -> list[pa.RecordBatch] | None:
    decoder = Decoder("t", 0, headers=True)
    try:
        return [*decoder.feed(memoryview(data), 0, 2**62, None), *decoder.flush()]
    except Corrupt:
        return None


@given(made=some_rows, at=st.integers(0, 200), byte=st.integers(0, 255))
@settings(deadline=None, max_examples=60)
def test_compiled_and_uncompiled_are_equal(
    uncompiled: ModuleType, made: list[dict[str, object]], at: int, byte: int
) -> None:
    rows = pa.RecordBatch.from_pylist(made, SCHEMA)
    batches = list(encode(rows, now_ms=7, max_bytes=150))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "kernels", uncompiled)
        assert list(encode(rows, now_ms=7, max_bytes=150)) == batches
    whole = bytearray(b"".join(batch for batch, _ in batches))
    whole[at % len(whole)] = byte
    found = decoded(bytes(whole))
    chosen = partitioner.partitions_of(rows.column("key"), 12).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_buffers, "kernels", uncompiled)
        assert decoded(bytes(whole)) == found
        patch.setattr(partitioner, "kernels", uncompiled)
        assert partitioner.partitions_of(rows.column("key"), 12).tolist() == chosen


# The smallest kernel, because compiling is slow.
COMPILED = """
import pyarrow as pa
from hightide.spark.columns.partitioner import partitions_of
from hightide.spark.columns.kernels import is_compiled

print(is_compiled, partitions_of(pa.array(["one", "two", None]), 100).tolist())
"""
FOUND = partitioner.partitions_of(pa.array(["one", "two", None]), 100).tolist()

WITHOUT_NUMBA = """
import sys; sys.modules["numba"] = None
import pyarrow as pa
from hightide.spark.columns.decode import Decoder
from hightide.spark.columns.encode import encode
from hightide.spark.columns.kernels import is_compiled

((batch, _),) = encode(pa.record_batch({"value": [b"one", b"two"]}), now_ms=0)
decoder = Decoder("t", 0)
(found,) = [*decoder.feed(memoryview(batch), 0, 9, None), *decoder.flush()]
print(is_compiled, found.column("value").to_pylist())
"""
SOURCE = Path(hightide.__file__).parents[1]


def answer(program: str, source: Path, **environment: str) -> str:
    """Return what the program prints in a separate process."""
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(source), **environment},
    )
    assert not run.returncode, run.stderr
    return run.stdout.strip()


def packed(folder: Path) -> Path:
    """Return the zip that Spark's `addPyFile` would ship."""
    archive = folder / "hightide.zip"
    with zipfile.ZipFile(archive, "w") as out:
        for path in (SOURCE / "hightide").rglob("*.py"):
            out.write(path, path.relative_to(SOURCE))
    return archive


def test_the_package_works_from_a_zip_where_no_cache_can_be_written(tmp_path: Path) -> None:
    # A file in place of the folder: not even root can write there.
    blocked = tmp_path / "file"
    blocked.touch()
    nowhere = {"HOME": str(blocked), "XDG_CACHE_HOME": str(blocked)}
    assert answer(COMPILED, packed(tmp_path), **nowhere) == f"True {FOUND}"


def test_a_damaged_cache_is_passed_over(tmp_path: Path) -> None:
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert answer(COMPILED, SOURCE, **cache) == f"True {FOUND}"
    kept = [*tmp_path.rglob("*.nbi"), *tmp_path.rglob("*.nbc")]
    assert kept
    for path in kept:
        path.write_bytes(b"nothing of use")
    assert answer(COMPILED, SOURCE, **cache) == f"True {FOUND}"


def test_without_numba_the_plain_decoder_stands_in() -> None:
    assert answer(WITHOUT_NUMBA, SOURCE) == "False [b'one', b'two']"


IN_A_WORKER = """
import gc
import pyspark.worker
import pyarrow as pa
from hightide.spark.columns.partitioner import partitions_of

partitions_of(pa.array(["one"]), 100)
print(gc.get_freeze_count() > 100_000)
"""


def test_the_collector_of_a_spark_worker_does_not_look_at_numba() -> None:
    assert answer(IN_A_WORKER, SOURCE) == "True"
