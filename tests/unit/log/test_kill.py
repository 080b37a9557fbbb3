"""A killed process loses no acknowledged record: the kernel has all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from hightide.log.disk import RealDisk
from tests.support import processes
from tests.unit.log.log_helpers import append, batch, open_log_manager, stored, topic

WRITER = """
import sys
from uuid import UUID
from pathlib import Path
from tests.unit.log.log_helpers import append, batch, open_log_manager, topic
from hightide.log.disk import RealDisk
log_manager = open_log_manager(RealDisk(Path(sys.argv[1])), topic(segment_bytes=20000))
log = log_manager.logs.get(("t", 0)) or log_manager.create("t", 0, UUID(int=1))
while True:
    end = append(log, batch([b"%d" % log.end_offset * 20]))[1]
    sys.stdout.write(f"{end}\\n")
    sys.stdout.flush()
"""


def test_acknowledged_records_survive_sigkill(tmp_path: Path) -> None:
    acknowledged = 0
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            env=processes.checkout_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        for _ in range(300):
            acknowledged = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        # Output that was written before the kill counts too.
        for line in writer.stdout:
            if line.endswith("\n"):
                acknowledged = int(line)
        writer.stdout.close()
        writer.wait()
        log_manager = open_log_manager(RealDisk(tmp_path), topic(segment_bytes=20000))
        log = log_manager.logs["t", 0]
        assert log.failure is None
        assert log.end_offset >= acknowledged
        assert [r.value for r in stored(log)] == [b"%d" % i * 20 for i in range(log.end_offset)]
        append(log, batch([b"%d" % log.end_offset * 20]))
        acknowledged = log.end_offset
        log_manager.disks[0].unlock()
    assert acknowledged > 900
