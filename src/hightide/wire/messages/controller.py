"""Requests about the controller that Kafka does not have.

Their keys are far above Kafka's, and ApiVersions does not list them: only Hightide's command line
and brokers send them.
"""

from __future__ import annotations

from hightide.wire.types import i16, i32, message


@message(key=30000, versions=(0, 0), flexible=0)
class ResignControllerRequest:
    """Ask the controller to resign, so that another broker becomes controller."""


@message(key=30000, versions=(0, 0), flexible=0)
class ResignControllerResponse:
    """The new controller."""

    error_code: i16 = 0
    error_message: str | None = None
    controller_id: i32
