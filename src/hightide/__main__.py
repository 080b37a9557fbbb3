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

            print(f"hightide {__version__}")
            return 0
        case ["up", *rest]:
            from hightide.cli import up

            return up.run(rest)
        case ["broker", "start", *rest]:
            from hightide import process
            from hightide.broker import main as broker

            process.stop_with_parent()
            return broker.run(rest)
        case ["zookeeper" | "coordinator", "start", *rest]:
            from hightide import process
            from hightide.zookeeper.server import main as zookeeper

            process.stop_with_parent()
            return zookeeper.run(rest)
        case _:
            from hightide.cli import app

            return app.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
