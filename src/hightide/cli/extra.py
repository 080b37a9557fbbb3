"""What a command says when the part of Hightide that it needs is not installed."""

from __future__ import annotations

from importlib.util import find_spec

from hightide.cli.options import Failed

PACKAGES = ("pyspark", "pyarrow", "pandas")


def require_spark() -> None:
    """Refuse with one sentence, before anything is imported that would say it in twenty."""
    missing = [each for each in PACKAGES if find_spec(each) is None]
    if missing:
        raise Failed(
            f"This command runs on Spark, and {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not installed: pip install 'hightide[spark]'"
        )
