"""The `hightide` command, and the one place that may know every part.

It decides which half of the program to load before loading any of it.  A broker, a
coordinator and `hightide up` must answer a few tenths of a second after the process starts,
so they never pay for the command line's libraries; and the command line, which is a client
like any other, never loads a broker.
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
        case ["coordinator", "start", *rest]:
            from hightide import process
            from hightide.zookeeper.server import main as coordinator

            process.stop_with_parent()
            return coordinator.run(rest)
        case _:
            from hightide.cli import app

            return app.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
