"""pytest fixtures: a real broker, or a cluster of three, for tests that name it as an argument.

    def test_orders(hightide):
        topic = hightide.create_topic(partitions=3)
        producer = Producer({"bootstrap.servers": hightide.bootstrap})

`hightide` is one broker for the whole session, started when the first test uses it.  A broker is
cheap to start but cheaper to share, and `create_topic()` gives each test a new topic.  For a new
broker per test or module, set `hightide_scope = function` (or `module`, `class`, `package`) in the
pytest settings.  Settings of the broker are in `hightide_settings`, one per line.

`hightide_cluster` is a cluster of three brokers with these settings, always for the session.

The report of a test that fails with one of them ends with the last log lines of each broker, and
with the last events of all brokers in the order of time.  If a leader or an ISR has changed, it
names files with the X-rays of these partitions, which open in a browser.

Nothing is imported before a fixture is used, so the plugin costs other test suites nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Literal, cast

import pytest

if TYPE_CHECKING:
    from hightide.testing.cluster import Cluster

_SECTIONS = (
    ("the ends of the logs", "log_ends"),
    ("the events", "event_ends"),
    ("X-rays", "xray_ends"),
)

Scope = Literal["session", "package", "module", "class", "function"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("hightide_scope", "the scope of the `hightide` fixture", default="session")
    parser.addini("hightide_settings", "broker settings, NAME=VALUE", type="linelist", default=[])


def _scope(fixture_name: str, config: pytest.Config) -> Scope:  # noqa: ARG001 - pytest names it
    return cast(Scope, config.getini("hightide_scope"))


@pytest.fixture(scope=_scope)
def hightide(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One running broker; see `hightide.testing.Cluster`."""
    from hightide.testing.cluster import Cluster

    with Cluster(settings=_settings(request.config)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def hightide_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three running brokers; a test repairs what it breaks before it ends."""
    from hightide.testing.cluster import Cluster

    with Cluster(brokers=3, settings=_settings(request.config)) as cluster:
        yield cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of the brokers' logs, and their events, to the report of a failed test."""
    report = yield
    if report.failed:
        used: dict[str, object] = getattr(item, "funcargs", {})
        for name in ("hightide", "hightide_cluster"):
            for what, text in _SECTIONS:
                ends = getattr(used.get(name), text, None)
                if ends is not None and (found := ends()):
                    report.sections.append((f"{name}: {what}", found))
    return report


def _settings(config: pytest.Config) -> dict[str, str]:
    lines: list[str] = config.getini("hightide_settings")
    pairs = (line.partition("=") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}
