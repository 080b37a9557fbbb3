"""The fuzzers for a minute in total: every decoder, then a running broker."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fuzz import live
from tests.support.pages import ROOT
from tests.support.seeds import first_seed

# Besides, imports with instrumentation and the starts of all targets take 20 s.
DECODERS_S = 12
LIVE_S = 15


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_every_decoder_accepts_or_refuses_any_bytes() -> None:
    command = [sys.executable, "-m", "tests.fuzz.run", "--seconds", str(DECODERS_S)]
    command += ["--seed", str(first_seed())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.extended
def test_a_broker_serves_others_whatever_a_client_sends() -> None:
    report = live.run(LIVE_S, first_seed())
    print(report)
    assert not report.findings, str(report)
