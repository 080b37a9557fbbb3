"""The page of the benchmarks: what was measured is in it, and what was not is not."""

from __future__ import annotations

import json
import re

import pytest

from bench.document import write
from bench.harness.lab import OTHERS, Metric, Workload, afresh
from bench.harness.report import Outcome, as_data

RATE = Metric("mb_per_s", "MB/s", more_is_better=True, ratio_goal=1.0, ratio_aim=1.3)
PRODUCE = "produce-1kb-64kb-p6-acks1-rf1"


def workload(name, rounds, *metrics, failures=None):
    made = Workload(name, f"title of {name}", metrics or (RATE,), afresh(lambda *_: {}))
    return as_data(Outcome(made, rounds, failures=failures or {}), "hightide")


def rates(mine, theirs=None):
    found = {"hightide": [{"mb_per_s": each} for each in mine]}
    return found if theirs is None else found | {"kafka": [{"mb_per_s": each} for each in theirs]}


@pytest.fixture
def page(tmp_path):
    """Writes runs to files and gives the page that is made of them."""

    def made(*runs, notes=(), subject="hightide"):
        paths = []
        for number, workloads in enumerate(runs):
            environment = {"machine": "2 CPUs (x), 8 GB", "data": "/somewhere on ext4"}
            data = {"environment": environment | {"notes": notes}, "workloads": workloads}
            if subject:
                data["subject"] = subject
            path = tmp_path / f"{number}.json"
            path.write_text(json.dumps(data))
            paths.append(path)
        write(paths, tmp_path)
        return (tmp_path / "benchmarks.md").read_text()

    return made


def test_a_ratio_is_held_to_its_bar(page):
    text = page([workload(PRODUCE, rates([300, 400, 350], [200] * 3))])
    assert "| **1.75** (1.50–2.00) | ≥ 1.0 | ≥ 1.3 | aim reached |" in text
    text = page([workload(PRODUCE, rates([1] * 3, [2] * 3))])
    assert "| **0.50** | ≥ 1.0 | ≥ 1.3 | **missed** |" in text


def test_a_verdict_of_one_round_is_doubted(page):
    text = page([workload(PRODUCE, rates([4], [2]))])
    assert "aim reached, but there was 1 round only" in text


def test_sections_without_a_workload_are_left_out(page):
    text = page([workload(PRODUCE, rates([3], [2]))])
    assert "## Produce, one broker" in text
    assert "## Consume" not in text
    assert "## What this does not show" in text


def test_alone_there_are_no_ratios_and_it_says_so(page):
    text = page([workload(PRODUCE, rates([300]))], notes=["Maven is not installed."])
    assert "Hightide alone" in text
    assert "> Maven is not installed." in text
    assert "## Bars" not in text
    assert "ratio |" not in text


def test_a_later_file_replaces_a_workload(page):
    consume = workload("consume-1kb-p6", rates([5], [5]))
    text = page(
        [workload(PRODUCE, rates([111], [1])), consume], [workload(PRODUCE, rates([7], [2]))]
    )
    assert "111" not in text
    assert "**3.50**" in text
    assert "## Consume" in text


def test_a_failure_is_told(page):
    failed = workload(PRODUCE, rates([3]), failures={"kafka": "it\ndied"})
    text = page([failed])
    assert f"Apache Kafka failed in “title of {PRODUCE}”: it died" in text
    assert "**" not in text.partition("## Produce")[2].partition("## What")[0]


def test_a_verdict_is_doubted_where_the_machine_was_not_quiet(page):
    rounds = {
        who: [{"mb_per_s": 5, OTHERS.key: cores}]
        for who, cores in {"hightide": 0.0, "kafka": 0.9}.items()
    }
    text = page([workload(PRODUCE, rounds, RATE, OTHERS)])
    assert "met, but the machine was not quiet and there was 1 round only" in text


def test_a_verdict_is_doubted_where_the_other_was_still_warming_up(page):
    text = page([workload(PRODUCE, rates([500] * 4, [100, 110, 200, 210]))])
    assert "aim reached, but Apache Kafka still got better from round to round" in text
    assert "95% better than the first" in text


def test_the_pipeline_does_not_replace_a_broker_s_workload_of_the_same_name(page):
    rounds = {"hightide": [{"rate": 2}], "connector": [{"rate": 1}]}
    rate = Metric("rate", "M rows/s", 2, more_is_better=True)
    text = page([workload("windows", rounds, rate)], subject=None)
    assert "## The pipeline on Spark" in text
    assert "| Hightide | Spark's connector | ratio |" in text


def test_every_plot_of_the_page_is_there_and_no_other(page, tmp_path):
    page([workload("consume-1kb-p6", rates([5], [5]))])
    text = page([workload(PRODUCE, rates([3], [2]))])
    named = set(re.findall(r"\(benchmarks/([\w-]+\.svg)\)", text))
    assert named == {path.name for path in (tmp_path / "benchmarks").iterdir()} == {"produce.svg"}


def test_curves_are_taken_from_keys_and_from_names(page, tmp_path):
    sizes = [Metric(f"produce_at_{size}", size) for size in ("0_1gb", "1gb", "10gb")]
    log = workload("growth-log", {"hightide": [{one.key: 5 for one in sizes}]}, *sizes)
    waits = Metric("rebalance_s", "s", 2)
    groups = [
        workload(f"rebalance-{n}", {"hightide": [{"rebalance_s": 1}]}, waits) for n in (1, 10, 50)
    ]
    page([log, *groups])
    drawn = (tmp_path / "benchmarks" / "growth.svg").read_text()
    assert all(f">{tick}</text>" in drawn for tick in ("0.1", "1", "10"))
    assert ">50</text>" in (tmp_path / "benchmarks" / "groups.svg").read_text()


def test_no_path_of_the_machine_gets_into_the_page(page):
    assert "/somewhere" not in page([workload(PRODUCE, rates([3], [2]))])


def test_waits_beside_an_abuse_have_a_row_for_each_abuse(page):
    worst = Metric("produce_worst_ms", "Produce, worst, ms", 1)
    rounds = {"hightide": [{"produce_worst_ms": 30}], "kafka": [{"produce_worst_ms": 60}]}
    text = page([workload("bystander-fetch-1m", rounds, worst)])
    assert "## One client abuses a broker" in text
    assert "Each cell has Hightide / Apache Kafka, and the ratio of waits." in text
    assert "| title of bystander-fetch-1m | 30.0 / 60.0 / **0.50** |" in text
