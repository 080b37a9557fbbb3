"""DescribeConfigs of a topic whose settings the broker does not know yet."""

from types import SimpleNamespace
from typing import Any, cast

from hightide.broker.handlers.configs import TOPIC, describe_configs
from hightide.settings import Broker as Settings
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from tests.support.steps import all_steps

CAUTIOUS = {"flush.messages": "1", "retention.ms": "-1"}


class UnreadTopicConfigs:
    def is_known(self, _name):
        return False

    def overrides(self, _name):
        return CAUTIOUS


BROKER: Any = SimpleNamespace(
    settings=Settings(),
    metadata=SimpleNamespace(get=lambda _name: object()),
    topic_configs=UnreadTopicConfigs(),
)


def test_the_cautious_settings_of_an_unread_topic_are_not_shown_as_its_own():
    resource = DescribeConfigsResource(
        resource_type=TOPIC, resource_name="t", configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource])
    context = cast(Any, SimpleNamespace(version=4))
    (result,) = all_steps(describe_configs(BROKER, request, context)).results
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert "could not be read" in (result.error_message or "")
    assert result.configs == []
