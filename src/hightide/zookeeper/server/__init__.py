"""The embedded coordinator: the znode tree behind ZooKeeper's client protocol.

    socket ─▶ connection ─▶ requests (jute) ─▶ committer: decide ─▶ disk ─▶ apply
                  ▲                                                           │
                  └──────────── events, then the answer, in order ◀───────────┘

`coordinator` ties the parts together; `main` runs one as a process, `thread` beside a broker.
Nothing here is needed by a program that talks to an ensemble.
"""
