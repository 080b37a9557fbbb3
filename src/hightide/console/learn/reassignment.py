"""A reassignment with a throttle."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping

from hightide.client.admin.throttle import RATES, set_throttle, throttle_of
from hightide.client.model.cluster import ConfigSource, ResourceType
from hightide.client.model.health import listed
from hightide.client.model.replicas import Reassignment
from hightide.console.learn.paused_follower import watermark
from hightide.console.learn.scene import Scene, Step
from hightide.console.learn.stage import NotSeen, Stage
from hightide.console.learn.writing import write
from hightide.wire.errors import KafkaError

RECORD_BYTES = 4_000
BATCH = 200
BATCHES = 20
"""16 MB together."""
SLOW_BYTES_S, FAST_BYTES_S = 1_000_000, 200_000_000
MEASURED_S = 3.0


async def create(stage: Stage) -> None:
    found = await stage.create(2, min_insync_replicas=1)
    for _ in range(BATCHES):
        await write(stage.producer, stage.topic, BATCH, value_bytes=RECORD_BYTES)
    stage.command(
        "perf", "produce", stage.topic, "--count", BATCH * BATCHES, "--size", RECORD_BYTES
    )
    end = BATCH * BATCHES
    found = await stage.until(
        f"both replicas have {end} records",
        lambda now: [one.end_offset for one in now.statuses()] == [end, end],
    )
    spare = [broker for broker in stage.brokers if broker not in found.state.replicas]
    leader = found.leader
    stage.notes["before"] = found.state.replicas
    stage.notes["target"] = (leader, spare[0])
    stage.notes["bytes"] = found.reports[leader].size_bytes
    stage.sees(
        f"Replicas {listed(found.state.replicas)} have {end} records each,"
        f" {found.reports[leader].size_bytes / 1e6:.0f} MB. Broker {spare[0]} has none.",
        replicas=list(found.state.replicas),
        high_watermark=watermark(found),
        size_bytes=found.reports[leader].size_bytes,
    )


async def _rates(stage: Stage) -> dict[int, dict[str, str]]:
    """The limits that brokers have, of those that were set while they ran."""
    found = {}
    for broker in stage.brokers:
        entries = await stage.admin.configs.describe(ResourceType.BROKER, str(broker), RATES)
        found[broker] = {
            entry.name: entry.value
            for entry in entries
            if entry.source is ConfigSource.DYNAMIC_BROKER_CONFIG and entry.value is not None
        }
    return found


async def _return_to(stage: Stage, before: Mapping[int, Mapping[str, str]]) -> None:
    """Cancel what is still in progress, and set the brokers' limits as they were."""
    with contextlib.suppress(KafkaError):
        if await stage.admin.replicas.reassignments([(stage.topic, 0)]):
            await stage.admin.replicas.reassign({(stage.topic, 0): None})
    for broker, values in before.items():
        await stage.admin.configs.alter(
            ResourceType.BROKER,
            str(broker),
            values=values,
            unset=[name for name in RATES if name not in values],
        )


async def begin(stage: Stage) -> None:
    before, target = stage.notes["before"], stage.notes["target"]
    rates = stage.notes["rates"] = await _rates(stage)
    stage.at_end(lambda: _return_to(stage, rates))
    adding = tuple(broker for broker in target if broker not in before)
    removing = tuple(broker for broker in before if broker not in target)
    move = Reassignment((*before, *adding), adding, removing)
    stage.notes["throttle"] = throttle_of({(stage.topic, 0): move})
    await set_throttle(stage.admin, stage.notes["throttle"], SLOW_BYTES_S, stage.brokers)
    refusals = await stage.admin.replicas.reassign({(stage.topic, 0): target})
    if refusal := refusals.get((stage.topic, 0)):
        raise refusal
    stage.command(
        "partition", "reassign", f"{stage.topic}/0", "--to", ",".join(map(str, target)),
        "--throttle", SLOW_BYTES_S,
    )  # fmt: skip
    found = await stage.until(
        f"broker {adding[0]} has a replica", lambda now: adding[0] in now.reports
    )
    stage.notes["began_at"] = time.monotonic()
    stage.sees(
        f"The partition has {len(found.state.replicas)} replicas for now:"
        f" {listed(found.state.replicas)}. Broker {listed(adding)} is added and copies;"
        f" {listed(removing)} is removed when the copy is in sync, not before.",
        replicas=list(found.state.replicas),
        adding=list(found.state.adding),
        removing=list(found.state.removing),
    )


async def watch(stage: Stage) -> None:
    added = stage.notes["target"][1]
    started, at_first = time.monotonic(), (await stage.look()).reports[added].size_bytes
    await asyncio.sleep(MEASURED_S)
    found = await stage.look()
    took_s = time.monotonic() - started
    report = found.reports[added]
    rate = (report.size_bytes - at_first) / took_s
    stage.command("partition", "reassign", "--list")
    left_s = (stage.notes["bytes"] - report.size_bytes) / SLOW_BYTES_S
    stage.sees(
        f"In {took_s:.1f} s broker {added} copied {(report.size_bytes - at_first) / 1e6:.1f} MB:"
        f" {rate / 1e6:.1f} MB/s of the {SLOW_BYTES_S / 1e6:g} allowed. It has"
        f" {report.end_offset} of {BATCH * BATCHES} records; at this pace the rest takes"
        f" {left_s:.0f} s. Producers and consumers keep the rest of the disk and the network.",
        bytes_s=round(rate),
        limit_bytes_s=SLOW_BYTES_S,
        end_offset=report.end_offset,
        isr=list(found.state.isr),
        is_moving=found.state.is_reassigning,
    )


async def speed_up(stage: Stage) -> None:
    target = stage.notes["target"]
    await set_throttle(stage.admin, stage.notes["throttle"], FAST_BYTES_S, stage.brokers)
    stage.command("partition", "reassign", f"{stage.topic}/0", "--throttle", FAST_BYTES_S, "--wait")
    started = time.monotonic()
    found = await stage.until(
        "the reassignment ends",
        lambda now: not now.state.is_reassigning and set(now.state.replicas) == set(target),
        within_s=60,
    )
    stage.sees(
        f"{time.monotonic() - started:.1f} s later the replicas are {listed(found.state.replicas)},"
        f" all in sync, and the old copy is deleted.",
        replicas=list(found.state.replicas),
        isr=list(found.state.isr),
    )


async def lift(stage: Stage) -> None:
    stage.command("partition", "reassign", stage.topic, "--remove-throttle")
    await _return_to(stage, stage.notes["rates"])
    now = await _rates(stage)
    if now != stage.notes["rates"]:
        raise NotSeen("The brokers still have another limit than before.")
    stage.sees(
        "The brokers have the limits that they had before the scene:"
        f" {'none' if not any(now.values()) else 'their own'}. One that is forgotten would slow"
        " down the next replica that has to catch up.",
        limits={str(broker): values for broker, values in now.items() if values},
    )


SCENE = Scene(
    id="reassignment",
    title="A reassignment with a throttle",
    intro=(
        "A replica moves to another broker by being copied: the new broker is added, follows the"
        " leader from the first record on, and when it is in sync the old one is removed. The copy"
        " can take all of the disk and the network, so it gets a limit."
    ),
    steps=(
        Step(
            "A topic of 16 MB on two brokers",
            "The third broker has no copy of it.",
            create,
        ),
        Step(
            "Move a replica, at 1 MB/s",
            "The limit is set on the brokers, for the replicas that move only.",
            begin,
            waits=False,
        ),
        Step("Watch it copy", "The bar of the new replica grows.", watch, waits=False),
        Step(
            "Raise the limit",
            "A limit can be changed while replicas move.",
            speed_up,
        ),
        Step("Remove the limit", "It does not go away by itself.", lift),
    ),
    about_s=12,
)
