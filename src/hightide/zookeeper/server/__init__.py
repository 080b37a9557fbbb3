"""The embedded ZooKeeper server: the znode tree behind ZooKeeper's client protocol.

    socket ─▶ channel, client_connection ─▶ requests (jute) ─▶ committer: decide ─▶ disk ─▶ apply
                          ▲                                                                   │
                          └────────────── watch events, then the response, in order ◀─────────┘

`server` connects the parts. `main` runs the server as a process, `server_thread` beside a broker.
A program that uses a ZooKeeper ensemble loads nothing of this package.
"""
