"""Every setting of a broker and of a topic, declared once, with Kafka's names.

`declaration` defines how a setting is declared. `network`, `log`, `cluster` and `process` declare
the settings of a broker, `topic` those of a topic. `broker` reads them from files, the environment
and options.
"""

from hightide.settings.broker import Broker, load_broker
from hightide.settings.declaration import (
    Declaration,
    DescribedSetting,
    Effect,
    InvalidSetting,
    Kind,
    Scope,
    Settings,
    Source,
    Synonym,
)
from hightide.settings.listeners import Listener, parse_listeners
from hightide.settings.topic import Topic

__all__ = [
    "Broker",
    "Declaration",
    "DescribedSetting",
    "Effect",
    "InvalidSetting",
    "Kind",
    "Listener",
    "Scope",
    "Settings",
    "Source",
    "Synonym",
    "Topic",
    "load_broker",
    "parse_listeners",
]
