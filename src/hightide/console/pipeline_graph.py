"""Pipelines as a graph: topics ─▶ queries ─▶ topics and tables.

A node's layer is the length of the longest way to it, so that edges go from left to right; in a
cycle the edge that closes it goes back.  Within a layer nodes stand near what they read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hightide.spark.pipelines.status import AppStatus

TABLES = ("delta", "iceberg", "parquet", "memory")


def target_of(to: str) -> tuple[str, str]:
    """The kind and the name of what a query writes: a topic, a table, or the terminal."""
    kind, colon, path = to.partition(":")
    if not to:
        return "unknown", ""
    if not colon:
        return "topic", to
    if kind in TABLES:
        return "table", path or kind
    return ("print", "print") if kind == "print" else ("table", to)


def graph(apps: Iterable[AppStatus]) -> dict[str, Any]:
    """The nodes with their layers and rows, and the edges."""
    nodes: dict[str, dict[str, Any]] = {}
    edges: list[tuple[str, str]] = []

    def node(kind: str, name: str, identity: str, **more: Any) -> str:
        nodes.setdefault(identity, {"id": identity, "kind": kind, "name": name, **more})
        return identity

    for app in apps:
        for query in app.queries:
            name = f"{app.app}/{query.name}"
            here = node("query", query.name, f"query:{name}", app=app.app, state=str(query.state))
            for topic in sorted(query.positions):
                edges.append((node("topic", topic, f"topic:{topic}"), here))
            kind, target = target_of(query.to)
            if kind == "unknown":
                continue
            # What a query prints, or keeps in memory, belongs to it alone.
            own = f"{name}:" if kind == "print" or query.to.startswith("memory:") else ""
            edges.append((here, node(kind, target, f"{kind}:{own}{target}", to=query.to)))
    edges = list(dict.fromkeys(edges))
    layers = layers_of(list(nodes), edges)
    for identity, (layer, row) in places(layers, edges).items():
        nodes[identity] |= {"layer": layer, "row": row}
    return {
        "nodes": list(nodes.values()),
        "edges": [{"from": one, "to": other} for one, other in edges],
        "layers": max(layers.values(), default=-1) + 1,
    }


def layers_of(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """The length of the longest way to each node, without the edges that close a cycle."""
    after: dict[str, list[str]] = defaultdict(list)
    for one, other in edges:
        after[one].append(other)
    order: list[str] = []
    state: dict[str, int] = {}
    back: set[tuple[str, str]] = set()

    # Depth first, with a list instead of recursion: a chain may be long.
    starts = [node for node in nodes if all(other != node for _, other in edges)]
    for start in (*starts, *nodes):
        if start in state:
            continue
        state[start] = 1
        stack = [(start, iter(after[start]))]
        while stack:
            node, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                stack.pop()
                state[node] = 2
                order.append(node)
            elif following not in state:
                state[following] = 1
                stack.append((following, iter(after[following])))
            elif state[following] == 1:
                back.add((node, following))
    layers = dict.fromkeys(nodes, 0)
    for node in reversed(order):
        for following in after[node]:
            if (node, following) not in back:
                layers[following] = max(layers[following], layers[node] + 1)
    return layers


def places(
    layers: Mapping[str, int], edges: Sequence[tuple[str, str]]
) -> dict[str, tuple[int, int]]:
    """The layer and the row of each node: sorted by the mean row of what it comes from."""
    before: dict[str, list[str]] = defaultdict(list)
    for one, other in edges:
        if layers[one] < layers[other]:
            before[other].append(one)
    found: dict[str, tuple[int, int]] = {}
    for layer in sorted(set(layers.values())):
        here = [node for node in layers if layers[node] == layer]
        means = {
            node: sum(found[one][1] for one in before[node]) / len(before[node])
            if before[node]
            else float(at)
            for at, node in enumerate(here)
        }
        for row, node in enumerate(sorted(here, key=lambda node: (means[node], node))):
            found[node] = (layer, row)
    return found
