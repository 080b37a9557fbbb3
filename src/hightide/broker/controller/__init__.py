"""The shell of the controller: `core.controller` connected to ZooKeeper and to the brokers.

`service` is the interface for the rest of the broker, `controller_election` elects the controller,
`event_queue` runs one controller epoch and `context` holds its state.  `znode_reader` and
`znode_writer` read and write ZooKeeper, `publisher` sends state to the brokers, `topic_changes`
creates and deletes topics, and `channel` carries requests between brokers and controller.
"""

from hightide.broker.controller.service import ControllerService
from hightide.broker.controller.topic_changes import announce_topic

__all__ = ["ControllerService", "announce_topic"]
