"""The controller's shell: the machine of `core.controller` on a real tree, with real brokers.

`control` is what the rest of the broker knows of it.  `term` is the order in which things happen,
`reading` and `writing` deal with the tree, `publishing` with the other brokers, `topics` with what
comes and goes.
"""

from hightide.broker.controller.service import ControllerService
from hightide.broker.controller.topic_changes import announce_topic

__all__ = ["ControllerService", "announce_topic"]
