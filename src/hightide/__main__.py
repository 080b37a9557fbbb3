"""The `hightide` command, and the one module that may import every part.

It decides which half of the program to load before loading any of it. A broker, an embedded
ZooKeeper and `hightide up` must serve a few tenths of a second after the process starts, so they do
not load the libraries of the command line. The command line is a client and never loads a broker.
"""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    match arguments:
        case ["--version" | "-V"]:
            from hightide import __version__
            from hightide.cli import broken_pipe

            return broken_pipe.run(lambda: print(f"hightide {__version__}") or 0)
        case ["up", *rest]:
            from hightide import private_files
            from hightide.cli import up

            private_files.by_default()
            return up.run(rest)
        case ["broker", "start", *rest]:
            from hightide import private_files, process
            from hightide.broker import main as broker

            private_files.by_default()
            return broker.run(rest, process.join_parent())
        case ["zookeeper" | "coordinator", "start", *rest]:
            from hightide import private_files, process
            from hightide.zookeeper.server import main as zookeeper

            private_files.by_default()
            process.join_parent()
            return zookeeper.run(rest)
        case _:
            from hightide.cli import app

            return app.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
