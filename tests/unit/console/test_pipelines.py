"""Pipelines in the console: the graph, the lag, and status files that are not whole."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from hightide.client.broker_connection import ConnectionFailed
from hightide.client.model.cluster import Node, OffsetAt, PartitionDescription
from hightide.console.context import Console, Options
from hightide.console.pipeline_graph import graph, layers_of, target_of
from hightide.console.routes import pipelines
from hightide.spark.pipelines import status
from hightide.spark.pipelines.status import AppStatus, QueryStatus, State


def query(name: str, reads: dict[str, dict[str, int]], to: str, **more: Any) -> QueryStatus:
    return QueryStatus(name, to, State.RUNNING, positions=reads, **more)


def app(name: str, *queries: QueryStatus, brokers: str = "localhost:9092") -> AppStatus:
    return AppStatus(
        name, f"{name}.py", brokers, "local[2]", 1, State.STOPPED, 1000, 2000, None, queries
    )


SHOP = app(
    "shop",
    query("revenue", {"orders": {"0": 4, "1": 6}}, "totals", lag=99, rows_in_per_s=12.5),
    query("archive", {"totals": {"0": 1}}, "delta:tables/totals"),
    query("look", {"orders": {"0": 1}}, "print:"),
)


@pytest.mark.parametrize(
    ("to", "kind"),
    [
        ("revenue", ("topic", "revenue")),
        ("delta:tables/big", ("table", "tables/big")),
        ("parquet:/data", ("table", "/data")),
        ("memory:", ("table", "memory")),
        ("print:", ("print", "print")),
        ("", ("unknown", "")),
    ],
)
def test_a_target_is_a_topic_or_a_table(to: str, kind: tuple[str, str]) -> None:
    assert target_of(to) == kind


def test_edges_go_from_left_to_right() -> None:
    found = graph([SHOP])
    layers = {node["id"]: node["layer"] for node in found["nodes"]}
    assert layers == {
        "query:shop/revenue": 1,
        "topic:orders": 0,
        "topic:totals": 2,
        "query:shop/archive": 3,
        "table:tables/totals": 4,
        "query:shop/look": 1,
        "print:shop/look:print": 2,
    }
    assert all(layers[edge["from"]] < layers[edge["to"]] for edge in found["edges"])
    assert found["layers"] == 5
    places = [(node["layer"], node["row"]) for node in found["nodes"]]
    assert len(set(places)) == len(places)


def test_apps_that_share_a_topic_are_joined() -> None:
    found = graph([SHOP, app("mail", query("send", {"totals": {"0": 1}}, "mails"))])
    assert {"from": "topic:totals", "to": "query:mail/send"} in found["edges"]


def test_a_cycle_ends() -> None:
    layers = layers_of(["a", "b", "c"], [("a", "b"), ("b", "c"), ("c", "a")])
    assert sorted(layers.values()) == [0, 1, 2]
    assert layers_of(["a"], [("a", "a")]) == {"a": 0}


def test_a_long_chain_needs_no_recursion() -> None:
    names = [str(number) for number in range(5000)]
    layers = layers_of(names, list(itertools.pairwise(names)))
    assert layers["4999"] == 4999


def test_nothing_is_an_empty_graph() -> None:
    assert graph([]) == {"nodes": [], "edges": [], "layers": 0}


# -- the route -----------------------------------------------------------------------------------


class FakeAdmin:
    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.router = SimpleNamespace(nodes={1: Node(1, "127.0.0.1", 9092, None)})
        self.topics = SimpleNamespace(list=self.list)
        self.records = SimpleNamespace(offsets=self.offsets)

    async def list(self) -> list[Any]:
        if self.fails:
            raise ConnectionFailed("No broker answers.")
        partitions = [PartitionDescription(n, 1, 1, [1], [1], []) for n in (0, 1)]
        return [
            SimpleNamespace(name="orders", partitions=partitions),
            SimpleNamespace(name="totals", partitions=partitions),
        ]

    async def offsets(self, wanted: Any) -> dict[Any, OffsetAt]:
        return {key: OffsetAt(10, -1, 0) for key in wanted}


def ask(folder: Path, admin: Any = None, bootstrap: str = "127.0.0.1:9092") -> dict[str, Any]:
    console = Console(admin or FakeAdmin(), None, Options(bootstrap, pipelines=folder))  # type: ignore[arg-type]
    reply = TestClient(Starlette(routes=pipelines.routes(console))).get("/api/v1/pipelines")
    assert reply.status_code == 200
    found: dict[str, Any] = reply.json()
    return found


def test_the_lag_is_asked_of_the_brokers(tmp_path: Path) -> None:
    status.write(tmp_path / "shop", SHOP)
    found = ask(tmp_path)
    (row,) = found["apps"]
    assert (row["state"], row["level"], row["is_here"]) == ("stopped", "off", True)
    revenue = row["queries"][0]
    assert (revenue["lag"], revenue["lag_is_current"]) == (10, True)
    assert (revenue["reads"], revenue["rows_in_per_s"]) == (["orders"], 12.5)
    assert found["graph"]["layers"] == 5


def test_an_app_of_another_cluster_keeps_its_own_lag(tmp_path: Path) -> None:
    status.write(tmp_path / "shop", app("shop", *SHOP.queries, brokers="far:9092"))
    (row,) = ask(tmp_path)["apps"]
    assert row["is_here"] is False
    assert (row["queries"][0]["lag"], row["queries"][0]["lag_is_current"]) == (99, False)


def test_a_cluster_that_is_away_leaves_the_last_lag(tmp_path: Path) -> None:
    status.write(tmp_path / "shop", SHOP)
    found = ask(tmp_path, FakeAdmin(fails=True))
    assert found["apps"][0]["queries"][0]["lag"] == 99
    assert "No broker answers." in found["notes"][0]


def test_a_run_that_ended_without_a_word_has_died(tmp_path: Path) -> None:
    running = AppStatus(
        "shop", "shop.py", "localhost:9092", "local[2]", 1, State.RUNNING, 1, 2, None, SHOP.queries
    )
    status.write(tmp_path / "shop", running)
    (row,) = ask(tmp_path)["apps"]
    assert (row["state"], row["level"]) == ("died", "bad")


def test_a_folder_that_is_missing_or_has_other_things_is_empty(tmp_path: Path) -> None:
    found = ask(tmp_path / "none")
    assert (found["exists"], found["apps"]) == (False, [])
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "status.json").write_text(json.dumps({"app": "odd"}))
    found = ask(tmp_path)
    assert found["apps"] == []
    assert "cannot be read" in found["notes"][0]
