"""The leader dies."""

from __future__ import annotations

import asyncio
import time

from hightide.client.model.health import listed
from hightide.console.learn.paused_follower import watermark
from hightide.console.learn.scene import Scene, Step
from hightide.console.learn.stage import SOON_S, NotSeen, Stage
from hightide.console.learn.writing import Stream
from hightide.core.partition.state import NO_BROKER

LEAST = 50


async def create(stage: Stage) -> None:
    found = await stage.create(3, min_insync_replicas=2)
    stage.notes["leader"], stage.notes["epoch"] = found.leader, found.state.leader_epoch
    stream, task = await stage.stream()
    stage.notes["stream"], stage.notes["task"] = stream, task
    stage.piped("seq 100000", "produce", stage.topic, "--acks", "all")
    await _acknowledged(stage, stream, LEAST)
    stream.forget_silence()
    stage.sees(
        f"Broker {found.leader} leads in epoch {found.state.leader_epoch}. A producer writes 50"
        f" records a second; {stream.acknowledged} are acknowledged so far.",
        leader=found.leader,
        epoch=found.state.leader_epoch,
    )


async def _acknowledged(stage: Stage, stream: Stream, count: int) -> None:
    deadline = time.monotonic() + SOON_S
    while stream.acknowledged < count:
        if stage.notes["task"].done():
            stage.notes["task"].result()
        if time.monotonic() > deadline:
            raise NotSeen(f"No more than {stream.acknowledged} records were acknowledged.")
        await asyncio.sleep(0.02)


async def kill(stage: Stage) -> None:
    leader, stream = stage.notes["leader"], stage.notes["stream"]
    before = stream.acknowledged
    stream.forget_silence()
    await stage.kill(leader)
    found = await stage.until(
        f"another broker than {leader} leads",
        lambda now: now.leader not in (leader, NO_BROKER) and leader not in now.state.isr,
    )
    await _acknowledged(stage, stream, max(before, stream.acknowledged) + 10)
    stage.notes["new_leader"] = found.leader
    stage.sees(
        f"Broker {found.leader} leads in epoch {found.state.leader_epoch}; in sync:"
        f" {listed(found.state.isr)}. For {stream.longest_silence_ms:.0f} ms the producer got no"
        " acknowledgement. It tried again by itself, and the application saw no error.",
        leader=found.leader,
        epoch=found.state.leader_epoch,
        isr=list(found.state.isr),
        silence_ms=round(stream.longest_silence_ms),
    )


async def count(stage: Stage) -> None:
    stream: Stream = stage.notes["stream"]
    stream.stop()
    async with asyncio.timeout(SOON_S):
        await stage.notes["task"]
    await stage.until(
        "the high watermark reaches the acknowledged records",
        lambda now: (watermark(now) or 0) >= stream.acknowledged,
    )
    found = await stage.look()
    committed = watermark(found)
    stage.command("topic", "describe", stage.topic)
    stage.sees(
        f"The producer sent {stream.sent} records, {stream.acknowledged} are acknowledged, and the"
        f" log has {committed} committed: none is missing, and none is there twice. The producer"
        " numbers its records, so a broker recognises one that is sent again.",
        sent=stream.sent,
        acknowledged=stream.acknowledged,
        high_watermark=committed,
    )
    if not stream.sent == stream.acknowledged == committed:
        raise NotSeen("The number of committed records is not that of acknowledged ones.")


async def back(stage: Stage) -> None:
    old = stage.notes["leader"]
    await stage.restart(old)
    found = await stage.until(
        f"broker {old} is in sync again", lambda now: old in now.state.isr, within_s=60
    )
    stage.sees(
        f"Broker {old} follows broker {found.leader}, and is in sync again. It leads again when a"
        " preferred election asks for it.",
        leader=found.leader,
        isr=list(found.state.isr),
    )


SCENE = Scene(
    id="leader-dies",
    title="The leader dies",
    intro=(
        "All writes of a partition go to its leader. When its broker is lost, the controller makes"
        " another in-sync replica the leader, with a higher leader epoch. Every committed record is"
        " there, because a replica is in sync only if it has them all."
    ),
    steps=(
        Step(
            "A producer writes steadily",
            "A topic with three replicas and min.insync.replicas=2. The producer is idempotent and"
            " uses acks=all, as clients do by default.",
            create,
        ),
        Step(
            "Kill the leader",
            "SIGKILL: the broker has no time to say goodbye. Watch the epoch, and how long no write"
            " is acknowledged.",
            kill,
        ),
        Step(
            "Count the records",
            "Acknowledged records must be in the log, each exactly once.",
            count,
        ),
        Step(
            "Start the broker again",
            "It comes back as a follower of the new leader.",
            back,
        ),
    ),
    about_s=12,
)
