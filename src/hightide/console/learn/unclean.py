"""An unclean election, on a throw-away topic."""

from __future__ import annotations

from hightide.client.model.health import listed
from hightide.console.learn.paused_follower import end_offset, watermark
from hightide.console.learn.scene import Scene, Step
from hightide.console.learn.stage import NotSeen, Stage
from hightide.core.controller.controller import ElectionKind
from hightide.core.partition.state import NO_BROKER

FIRST, LOST = 100, 50


async def create(stage: Stage) -> None:
    await stage.create(2, min_insync_replicas=1)
    await stage.write(FIRST)
    found = await stage.until(
        f"both logs end at {FIRST}",
        lambda now: all(one.high_watermark == FIRST for one in now.statuses()),
    )
    stage.notes["leader"] = found.leader
    stage.notes["follower"] = next(one for one in found.state.replicas if one != found.leader)
    stage.sees(
        f"Broker {found.leader} leads, broker {stage.notes['follower']} follows, and both have"
        f" {FIRST} records. min.insync.replicas is 1: one copy counts as committed.",
        leader=found.leader,
        follower=stage.notes["follower"],
        high_watermark=FIRST,
    )


async def fall_behind(stage: Stage) -> None:
    follower = stage.notes["follower"]
    await stage.kill(follower)
    await stage.until(
        f"broker {follower} leaves the ISR", lambda now: follower not in now.state.isr
    )
    await stage.write(LOST)
    end = FIRST + LOST
    found = await stage.until(f"the high watermark is {end}", lambda now: watermark(now) == end)
    stage.sees(
        f"In sync: {listed(found.state.isr)}. {LOST} records with acks=all are acknowledged, and"
        f" the high watermark is {end}. They have one copy.",
        isr=list(found.state.isr),
        high_watermark=end,
    )


async def lose_leader(stage: Stage) -> None:
    leader, follower = stage.notes["leader"], stage.notes["follower"]
    await stage.kill(leader)
    await stage.until("the partition has no leader", lambda now: now.leader == NO_BROKER)
    await stage.restart(follower)
    found = await stage.until(
        f"broker {follower} is back and waits", lambda now: follower in now.reports, within_s=60
    )
    stage.command("partition", "show", f"{stage.topic}/0")
    report = found.reports[follower]
    stage.sees(
        f"Broker {follower} is back with {report.end_offset} records, and the partition has no"
        f" leader: only broker {leader} has all that is committed (ELR: {listed(found.state.elr)})."
        " Waiting for it loses nothing.",
        leader=found.leader,
        elr=list(found.state.elr),
        end_offset=report.end_offset,
    )


async def elect(stage: Stage) -> None:
    follower = stage.notes["follower"]
    stage.command("partition", "elect", "--unclean", "--topic", f"{stage.topic}/0", "--yes")
    refusals = await stage.admin.replicas.elect_leaders(ElectionKind.UNCLEAN, [(stage.topic, 0)])
    refusal = refusals.get((stage.topic, 0))
    if refusal is not None:
        raise refusal
    found = await stage.until(
        f"broker {follower} leads",
        lambda now: now.leader == follower and now.leader_report is not None,
    )
    event = await stage.until_event("unclean_leader_elected")
    lost = FIRST + LOST - (end_offset(found) or 0)
    stage.sees(
        f"Broker {follower} leads in epoch {found.state.leader_epoch}, and the log ends at"
        f" {end_offset(found)}. {lost} acknowledged records are lost. The cluster says so: an event"
        " of level error, and a counter for alerts.",
        leader=found.leader,
        end_offset=end_offset(found),
        lost=lost,
        event=event.text,
    )


async def back(stage: Stage) -> None:
    old = stage.notes["leader"]
    await stage.restart(old)
    found = await stage.until(
        f"broker {old} is in sync again",
        lambda now: old in now.state.isr and len(now.reports) == 2,
        within_s=60,
    )
    event = await stage.until_event("log_truncated", old)
    ends = {one.replica: one.end_offset for one in found.statuses()}
    before, after = event.data["before"], event.data["end_offset"]
    lost = found.reports[old].lost_records
    counted = f" The broker counts {lost} lost records." if lost else ""
    stage.command("events", "--kind", "log_truncated", "--kind", "unclean_leader_elected")
    stage.sees(
        f"Broker {old} had the records, and follows broker {found.leader} now: it cut offsets"
        f" {after} to {before - 1} off its log, although they were committed. That is what"
        f" “unclean” means.{counted}",
        truncated_from=before,
        truncated_to=after,
        end_offsets=ends,
        lost_records=lost,
    )
    if len(set(ends.values())) != 1:
        raise NotSeen("The two logs do not end at the same offset.")


SCENE = Scene(
    id="unclean",
    title="An unclean election, on a throw-away topic",
    intro=(
        "If no replica that has all committed records is alive, there are two choices: wait for"
        " one, or let another replica lead and lose records. The second is an unclean election. It"
        " is off by default; here it is done by hand."
    ),
    steps=(
        Step(
            "A topic with two replicas, min.insync.replicas=1",
            f"{FIRST} records are on both. A min ISR of 1 is what makes the loss possible.",
            create,
        ),
        Step(
            f"Lose the follower, write {LOST} records",
            "The leader is alone, and with min.insync.replicas=1 that is enough for acks=all.",
            fall_behind,
        ),
        Step(
            "Lose the leader, and get the follower back",
            "The replica that is alive lacks records. The one that has them is gone.",
            lose_leader,
        ),
        Step(
            "Elect the follower, unclean",
            "The partition can be written again, at the price of the records that only the other"
            " replica has.",
            elect,
        ),
        Step(
            "Start the old leader again",
            "Its log has the lost records. It follows the new leader all the same: one partition"
            " has one history.",
            back,
        ),
    ),
    about_s=15,
    needs_disk=True,
)
