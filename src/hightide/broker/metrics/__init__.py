"""Metrics and health of a broker, served over HTTP: `/metrics`, `/livez` and `/readyz`.

    hot path ─▶ counters ───┐
    parts of the broker ────┴─▶ collection, in turns on the loop ─▶ samples ─▶ text, in a thread
                                        ▲                                        │
    GET /metrics ─▶ http_server ────────┘                 response ◀─────────────┘

`declarations` has every metric; docs/reference/metrics.md is generated from it.
"""
