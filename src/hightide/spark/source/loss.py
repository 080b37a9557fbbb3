"""Records that a query should have read and that are gone: an error or a warning.

Retention, deleted records and topics made anew take records away before somebody has read them.
`failOnDataLoss` decides whether that stops the query.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

ADVICE = (
    "To go on with what is left, set the option failOnDataLoss to false; it is a good idea only if "
    "the missing records are not needed."
)
_log = logging.getLogger(__name__)


class DataLoss(Exception):
    """Records are gone that the query should have read; the text says which."""


def report(losses: Sequence[str], *, fail: bool) -> None:
    """Say what is missing, and stop the query if that is wanted."""
    if not losses:
        return
    if fail:
        raise DataLoss(" ".join([*losses, ADVICE]))
    for each in losses:
        _log.warning("Records are missing, and the query goes on without them. %s", each)
