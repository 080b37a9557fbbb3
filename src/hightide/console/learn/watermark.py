"""acks=all and the high watermark."""

from __future__ import annotations

from statistics import median

from hightide.client.model.cluster import Timestamp
from hightide.client.model.health import listed
from hightide.console.learn.scene import Scene, Step
from hightide.console.learn.stage import Stage
from hightide.console.learn.writing import ALL, LEADER_ONLY, write

RECORDS = 100
ROUNDS = 20


async def create(stage: Stage) -> None:
    found = await stage.create(3, min_insync_replicas=2)
    stage.sees(
        f"Broker {found.leader} leads. Replicas {listed(found.state.isr)} are in sync: they are"
        " the ISR.",
        leader=found.leader,
        isr=list(found.state.isr),
    )


async def write_all(stage: Stage) -> None:
    done = await stage.write(RECORDS)
    found = await stage.until(
        f"the high watermark is {RECORDS} on every replica",
        lambda now: all(one.high_watermark == RECORDS for one in now.statuses()),
    )
    ends = {one.replica: one.end_offset for one in found.statuses()}
    stage.sees(
        f"The leader answered after {done.ms:.1f} ms. All three logs end at {RECORDS}, and so does"
        " the high watermark: every record is committed.",
        high_watermark=RECORDS,
        end_offsets=ends,
        acknowledged_ms=round(done.ms, 2),
    )


async def compare(stage: Stage) -> None:
    times: dict[int, list[float]] = {ALL: [], LEADER_ONLY: []}
    for _ in range(ROUNDS):
        for acks, measured in times.items():
            measured.append((await write(stage.producer, stage.topic, 1, acks=acks)).ms)
    stage.piped("seq 20", "produce", stage.topic, "--acks", 1)
    stage.piped("seq 20", "produce", stage.topic, "--acks", "all")
    leader_ms, all_ms = median(times[LEADER_ONLY]), median(times[ALL])
    stage.sees(
        f"Half of the answers came within {leader_ms:.1f} ms with acks=1, and within {all_ms:.1f}"
        " ms with acks=all. The difference is the way to the followers and back: the price of"
        " keeping a record when a broker is lost.",
        acks_1_ms=round(leader_ms, 2),
        acks_all_ms=round(all_ms, 2),
    )


async def read(stage: Stage) -> None:
    stage.command("consume", stage.topic, "--from", "end", "--follow")
    end = RECORDS + 2 * ROUNDS
    await stage.until(
        f"the high watermark is {end}",
        lambda now: now.leader_report is not None and now.leader_report.high_watermark == end,
    )
    found = await stage.admin.records.offsets({(stage.topic, 0): Timestamp.LATEST})
    latest = found[stage.topic, 0].offset
    stage.sees(
        f"The end for consumers is offset {latest}: the high watermark, not the end of the"
        " leader's log. What could still be lost is never shown to a consumer.",
        latest=latest,
    )


SCENE = Scene(
    id="watermark",
    title="acks=all and the high watermark",
    intro=(
        "A record is committed when every in-sync replica has it. The high watermark (HW) is the"
        " offset up to which that is so. With acks=all the producer waits until the high watermark"
        " has passed its record."
    ),
    steps=(
        Step(
            "Create a topic with three replicas",
            "One partition, a copy on each of three brokers. One copy leads: it takes all writes,"
            " and the others fetch from it.",
            create,
        ),
        Step(
            f"Write {RECORDS} records with acks=all",
            "The leader appends them, the followers fetch them, and with their next fetch they say"
            " that they have them. Then the high watermark moves and the producer gets its answer.",
            write_all,
        ),
        Step(
            "Compare with acks=1",
            "With acks=1 the leader answers as soon as the record is in its own log. If it is lost"
            " a moment later, so is the record, although the producer was told that it is written.",
            compare,
        ),
        Step(
            "See where consumers stop",
            "Consumers read up to the high watermark and no further.",
            read,
        ),
    ),
    about_s=4,
)
