"""The session of a process that has none yet."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os
from hightide.spark.session import session

own = session("x", "local[1]", {"spark.hadoop.a.secret.key": "hush", "spark.hadoop.b": "shown"})
java = own.sparkContext._gateway.proc.pid
arguments = open(f"/proc/{java}/cmdline").read()
assert "spark.hadoop.b=shown" in arguments, arguments
assert "hush" not in arguments, arguments
found = own.sparkContext._jsc.hadoopConfiguration().get("a.secret.key")
assert (found, own.sparkContext.appName, own.sparkContext.master) == ("hush", "x", "local[1]")
own.stop()
"""


@pytest.mark.extended
def test_secret_settings_are_not_arguments_of_java() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
