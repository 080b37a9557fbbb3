"""A paused follower: the high watermark waits, then the ISR shrinks."""

from __future__ import annotations

import time

from hightide.client.model.health import listed
from hightide.client.model.replicas import PartitionReplicas
from hightide.console.learn.scene import Scene, Step
from hightide.console.learn.stage import Stage

FIRST, MORE = 100, 50
WRITE_TIMEOUT_MS = 120_000


def watermark(found: PartitionReplicas) -> int | None:
    report = found.leader_report
    return report.high_watermark if report else None


def end_offset(found: PartitionReplicas) -> int | None:
    report = found.leader_report
    return report.end_offset if report else None


async def create(stage: Stage) -> None:
    found = await stage.create(3, min_insync_replicas=2)
    await stage.write(FIRST)
    found = await stage.until(f"the high watermark is {FIRST}", lambda now: watermark(now) == FIRST)
    # The controller is not paused: it decides who is in sync.
    followers = [one for one in found.state.replicas if one != found.leader]
    stage.notes["follower"] = max(followers, key=lambda one: one != stage.controller)
    stage.sees(
        f"Broker {found.leader} leads, replicas {listed(found.state.isr)} are in sync, and the high"
        f" watermark is {FIRST}.",
        leader=found.leader,
        isr=list(found.state.isr),
        high_watermark=FIRST,
    )


async def pause(stage: Stage) -> None:
    follower = stage.notes["follower"]
    await stage.pause(follower)
    stage.notes["paused_at"] = time.monotonic()
    stage.sees(
        f"Broker {follower} is suspended: its process exists and does nothing. Its connections are"
        " open, so for now the other brokers cannot tell it from a slow one.",
        follower=follower,
    )


async def write_more(stage: Stage) -> None:
    follower = stage.notes["follower"]
    stage.notes["write"] = stage.write_unacknowledged(MORE, WRITE_TIMEOUT_MS)
    end = FIRST + MORE
    found = await stage.until(
        f"the leader and the other follower have {end} records",
        lambda now: [one.end_offset for one in now.statuses()].count(end) >= 2,
    )
    acknowledged = stage.notes["write"].done()
    stage.sees(
        f"The log of the leader ends at {end_offset(found)}, but the high watermark stands still"
        f" at {watermark(found)}: replica {follower} is in sync by name and has not fetched. The"
        " producer waits for its answer, and consumers see nothing new.",
        high_watermark=watermark(found),
        end_offset=end_offset(found),
        isr=list(found.state.isr),
        acknowledged=acknowledged,
    )


async def shrink(stage: Stage) -> None:
    follower = stage.notes["follower"]
    lag_ms = await stage.broker_setting("replica.lag.time.max.ms")
    session_ms = await stage.broker_setting("zookeeper.session.timeout.ms")
    end = FIRST + MORE
    found = await stage.until(
        f"broker {follower} leaves the ISR and the high watermark moves",
        lambda now: follower not in now.state.isr and watermark(now) == end,
        within_s=(max(lag_ms, session_ms) / 1000) * 2 + 30,
    )
    written = await stage.notes["write"]
    waited_s = time.monotonic() - stage.notes["paused_at"]
    is_session = follower not in found.live
    reason = (
        f"its ZooKeeper session ended after {session_ms / 1000:g} s"
        " (`zookeeper.session.timeout.ms`), so the controller counts it as gone"
        if is_session
        else f"it had not caught up for {lag_ms / 1000:g} s (`replica.lag.time.max.ms`)"
    )
    stage.command("partition", "show", f"{stage.topic}/0")
    stage.sees(
        f"{waited_s:.1f} s after the pause the ISR is {listed(found.state.isr)}: replica"
        f" {follower} left it because {reason}. At once the high watermark moved to"
        f" {watermark(found)}, and the producer got its answer after {written.ms / 1000:.1f} s.",
        isr=list(found.state.isr),
        high_watermark=watermark(found),
        acknowledged=True,
        acknowledged_ms=round(written.ms),
        waited_ms=round(waited_s * 1000),
    )


async def resume(stage: Stage) -> None:
    follower = stage.notes["follower"]
    await stage.resume(follower)
    found = await stage.until(
        f"broker {follower} is in sync again",
        lambda now: follower in now.state.isr and len(now.reports) == len(now.state.replicas),
        within_s=60,
    )
    ends = {one.replica: one.end_offset for one in found.statuses()}
    stage.sees(
        f"Broker {follower} fetched what it missed, and is in sync again: all logs end at"
        f" {end_offset(found)}.",
        isr=list(found.state.isr),
        end_offsets=ends,
    )


SCENE = Scene(
    id="paused-follower",
    title="A paused follower: the HW waits, the ISR shrinks",
    intro=(
        "The high watermark moves only when every replica in the ISR has a record. So one follower"
        " that hangs holds everything back, until it is taken out of the ISR."
    ),
    steps=(
        Step(
            "A topic with three replicas in sync",
            f"{FIRST} records are written with acks=all.",
            create,
        ),
        Step(
            "Pause a follower",
            "The process of one follower is suspended, as if its host hung. It does not end, so"
            " nothing tells the other brokers.",
            pause,
            waits=False,
        ),
        Step(
            f"Write {MORE} more records with acks=all",
            "The leader and the other follower have them at once. The suspended one does not.",
            write_more,
        ),
        Step(
            "Wait until the ISR shrinks",
            "After a time without a sign the follower leaves the ISR. From then on the high"
            " watermark does not wait for it. Availability is back, with one copy less.",
            shrink,
        ),
        Step(
            "Resume the follower",
            "It continues where it stood, fetches what it has missed, and joins the ISR again.",
            resume,
        ),
    ),
    about_s=30,
)
