"""Two of three replicas lost: min ISR refuses, and the ELR says who may lead."""

from __future__ import annotations

from hightide.client.model.cluster import Timestamp
from hightide.client.model.health import listed
from hightide.console.learn.paused_follower import end_offset, watermark
from hightide.console.learn.scene import Scene, Step
from hightide.console.learn.stage import NotSeen, Stage
from hightide.console.learn.writing import LEADER_ONLY, write
from hightide.wire.errors import ErrorCode, KafkaError

FIRST, SECOND, RISKY, LAST = 100, 10, 5, 10


async def create(stage: Stage) -> None:
    found = await stage.create(3, min_insync_replicas=2)
    await stage.write(FIRST)
    found = await stage.until(f"the high watermark is {FIRST}", lambda now: watermark(now) == FIRST)
    stage.notes["followers"] = [one for one in found.state.replicas if one != found.leader]
    stage.sees(
        f"Broker {found.leader} leads, in sync: {listed(found.state.isr)}, high watermark {FIRST}.",
        leader=found.leader,
        isr=list(found.state.isr),
        high_watermark=FIRST,
    )


async def lose_one(stage: Stage) -> None:
    lost = stage.notes["followers"][0]
    await stage.kill(lost)
    await stage.until(f"broker {lost} leaves the ISR", lambda now: lost not in now.state.isr)
    await stage.write(SECOND)
    end = FIRST + SECOND
    found = await stage.until(f"the high watermark is {end}", lambda now: watermark(now) == end)
    stage.sees(
        f"In sync: {listed(found.state.isr)}. That is as many as min.insync.replicas asks for, so"
        f" {SECOND} more records with acks=all are committed: high watermark {end}.",
        isr=list(found.state.isr),
        elr=list(found.state.elr),
        high_watermark=end,
    )


async def lose_two(stage: Stage) -> None:
    lost = stage.notes["followers"][1]
    await stage.kill(lost)
    found = await stage.until(
        f"broker {lost} leaves the ISR and becomes eligible",
        lambda now: len(now.state.isr) == 1 and lost in now.state.elr,
    )
    stage.command("partition", "show", f"{stage.topic}/0")
    stage.sees(
        f"In sync: {listed(found.state.isr)}. Eligible (ELR): {listed(found.state.elr)}. Replica"
        f" {lost} is out of sync, but while fewer than two are in sync nothing is committed, so it"
        " still has everything that is.",
        isr=list(found.state.isr),
        elr=list(found.state.elr),
    )


async def refuse(stage: Stage) -> None:
    try:
        await stage.write(SECOND)
        raise NotSeen("A write with acks=all was accepted with one replica in sync.")
    except KafkaError as error:
        if error.code not in (
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ):
            raise
        refusal = error
    await write(stage.producer, stage.topic, RISKY, acks=LEADER_ONLY)
    stage.piped(f"seq {RISKY}", "produce", stage.topic, "--acks", 1)
    found = await stage.look()
    stage.sees(
        f"acks=all: {refusal.code.name}, and nothing was appended. acks=1: the leader took"
        f" {RISKY} records, its log ends at {end_offset(found)}, and the high watermark stays at"
        f" {watermark(found)}: they are not committed, and no consumer sees them.",
        error=refusal.code.name,
        end_offset=end_offset(found),
        high_watermark=watermark(found),
    )


async def read(stage: Stage) -> None:
    stage.command("consume", stage.topic)
    latest = await stage.admin.records.offsets({(stage.topic, 0): Timestamp.LATEST})
    end = latest[stage.topic, 0].offset
    stage.sees(
        f"All {end} committed records can be read from the one broker that is left.", latest=end
    )


async def back(stage: Stage) -> None:
    for broker in stage.notes["followers"]:
        await stage.restart(broker)
    await stage.until(
        "all three replicas are in sync again",
        lambda now: len(now.state.isr) == 3,
        within_s=60,
    )
    await stage.write(LAST)
    end = FIRST + SECOND + RISKY + LAST
    found = await stage.until(f"the high watermark is {end}", lambda now: watermark(now) == end)
    stage.sees(
        f"In sync: {listed(found.state.isr)}, no ELR is needed. acks=all is accepted again, and the"
        f" {RISKY} records of acks=1 are committed too: high watermark {end}.",
        isr=list(found.state.isr),
        elr=list(found.state.elr),
        high_watermark=end,
    )


SCENE = Scene(
    id="min-isr",
    title="Two of three lost: min ISR refuses, eligible replicas",
    intro=(
        "min.insync.replicas says how many copies a committed record must have. With fewer replicas"
        " in sync, the leader refuses acks=all rather than promise what it cannot keep. The"
        " eligible leader replicas (ELR) are those out of sync that still have every committed"
        " record."
    ),
    steps=(
        Step(
            "A topic with three replicas, min.insync.replicas=2",
            f"{FIRST} records are written with acks=all.",
            create,
        ),
        Step("Lose one broker", "Two replicas are left: enough.", lose_one),
        Step("Lose another one", "One replica is left: fewer than min.insync.replicas.", lose_two),
        Step(
            "Try to write",
            "First with acks=all, then with acks=1.",
            refuse,
        ),
        Step("Read", "Reading needs no other replica.", read),
        Step(
            "Start both brokers again",
            "They fetch what they have missed and join the ISR.",
            back,
        ),
    ),
    about_s=15,
)
