"""The generated dashboard and alerts: they parse, and ask only for what brokers export."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from hightide.broker.metrics.declarations import METRICS, Kind
from hightide.cli.generate.dashboard import COLUMNS, dashboard, model
from hightide.cli.generate.template import fill
from tests.unit.cli.test_documented_commands import mistakes

SCRAPED = {"job", "instance"}
"""The labels that Prometheus adds."""
UP = {"up": set[str]()}


def exported() -> dict[str, set[str]]:
    """The names of all series that a broker exports, and their labels."""
    found: dict[str, set[str]] = {}
    for metric in METRICS.values():
        found[metric.name] = set(metric.labels)
        if metric.kind is Kind.SUMMARY:
            found[metric.name] |= {"quantile"}
            for suffix in ("_sum", "_count"):
                found[metric.name + suffix] = set(metric.labels)
    return found


def rules(job: str = "hightide") -> list[dict[str, Any]]:
    groups = yaml.safe_load(fill("rules.yaml", {"job": job, "metrics_port": "9404"}))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return list(model("Hightide")["panels"])


def queries() -> Iterator[tuple[str, str]]:
    """The query of each alert and of each line of the dashboard, with its title."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in model("Hightide")["templating"]["list"][1:]:
        yield variable["name"], variable["definition"]


QUERIES = list(queries())
SELECTOR = re.compile(r"([a-z_]+)\{([^}]*)\}")


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[title for title, _ in QUERIES])
def test_a_query_asks_for_metrics_that_brokers_export(title: str, query: str) -> None:
    known = exported() | UP
    names = set(re.findall(r"\b(?:kafka|hightide|process)_[a-z_]+|\bup\b", query))
    assert names, query
    assert names <= set(known)
    for name, selectors in SELECTOR.findall(query):
        labels = set(re.findall(r"([a-z_]+)(?:=~|!=|=)", selectors))
        assert labels <= known[name] | SCRAPED, f"{name}: {labels}"


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_to_type_next(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    annotations = rule["annotations"]
    commands = re.findall(r"`([^`]+)`", annotations["description"])
    assert commands, annotations
    for command in commands:
        words = shlex.split(re.sub(r"\{\{[^}]*\}\}", "NAME", command))
        assert words[0] != "hightide" or not mistakes(words[1:]), command


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_names_only_labels_that_its_query_keeps(rule: dict[str, Any]) -> None:
    named = set(re.findall(r"\$labels\.([a-z_]+)", str(rule["annotations"])))
    kept = re.findall(r"\bby \(([a-z_, ]*)\)", rule["expr"])
    if kept:
        assert named <= {label.strip() for label in kept[0].split(",")}
    else:
        known = exported() | UP
        names = [name for name, _ in SELECTOR.findall(rule["expr"])]
        assert named <= known[names[0]] | SCRAPED


def test_alerts_have_different_names_and_ask_for_the_job_that_was_given() -> None:
    found = rules("brokers")
    assert len({rule["alert"] for rule in found}) == len(found) > 15
    for rule in found:
        selectors = re.findall(r"\{([^}]*)\}", rule["expr"])
        assert all('job="brokers"' in selector for selector in selectors), rule["expr"]


def test_a_dashboard_is_json_with_its_title() -> None:
    found = json.loads(dashboard('Tide "one" – ünïcode'))
    assert found["title"] == 'Tide "one" – ünïcode'
    assert found["uid"]
    assert [variable["name"] for variable in found["templating"]["list"]] == [
        "datasource", "job", "broker", "topic", "group",
    ]  # fmt: skip


def test_panels_have_different_ids_and_do_not_overlap() -> None:
    found = panels()
    assert len({panel["id"] for panel in found}) == len(found) > 30
    taken: set[tuple[int, int]] = set()
    for panel in found:
        place = panel["gridPos"]
        cells = {
            (place["x"] + column, place["y"] + line)
            for column in range(place["w"])
            for line in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= COLUMNS
        taken |= cells


def test_a_panel_uses_variables_that_the_dashboard_has() -> None:
    found = model("Hightide")
    names = {variable["name"] for variable in found["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z_]+)\}?", json.dumps(found["panels"])))
    assert used - {"__rate_interval"} <= names
    assert not [panel for panel in found["panels"] if "@" in json.dumps(panel.get("targets", ""))]


def test_the_legend_of_a_line_names_labels_that_its_query_keeps() -> None:
    known = exported()
    for panel in panels():
        for target in panel.get("targets", ()):
            named = set(re.findall(r"\{\{([a-z_]+)\}\}", target.get("legendFormat", "")))
            kept = re.findall(r"\bby \(([a-z_, ]*)\)", target["expr"])
            if kept:
                assert named <= {label.strip() for label in kept[0].split(",")}, panel["title"]
            else:
                name = SELECTOR.findall(target["expr"])[0][0]
                assert named <= known[name] | SCRAPED, panel["title"]
