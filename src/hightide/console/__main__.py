"""`python -m hightide.console`: what `hightide console` and `hightide up` run as a process."""

from __future__ import annotations

import logging
import sys

from hightide import private_files, process


def main() -> int:
    private_files.by_default()
    process.join_parent()
    logging.basicConfig(
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", level=logging.WARNING
    )
    # One line for people instead of a traceback, whatever is missing.
    try:
        from hightide.console import server
    except ModuleNotFoundError as error:
        print(f"hightide: the console needs {error.name}, which is missing.", file=sys.stderr)
        return 1
    return server.run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
