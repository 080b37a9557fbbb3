"""The demo in its console: the ledger above every page, and a button that kills the leader."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.console.browsing import tab as opened
from tests.console.browsing import violations

WAIT_S = 60
LEDGER = re.compile(
    r"Orders: ([\d,]+) acknowledged, [\d,]+ read back,"
    r" ([\d,]+ on their way|0 missing), 0 duplicated"
)


@pytest.fixture
def demo_url(tmp_path: Path) -> Iterator[str]:
    """The console's address, as a demo without Spark prints it."""
    child = subprocess.Popen(
        [
            *(sys.executable, "-m", "examples.demo", "--port", "0", "--data", str(tmp_path)),
            *("--no-pipeline", "--rate", "100"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert child.stdout is not None
    printed: list[str] = []
    address: list[str] = []
    is_known = threading.Event()

    def listen() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            printed.append(line)
            if found := re.match(r"console: (http://\S+)", line):
                address.append(found[1])
                is_known.set()

    listening = threading.Thread(target=listen, daemon=True)
    listening.start()
    try:
        assert is_known.wait(WAIT_S), printed
        yield address[0]
    finally:
        child.send_signal(signal.SIGINT)
        code = child.wait(WAIT_S)
        listening.join(WAIT_S)
        child.stdout.close()
    assert code == 0, printed
    said = "".join(printed)
    assert re.search(r"(?m)^[\d,]+ orders acknowledged.* 0 duplicated", said), said


@pytest.mark.extended
def test_the_leader_in_view_is_killed_and_the_ledger_stays_whole(
    demo_url: str, browser: Browser, axe: str
) -> None:
    with opened(browser, demo_url) as tab:
        page = tab.open("/x/orders/0")
        banner = page.locator(".banner")
        expect(banner).to_have_text(LEDGER)
        row = page.locator(".xo-broker").filter(has_text=re.compile("leader"))
        name = re.search(r"broker \d", row.inner_text())
        assert name is not None
        epoch = page.locator(".xp-fact").filter(has_text="Epoch").locator("dd")
        before = int(epoch.inner_text())
        page.get_by_role("button", name=f"Kill {name[0]}").click()
        expect(page.locator(".xo-done")).to_contain_text("has ended")
        expect(epoch).to_have_text(str(before + 1))
        known = banner.inner_text()
        expect(banner).not_to_have_text(known)
        expect(banner).to_have_text(LEDGER)
        assert violations(page, axe) == []
        page.get_by_role("button", name=f"Restart {name[0]}").click()
        expect(page.locator(".xo-done")).to_contain_text("serves on")
        expect(page.locator(".sentence")).to_contain_text("All 3 replicas are in sync")
        # It is above the other pages too.
        page.get_by_role("link", name="Learn", exact=True).click()
        expect(banner).to_have_text(LEDGER)
