"""Failed replicas are reported to the controller until it has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hightide.broker.replication.replica_failures import ReplicaFailures
from hightide.client.broker_connection import ConnectionFailed
from hightide.core.partition.state import FailureKind
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.replication import ReportFailuresRequest, ReportFailuresResponse
from tests.support.eventually import eventually_async as until
from tests.unit.broker import replica_world


def on_a_loop(test: Callable[[Controller], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on an event loop, with a new controller."""

    def run() -> None:
        async def with_controller() -> None:
            await test(Controller())

        asyncio.run(with_controller())

    run.__name__ = test.__name__
    return run


class Controller:
    """Keeps the reports that reach it; fails as often as it is set to."""

    def __init__(self) -> None:
        self.reports: list[list[tuple[int, int]]] = []
        self.answers: list[Exception | ErrorCode] = []

    async def report(self, request: ReportFailuresRequest) -> ReportFailuresResponse:
        answer = self.answers.pop(0) if self.answers else ErrorCode.NONE
        if isinstance(answer, Exception):
            raise answer
        if answer is ErrorCode.NONE:
            self.reports.append(
                [
                    (partition.partition_index, partition.kind)
                    for topic in request.topics
                    for partition in topic.partitions
                ]
            )
        return ReportFailuresResponse(error_code=answer)


def connected(controller: Controller) -> ReplicaFailures:
    failures = ReplicaFailures()
    failures.connect(1, lambda: 10, controller.report)
    return failures


@on_a_loop
async def test_a_failure_is_reported_once_and_its_end_too(controller: Controller):
    failures, replica = connected(controller), replica_world.make()
    failures.failed(replica, FailureKind.FULL, "the disk is full")
    failures.failed(replica, FailureKind.FULL, "the disk is full")
    await until(lambda: controller.reports == [[(0, FailureKind.FULL)]])
    failures.recovered(replica)
    failures.recovered(replica)
    await until(lambda: controller.reports[1:] == [[]])
    assert replica.failure is None


@on_a_loop
async def test_a_report_is_repeated_until_the_controller_has_answered(controller: Controller):
    controller.answers = [ConnectionFailed("no"), ErrorCode.NOT_CONTROLLER, ErrorCode.NONE]
    failures, replica = connected(controller), replica_world.make()
    failures.failed(replica, FailureKind.OFFLINE, "the disk is dead")
    await until(lambda: controller.reports == [[(0, FailureKind.OFFLINE)]])
    await failures.stop()


@on_a_loop
async def test_a_new_controller_gets_the_report_again(controller: Controller):
    failures, replica = connected(controller), replica_world.make()
    failures.controller_changed()
    failures.failed(replica, FailureKind.DAMAGED, "a CRC does not match")
    await until(lambda: len(controller.reports) == 1)
    failures.controller_changed()
    await until(lambda: controller.reports == [[(0, FailureKind.DAMAGED)]] * 2)


@on_a_loop
async def test_a_replica_that_leaves_the_broker_is_not_reported_any_more(controller: Controller):
    failures, replica = connected(controller), replica_world.make()
    failures.failed(replica, FailureKind.FULL, "the disk is full")
    await until(lambda: len(controller.reports) == 1)
    failures.removed(replica)
    await until(lambda: controller.reports[1:] == [[]])


@on_a_loop
async def test_what_failed_before_the_broker_joined_the_cluster_is_reported_then(
    controller: Controller,
):
    failures, replica = ReplicaFailures(), replica_world.make()
    failures.failed(replica, FailureKind.DAMAGED, "a CRC does not match")
    await asyncio.sleep(0)
    failures.connect(1, lambda: 10, controller.report)
    await until(lambda: controller.reports == [[(0, FailureKind.DAMAGED)]])
