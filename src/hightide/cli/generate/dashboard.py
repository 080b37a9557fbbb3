"""The Grafana dashboard: rows of panels over the metrics that brokers serve.

templates/dashboard.toml has the panels; here is the JSON around them.  The data source, the job and
the brokers are variables of the dashboard, so it is imported as it is.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import Any

from hightide.cli.generate.template import FOLDER, PLACE

SCHEMA_VERSION = 39
"""Of Grafana 11; later versions migrate it."""

COLUMNS, PANEL_WIDTH, PANEL_HEIGHT, TILE_WIDTH, TILE_HEIGHT = 24, 8, 8, 4, 4
PANELS_PER_LINE = COLUMNS // PANEL_WIDTH
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_CLUSTER = 'job=~"$job"'
_BROKER = f'{_CLUSTER},instance=~"$broker"'
PLACES = {
    "cluster": _CLUSTER,
    "broker": _BROKER,
    "topic": f'{_BROKER},topic!="",topic=~"$topic"',
    # The totals of a broker have no topic.
    "total": f'{_BROKER},topic=""',
    "group": f'{_CLUSTER},consumergroup=~"$group",topic=~"$topic"',
    "rate": "$__rate_interval",
}
VARIABLES = {
    "job": "kafka_server_replicamanager_partitioncount, job",
    "broker": "kafka_server_replicamanager_partitioncount{@cluster@}, instance",
    "topic": "kafka_log_log_size{@cluster@}, topic",
    "group": "kafka_consumergroup_members{@cluster@}, consumergroup",
}
"""The variables that Grafana fills from metrics; of all but the job several can be chosen."""


def dashboard(title: str) -> str:
    """Return the dashboard as JSON that Grafana imports."""
    return json.dumps(model(title), indent=2, ensure_ascii=False) + "\n"


def model(title: str) -> dict[str, Any]:
    panels = list(_panels(tomllib.loads((FOLDER / "dashboard.toml").read_text("utf-8"))))
    return {
        "uid": "hightide",
        "title": title,
        "tags": ["hightide", "kafka"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels, 1)],
    }


def expression(text: str) -> str:
    """Put the labels into the places of a query."""
    return PLACE.sub(lambda place: PLACES[place[1]], text)


def _panels(declared: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number, tile in enumerate(declared["tile"]):
        yield _tile(tile, _place(number * TILE_WIDTH, 0, TILE_WIDTH, TILE_HEIGHT))
    y = TILE_HEIGHT
    for row in declared["row"]:
        yield {
            "type": "row",
            "title": row["title"],
            "collapsed": False,
            "gridPos": _place(0, y, COLUMNS, 1),
            "panels": [],
        }
        y += 1
        for number, panel in enumerate(row["panel"]):
            line, column = divmod(number, PANELS_PER_LINE)
            yield _graph(
                panel,
                _place(column * PANEL_WIDTH, y + line * PANEL_HEIGHT, PANEL_WIDTH, PANEL_HEIGHT),
            )
        y += -(-len(row["panel"]) // PANELS_PER_LINE) * PANEL_HEIGHT


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "hide": 0}
    found = [{**source, "query": "prometheus", "refresh": 1}]
    for name, values in VARIABLES.items():
        query, several = f"label_values({expression(values)})", name != "job"
        found.append(
            {
                "name": name,
                "label": name.capitalize(),
                "type": "query",
                "datasource": SOURCE,
                "query": {"query": query, "refId": f"variable-{name}"},
                "definition": query,
                "refresh": 2,
                "sort": 1,
                "multi": several,
                "includeAll": several,
            }
        )
        if several:
            found[-1] |= {"allValue": ".*", "current": {"text": "All", "value": "$__all"}}
    return found


def _tile(tile: dict[str, Any], place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if "good" in tile:
        good = tile["good"]
        steps = [
            {"color": "red", "value": None},
            {"color": "green", "value": good},
            {"color": "red", "value": good + 1},
        ]
    elif "bad_from" in tile:
        steps.append({"color": "red", "value": tile["bad_from"]})
    thresholds = {"mode": "absolute", "steps": steps}
    target = {"refId": "A", "datasource": SOURCE, "expr": expression(tile["query"])}
    return {
        "type": "stat",
        "title": tile["title"],
        "description": tile["says"],
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [{**target, "instant": True}],
        "fieldConfig": {
            "defaults": {"unit": "none", "decimals": 0, "thresholds": thresholds},
            "overrides": [],
        },
        "options": {
            "colorMode": "background" if len(steps) > 1 else "value",
            "graphMode": "none",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        },
    }


def _graph(panel: dict[str, Any], place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + number),
            "datasource": SOURCE,
            "expr": expression(query),
            "legendFormat": legend,
        }
        for number, (legend, query) in enumerate(panel["queries"].items())
    ]
    return {
        "type": "timeseries",
        "title": panel["title"],
        "description": panel["says"],
        "datasource": SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {
            "defaults": {"unit": panel["unit"], "min": 0, "custom": {"fillOpacity": 10}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }
