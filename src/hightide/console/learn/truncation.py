"""The old leader returns, and truncates what was never committed."""

from __future__ import annotations

import asyncio

from hightide.client.broker_connection import ConnectionFailed
from hightide.client.model.health import listed
from hightide.console.learn.paused_follower import end_offset, watermark
from hightide.console.learn.scene import Scene, Step
from hightide.console.learn.stage import NotSeen, Stage
from hightide.core.partition.state import NO_BROKER
from hightide.wire.errors import KafkaError

FIRST, LONELY, LATER = 100, 20, 30
SLACK_S = 0.3


async def create(stage: Stage) -> None:
    await stage.create(3, min_insync_replicas=2)
    await stage.write(FIRST)
    found = await stage.until(
        f"the high watermark is {FIRST} on all replicas",
        lambda now: all(one.high_watermark == FIRST for one in now.statuses()),
    )
    stage.notes["leader"] = found.leader
    stage.notes["followers"] = [one for one in found.state.replicas if one != found.leader]
    stage.sees(
        f"Broker {found.leader} leads in epoch {found.state.leader_epoch}, and all logs end at"
        f" {FIRST}.",
        leader=found.leader,
        high_watermark=FIRST,
    )


async def isolate(stage: Stage) -> None:
    followers = stage.notes["followers"]
    wait_ms = await stage.broker_setting("replica.fetch.wait.max.ms")
    for follower in followers:
        await stage.pause(follower)
    # A fetch that waits at the leader would still be answered with the next records.
    await asyncio.sleep(wait_ms / 1000 + SLACK_S)
    stage.sees(
        f"Brokers {listed(followers)} are suspended, and no fetch of theirs waits at the leader.",
        followers=followers,
    )


async def write_alone(stage: Stage) -> None:
    stage.notes["write"] = stage.write_unacknowledged(LONELY, 60_000)
    end = FIRST + LONELY
    found = await stage.until(f"the leader's log ends at {end}", lambda now: end_offset(now) == end)
    stage.notes["end"] = end
    stage.sees(
        f"The log of broker {found.leader} ends at {end_offset(found)}, the high watermark is"
        f" {watermark(found)}: {LONELY} records are in one log only, and the"
        " producer has no answer.",
        end_offset=end_offset(found),
        high_watermark=watermark(found),
        acknowledged=stage.notes["write"].done(),
    )


async def fail_over(stage: Stage) -> None:
    leader = stage.notes["leader"]
    await stage.kill(leader)
    for follower in stage.notes["followers"]:
        await stage.resume(follower)
    found = await stage.until(
        f"a follower leads instead of broker {leader}",
        lambda now: now.leader not in (leader, NO_BROKER) and now.leader_report is not None,
        within_s=60,
    )
    try:
        await stage.notes["write"]
        raise NotSeen(f"The write of {LONELY} records was acknowledged by one replica.")
    except (KafkaError, ConnectionFailed) as error:
        answer = str(error)
    stage.sees(
        f"Broker {found.leader} leads in epoch {found.state.leader_epoch}, and its log ends at"
        f" {end_offset(found)}: it never had the {LONELY} records. Their producer got an error and"
        " would send them again; the records were not acknowledged.",
        leader=found.leader,
        epoch=found.state.leader_epoch,
        end_offset=end_offset(found),
        acknowledged=False,
        answer=answer,
    )


async def write_later(stage: Stage) -> None:
    done = await stage.write(LATER, timeout_ms=30_000)
    end = done.offset + LATER
    found = await stage.until(f"the high watermark is {end}", lambda now: watermark(now) == end)
    stage.sees(
        f"Offsets {done.offset} to {end - 1} are other records now than in the log of broker"
        f" {stage.notes['leader']}, and they are committed: the high watermark is {end}.",
        first_offset=done.offset,
        high_watermark=watermark(found),
    )


async def back(stage: Stage) -> None:
    old = stage.notes["leader"]
    await stage.restart(old)
    found = await stage.until(
        f"broker {old} is in sync again",
        lambda now: old in now.state.isr and len(now.reports) == len(now.state.replicas),
        within_s=60,
    )
    event = await stage.until_event("log_truncated", old)
    stage.command("events", "--kind", "log_truncated")
    before, after = event.data["before"], event.data["end_offset"]
    ends = {one.replica: one.end_offset for one in found.statuses()}
    stage.sees(
        f"Broker {old} asked the leader where its epoch ended, cut offsets {after} to {before - 1}"
        f" off its log, and fetched what the others have. All logs end at {end_offset(found)}.",
        truncated_from=before,
        truncated_to=after,
        high_watermark_before=event.data["high_watermark"],
        end_offsets=ends,
        event=event.text,
    )


SCENE = Scene(
    id="truncation",
    title="It returns and truncates what was never committed",
    intro=(
        "A leader that is lost may have records that no other replica has. They were never"
        " committed, so the next leader may use their offsets for other records. When the old"
        " leader returns, it has to give them up."
    ),
    steps=(
        Step(
            "A topic with three replicas in sync",
            f"{FIRST} records are written with acks=all.",
            create,
        ),
        Step(
            "Suspend both followers",
            "From now on the leader is alone, and does not know it yet.",
            isolate,
            waits=False,
        ),
        Step(
            f"Write {LONELY} records that only the leader has",
            "The producer uses acks=all and waits.",
            write_alone,
            waits=False,
        ),
        Step(
            "Kill the leader, resume the followers",
            "One of the followers becomes the leader. Both are in sync: they have all that is"
            " committed.",
            fail_over,
        ),
        Step(
            f"Write {LATER} other records",
            "They get the offsets that the lost records had in the old leader's log.",
            write_later,
        ),
        Step(
            "Start the old leader again",
            "Its log and the new leader's differ from the point where the epochs part.",
            back,
        ),
    ),
    about_s=15,
    needs_disk=True,
)
