"""kazoo's own tests, unmodified, with the embedded server where their harness starts ZooKeeper.

The tests are part of kazoo's wheel. They run in the environment .venv-kazoo, which `make kazoo-env`
installs from kazoo_requirements.txt: their harness needs a pyOpenSSL of 2024. The server runs in
the environment of this test.

The harness runs `java`, and `kazoo_harness/java` comes first in the PATH. The harness waits two
seconds after every start, so several processes share the suite. HIGHTIDE_SUITE=full also runs the
slow tests and their variants for gevent and eventlet. HIGHTIDE_SUITE_JAVA=/usr/bin/java runs the
suite on Apache ZooKeeper.

A single Apache ZooKeeper 3.8.0 fails exactly the tests in NEEDS_AN_ENSEMBLE; the embedded server
may fail these and no others.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.zookeeper import servers

HARNESS = Path(__file__).parent / "kazoo_harness"
PYTHON = Path(__file__).parents[2] / ".venv-kazoo" / "bin" / "python"
IS_FULL = os.environ.get("HIGHTIDE_SUITE") == "full"
PATIENCE_S = 900.0

NEEDS_AN_ENSEMBLE = {
    "test_update_host_list": "removes one of three servers from the list of hosts",
    "test_add_remove_observer": "reconfigures an ensemble; a single server answers Unimplemented",
    "test_bad_input": "the same",
    "test_no_super_auth": "the same",
    "test_read_only": "stops two of three servers",
}

# Modules of kazoo.tests that run in parallel, in groups of about the same duration.
PARTS = [
    ["client"],
    ["lock", "counter", "election", "hosts", "paths", "retry", "security"],
    ["watchers", "lease", "barrier", "exceptions", "threading_handler"],
    ["cache", "queue", "connection"],
    ["partitioner", "party", "interrupt"],
]
MORE_PARTS = [["eventlet_handler", "sasl"], ["gevent_handler", "utils", "selectors_select"]]

# Each waits for ten seconds or so.
SLOW = [
    "test_race_condition_new_partitioner_during_the_lock",
    "test_race_condition_new_partitioner_steals_the_lock",
    "test_child_watcher_remove_session_watcher",
    "test_child_stop_on_session_loss",
    "test_update_host_list",
]


@dataclass
class Part:
    """One pytest process with its own server."""

    child: servers.Child
    report: Path

    @classmethod
    def start(cls, modules: list[str], folder: Path) -> Part:
        folder.mkdir()
        report = folder / "report.xml"
        names = [f"kazoo.tests.test_{module}" for module in modules]
        command = [str(PYTHON), "-m", "pytest", "--pyargs", *names, "-c", os.devnull]
        command += ["-p", "no:cacheprovider", "--timeout", "120"]
        command += ["--quiet", f"--junitxml={report}", f"--rootdir={folder}"]
        if not IS_FULL:
            command += ["-k", " and ".join(f"not {name}" for name in SLOW)]
        # The first python3 in the PATH runs the harness's `java`, and with it the server.
        path = os.pathsep.join([str(HARNESS), str(Path(sys.executable).parent), os.environ["PATH"]])
        settings = {
            "PATH": path,
            "PYTHONPATH": str(HARNESS),
            "ZOOKEEPER_CLASSPATH": servers.classpath(),
            "ZOOKEEPER_CLUSTER_SIZE": "1",
            "ZOOKEEPER_PORT_OFFSET": str(free_ports(10)),
            "ZOOKEEPER_VERSION": "3.8.0",
        }
        # In its own folder, so that pytest does not load the conftest of our tests.
        words = [f"--chdir={folder}", *(f"{name}={value}" for name, value in settings.items())]
        to_log = ["sh", "-c", 'exec "$@" >&2', "suite"]
        child = servers.Child([*to_log, "env", *words, *command], folder / "output")
        child.start()
        return cls(child, report)

    def await_end(self, deadline: float) -> None:
        while not self.child.is_dead():
            assert time.monotonic() < deadline, f"still running: {self.child.log}"
            time.sleep(0.1)
        self.child.end("KILL")

    def results(self) -> dict[str, str]:
        """Return the outcome of every test."""
        assert self.report.exists(), self.child.log.read_text()[-5000:]
        found = {}
        for case in ElementTree.parse(self.report).iter("testcase"):
            outcome = next((child.tag for child in case if child.tag != "system-out"), "passed")
            found[f"{case.get('classname')}.{case.get('name')}"] = outcome
        return found


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    for _ in range(100):
        first = servers.free_port()
        if all(servers.is_free(port) for port in range(first, first + count)):
            return first
    raise AssertionError("no free ports in a row")


@pytest.mark.extended
@pytest.mark.timeout(PATIENCE_S + 60)
@pytest.mark.skipif(
    not PYTHON.exists(), reason="kazoo's tests are not installed: run `make kazoo-env`"
)
def test_kazoos_own_tests_pass(tmp_path, capsys):
    began = time.monotonic()
    dealt = PARTS + (MORE_PARTS if IS_FULL else [])
    parts = [Part.start(part, tmp_path / str(n)) for n, part in enumerate(dealt)]
    try:
        for part in parts:
            part.await_end(began + PATIENCE_S)
    finally:
        for part in parts:
            part.child.end("KILL")
    results = {name: outcome for part in parts for name, outcome in part.results().items()}
    counts = Counter(results.values())
    failed = {name for name, outcome in results.items() if outcome in ("failure", "error")}
    excused = {name for name in failed if name.rpartition(".")[2] in NEEDS_AN_ENSEMBLE}
    with capsys.disabled():
        print(
            f"\nkazoo's suite: {counts['passed']} passed, {counts['skipped']} skipped, "
            f"{len(excused)} need an ensemble, {len(failed - excused)} failed, "
            f"{time.monotonic() - began:.0f} s"
        )
    assert counts["passed"] > (450 if IS_FULL else 200)
    logs = "\n".join(str(part.child.log) for part in parts)
    assert not failed - excused, f"{sorted(failed - excused)}; see\n{logs}"
