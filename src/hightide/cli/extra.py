"""Checks that the packages of an extra are installed."""

from __future__ import annotations

from importlib.util import find_spec

from hightide.cli.options import Failed

PACKAGES = ("pyspark", "pyarrow", "pandas")


def require_spark() -> None:
    """Fail with one sentence if Spark is missing, before an import fails with a traceback."""
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        raise Failed(
            f"This command runs on Spark, and {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not installed: pip install 'hightide[spark]'"
        )
