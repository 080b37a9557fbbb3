"""Requests about the controller that Kafka does not have.

Their keys lie far above Kafka's, and ApiVersions does not tell them: only our own command line and
brokers send them.
"""

from __future__ import annotations

from hightide.wire.types import i16, i32, message


@message(key=30000, versions=(0, 0), flexible=0)
class ResignControllerRequest:
    """Asks the controller to hand its task to another broker."""


@message(key=30000, versions=(0, 0), flexible=0)
class ResignControllerResponse:
    """Who is the controller now."""

    error_code: i16 = 0
    error_message: str | None = None
    controller_id: i32
