"""The checker finds every anomaly, and none in a correct history."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.checker import check
from tests.chaos.history import END_MARKER, NEMESIS, Operation
from tests.unit.chaos.stories import P, Story, log_of


@pytest.fixture
def story() -> Story:
    made = Story()
    made.open("w", "writer")
    return made


def copying(story: Story, transactions: int = 2) -> None:
    """A copier copies records 0, 1, 2, 3 in transactions of two, to partitions of `copy`."""
    story.write("w", 0, 2 * transactions, 0)
    story.open("c", "copier", source="t", target="copy")
    story.note("c", "ok", "init", "id")
    for number in range(transactions):
        story.note("c", "invoke", "begin", number)
        story.send("c", 2 * number, 2 * number + 2, number, "copy-0")


def copied(story: Story, *sources: int) -> None:
    """The final copies, each of one offset of the source; the copy's number is the source."""
    log = log_of("c", *sources)
    story.final(log_of("w", *range(4)))
    story.note("c", "ok", "end", [P, 4])
    story.final(log, "copy-0", dict(enumerate(sources)))


# -- correct histories -------------------------------------------------------------------------


def test_a_log_that_has_everything_is_in_order(story: Story) -> None:
    story.write("w", 0, 3, 0)
    story.write("w", 3, 5, 3)
    log = log_of("w", *range(5))
    story.open("r", "reader")
    story.read("r", log)
    story.final(log)
    findings = story.check()
    assert findings.anomalies == []
    assert findings.totals["acknowledged"] == 5
    assert findings.totals["read"] == 6  # with the end marker


def test_a_send_without_an_answer_may_be_there_or_not(story: Story) -> None:
    story.write("w", 0, 2, 0)
    story.send("w", 2, 4)
    story.note("w", "info", "send", [P, [[3, 1]]], "_MSG_TIMED_OUT")
    story.final(log_of("w", 0, 1, 2))
    assert story.kinds() == set()


def test_a_writer_without_acks_all_may_lose_records() -> None:
    story = Story()
    story.open("w", "writer", durable=False, idempotent=False)
    story.write("w", 0, 2, 0)
    story.final(log_of("w", 0))
    assert story.kinds() == set()


def test_a_writer_without_idempotence_may_write_twice() -> None:
    story = Story()
    story.open("w", "writer", idempotent=False)
    story.write("w", 0, 2, 0)
    story.final(log_of("w", 0, 1, 0))
    assert story.kinds() == set()


def test_a_compacted_log_keeps_the_last_record_of_each_key() -> None:
    story = Story()
    story.open("w", "writer", keys=2)
    story.write("w", 0, 4, 0)
    story.open("r", "reader")
    story.read("r", log_of("w", 0, 1, 2, 3))
    story.final([("", 0), ("", 0), ("w", 2), ("w", 3)])
    assert story.kinds() == set()


def test_a_compacted_log_without_the_last_record_of_a_key_lost_it() -> None:
    story = Story()
    story.open("w", "writer", keys=2)
    story.write("w", 0, 4, 0)
    story.final([("", 0), ("w", 1), ("w", 2)])
    (found,) = story.check().anomalies
    assert (found.kind, found.count) == ("lost", 1)
    assert "#3" in found.text


def test_a_group_may_read_again_after_it_got_the_partition_again(story: Story) -> None:
    story.write("w", 0, 4, 0)
    story.open("m.1", "member", group="g")
    story.open("m.2", "member", group="g")
    story.start("m.1")
    story.poll("m.1", 0, "w", 0, 3)
    story.commit_offset("m.1", 2)
    story.committed("m.2", 2)
    story.start("m.2", 2)
    story.poll("m.2", 2, "w", 2, 4)
    story.poll("m.2", 4, END_MARKER, 0, 1)
    story.note("m.2", "ok", "end", [P, 4])
    story.final(log_of("w", 0, 1, 2, 3))
    assert story.kinds() == set()


def test_a_copy_with_an_abort_and_an_unknown_commit_is_in_order(story: Story) -> None:
    copying(story, 3)
    story.note("c", "ok", "abort", 0)
    story.commit("c", 1)
    story.commit("c", 2, "info")
    story.final(log_of("w", *range(6)))
    story.note("c", "ok", "end", [P, 6])
    log = [("", 0), ("", 0), *log_of("c", 2, 3), ("", 0), *log_of("c", 4, 5)]
    sources = {2: 0, 3: 1, 5: 2, 6: 3}
    story.final(log, "copy-0", sources)
    kinds = story.kinds()
    assert kinds == {"copy-lost"}  # of the aborted transaction: it copies again in real runs


# -- one anomaly each --------------------------------------------------------------------------


def test_an_acknowledged_record_that_is_gone_is_lost(story: Story) -> None:
    story.write("w", 0, 6, 0)
    story.final(log_of("w", 0, 1, 5))
    findings = story.check()
    assert findings.kinds() == {"lost", "inconsistent-offsets"}
    assert findings.count("lost") == 3


def test_anomalies_of_consecutive_records_are_joined(story: Story) -> None:
    story.write("w", 0, 4, 0)
    story.final(log_of("w", 0, 1, 2, 3, 0, 1, 2, 3))
    (found,) = story.check().anomalies
    assert (found.kind, found.count, found.offsets) == ("duplicate", 4, (0, 4))


def test_an_empty_log_lost_everything(story: Story) -> None:
    story.write("w", 0, 3, 0)
    story.final([])
    assert story.check().count("lost") == 3


def test_a_log_that_cannot_be_read_is_unreachable(story: Story) -> None:
    story.write("w", 0, 1, 0)
    assert "unreachable" in story.kinds()


def test_a_record_that_is_there_twice_is_a_duplicate(story: Story) -> None:
    story.write("w", 0, 2, 0)
    story.final(log_of("w", 0, 1, 1))
    (found,) = story.check().anomalies
    assert (found.kind, found.offsets) == ("duplicate", (1, 2))


def test_records_in_another_order_than_they_were_sent_are_reordered(story: Story) -> None:
    story.send("w", 0, 3)
    story.note("w", "ok", "send", [P, [[0, 1, 0], [2, 1, 1], [1, 1, 2]]])
    story.final(log_of("w", 0, 2, 1))
    assert story.kinds() == {"reordered"}


def test_a_record_behind_one_that_was_sent_after_its_acknowledgement_is_reordered(
    story: Story,
) -> None:
    story.open("x", "writer")
    story.send("w", 0, 1)
    story.note("w", "ok", "send", [P, [[0, 1, -1]]])
    story.send("x", 0, 1)
    story.final([("x", 0), ("w", 0)])
    assert story.kinds() == {"reordered"}


def test_records_of_two_writers_at_the_same_time_have_any_order(story: Story) -> None:
    story.open("x", "writer")
    story.send("w", 0, 1)
    story.send("x", 0, 1)
    story.acked("w", 0, 1, 1)
    story.acked("x", 0, 1, 0)
    story.final([("x", 0), ("w", 0)])
    assert story.kinds() == set()


def test_a_refused_record_must_not_be_written(story: Story) -> None:
    story.send("w", 0, 1)
    story.note("w", "fail", "send", [P, [[0, 1]]], "MESSAGE_TOO_LARGE")
    story.final(log_of("w", 0))
    assert story.kinds() == {"refused-written"}


def test_a_record_that_was_never_sent_is_a_phantom(story: Story) -> None:
    story.write("w", 0, 1, 0)
    story.final([("w", 0), ("w", 1), ("stranger", 0)])
    assert story.check().count("phantom") == 2


def test_an_offset_without_a_record_is_a_hole(story: Story) -> None:
    story.write("w", 0, 1, 0)
    story.write("w", 1, 2, 2)
    story.final([("w", 0), ("", 0), ("w", 1)])
    assert story.kinds() == {"hole"}


def test_a_record_that_was_read_and_is_gone_was_a_dirty_read(story: Story) -> None:
    story.write("w", 0, 1, 0)
    story.send("w", 1, 2)
    story.open("r", "reader")
    story.start("r")
    story.poll("r", 0, "w", 0, 2)
    process = "final.9"
    story.open(process, "final")
    story.note(process, "ok", "final", [P, [[0, 1, "w", 0, -1, -1]]])
    story.note(process, "ok", "end", [P, 1])
    assert story.kinds() == {"dirty-read"}


def test_two_records_at_one_offset_are_inconsistent(story: Story) -> None:
    story.open("x", "writer")
    story.send("w", 0, 1)
    story.send("x", 0, 1)
    story.open("r", "reader")
    story.start("r")
    story.poll("r", 0, "w", 0, 1)
    story.final([("x", 0)])
    assert story.kinds() == {"inconsistent-offsets"}


def test_an_acknowledged_offset_with_another_record_is_inconsistent(story: Story) -> None:
    story.send("w", 0, 2)
    story.acked("w", 0, 2, 1)
    story.final([("w", 0), ("w", 1)])
    assert story.kinds() == {"inconsistent-offsets"}


def test_a_reader_that_jumps_skipped_a_record(story: Story) -> None:
    story.write("w", 0, 3, 0)
    story.open("r", "reader")
    story.start("r")
    story.poll("r", 0, "w", 0, 1)
    story.poll("r", 2, "w", 2, 3)
    story.final(log_of("w", 0, 1, 2))
    assert story.kinds() == {"skipped"}


def test_a_reader_that_goes_back_reads_again(story: Story) -> None:
    story.write("w", 0, 3, 0)
    story.open("r", "reader")
    story.start("r")
    story.poll("r", 0, "w", 0, 3)
    story.poll("r", 1, "w", 1, 2)
    story.final(log_of("w", 0, 1, 2))
    assert story.kinds() == {"reread"}


def test_a_record_that_no_member_of_a_group_got_is_unseen(story: Story) -> None:
    story.write("w", 0, 4, 0)
    story.open("m.1", "member", group="g")
    story.open("m.2", "member", group="g")
    story.start("m.1")
    story.poll("m.1", 0, "w", 0, 1)
    story.start("m.2", 2)
    story.poll("m.2", 2, "w", 2, 4)
    story.poll("m.2", 4, END_MARKER, 0, 1)
    story.note("m.2", "ok", "end", [P, 4])
    story.final(log_of("w", 0, 1, 2, 3))
    (found,) = story.check().anomalies
    assert (found.kind, found.offsets) == ("unseen", (1,))


def test_a_damaged_record_is_reported(story: Story) -> None:
    story.write("w", 0, 1, 0)
    story.note("r", "info", "poll", [P, 0, "00ff"], "damaged")
    story.final(log_of("w", 0))
    assert story.kinds() == {"damaged"}


def test_a_reader_that_gives_up_is_reported(story: Story) -> None:
    story.note("r", "info", "poll", [P, 7], "OFFSET_OUT_OF_RANGE")
    assert story.kinds() == {"reader-error"}


def test_a_part_of_a_transaction_is_torn(story: Story) -> None:
    copying(story)
    story.commit("c", 0)
    story.commit("c", 1, "info")
    copied(story, 0, 1, 2)
    assert "torn-transaction" in story.kinds()


def test_a_committed_transaction_without_records_is_lost(story: Story) -> None:
    copying(story)
    story.commit("c", 0)
    story.commit("c", 1)
    copied(story, 0, 1)
    assert story.kinds() == {"lost-transaction", "copy-lost"}


def test_a_record_of_an_aborted_transaction_is_aborted_visible(story: Story) -> None:
    copying(story)
    story.commit("c", 0)
    story.note("c", "ok", "abort", 1)
    copied(story, 0, 1, 2, 3)
    assert story.kinds() == {"aborted-visible"}


def test_a_record_of_a_transaction_that_nothing_committed_is_aborted_visible(story: Story) -> None:
    copying(story)
    story.commit("c", 0)
    copied(story, 0, 1, 2, 3)
    assert story.kinds() == {"aborted-visible"}


def test_a_record_that_was_read_before_its_commit_is_an_early_read(story: Story) -> None:
    copying(story)
    story.commit("c", 0)
    story.open("r", "reader")
    story.start("r", 0, "copy-0")
    story.poll("r", 0, "c", 0, 2, transaction=0, at="copy-0")
    story.poll("r", 2, "c", 2, 4, transaction=1, at="copy-0")
    story.commit("c", 1)
    copied(story, 0, 1, 2, 3)
    assert story.kinds() == {"early-read"}


def test_a_commit_after_a_successor_took_over_is_a_zombie(story: Story) -> None:
    copying(story)
    story.commit("c", 0)
    story.note("d", "ok", "init", "id")
    story.commit("c", 1)
    copied(story, 0, 1, 2, 3)
    assert story.kinds() == {"zombie"}


def test_records_of_a_former_owner_behind_those_of_its_successor_are_reordered() -> None:
    story = Story()
    for process in ("c", "d"):
        story.open(process, "transactional")
        story.note(process, "ok", "init", "id")
        story.note(process, "invoke", "begin", 0)
        story.send(process, 0, 1, 0)
        story.commit(process, 0, "info")
    before = list(story.operations)
    story.final([("c", 0), ("d", 0)])
    assert story.kinds() == set()
    story.operations = before
    story.final([("d", 0), ("c", 0)])
    assert story.kinds() == {"reordered"}


@pytest.mark.parametrize(
    ("sources", "kind"),
    [
        ((0, 1, 3), "copy-lost"),
        ((0, 1, 1, 2, 3), "copy-duplicate"),
        ((0, 2, 1, 3), "copy-reordered"),
    ],
)
def test_a_copy_that_is_not_its_source_is_reported(
    story: Story, sources: tuple[int, ...], kind: str
) -> None:
    story.write("w", 0, 4, 0)
    story.open("c", "copier", source="t", target="copy")
    story.note("c", "invoke", "begin", 0)
    story.send("c", 0, len(sources), 0, "copy-0")
    story.commit("c", 0)
    story.final(log_of("w", *range(4)))
    story.note("c", "ok", "end", [P, 4])
    story.final(log_of("c", *range(len(sources))), "copy-0", dict(enumerate(sources)))
    assert story.kinds() == {kind}


def test_a_committed_offset_that_goes_back_is_reported(story: Story) -> None:
    story.open("m.1", "member", group="g")
    story.open("m.2", "member", group="g")
    story.commit_offset("m.1", 5)
    story.commit_offset("m.1", 9)
    story.committed("m.2", 5)
    assert story.kinds() == {"commit-went-back"}


def test_an_offset_that_is_gone_went_back(story: Story) -> None:
    story.open("m.1", "member", group="g")
    story.commit_offset("m.1", 5)
    story.committed("m.1", -1)
    assert story.kinds() == {"commit-went-back"}


def test_the_offsets_of_a_transaction_are_committed_offsets(story: Story) -> None:
    story.open("c", "copier", source="t", target="copy")
    story.commit("c", 0, t_0=7)
    story.committed("c", 3)
    assert story.kinds() == {"commit-went-back"}


def test_a_commit_without_an_answer_may_come_late(story: Story) -> None:
    story.open("m.1", "member", group="g")
    story.commit_offset("m.1", 5, "info")
    story.commit_offset("m.1", 9)
    story.committed("m.1", 5)
    assert story.kinds() == set()


def test_a_client_that_crashed_is_reported(story: Story) -> None:
    story.note(NEMESIS, "info", "client-ended", {"client": "r.1", "code": -9})
    assert story.kinds() == set()
    story.note(NEMESIS, "info", "client-ended", {"client": "r.2", "code": -6})
    assert story.kinds() == {"client-crashed"}


def test_what_was_waited_for_in_vain_is_unreachable(story: Story) -> None:
    story.note(NEMESIS, "info", "missed", "a reader did not come to the end")
    assert story.kinds() == {"unreachable"}


# -- gaps and faults ---------------------------------------------------------------------------


def test_the_longest_gap_is_measured_for_each_fault(story: Story) -> None:
    story.write("w", 0, 1, 0)
    story.fault("kill", ticks=100)
    story.write("w", 1, 2, 1)
    story.fault("pause", ticks=10)
    story.wait(20)
    story.write("w", 2, 3, 2)
    story.note(NEMESIS, "info", "drain", None)
    story.final(log_of("w", 0, 1, 2))
    kill, pause = story.check().rows()
    assert (kill.fault, kill.cycles, kill.acknowledged, kill.healed) == ("kill", 1, 1, 1)
    assert kill.longest_gap_s == pytest.approx(1.05)
    assert kill.after_heal_s == pytest.approx(0.02)
    assert pause.longest_gap_s == pytest.approx(0.35)
    assert pause.after_heal_s == pytest.approx(0.22)


def test_a_partition_that_never_comes_back_is_not_healed(story: Story) -> None:
    story.write("w", 0, 1, 0)
    story.fault("kill", ticks=10)
    story.wait(500)
    story.note(NEMESIS, "info", "drain", None)
    story.final(log_of("w", 0))
    findings = story.check()
    (row,) = findings.rows()
    assert row.healed == 0
    assert row.longest_gap_s > 5
    assert "0 of 1" in findings.text()


def test_a_lost_record_is_counted_at_the_fault_that_followed_it(story: Story) -> None:
    story.fault("first")
    story.write("w", 0, 1, 0)
    story.fault("second")
    story.fault("third")
    story.final([])
    assert [(row.fault, row.lost) for row in story.check().rows()] == [
        ("first", 0),
        ("second", 1),
        ("third", 0),
    ]


# -- evidence ----------------------------------------------------------------------------------


def test_an_anomaly_shows_its_operations(story: Story, tmp_path: Path) -> None:
    story.write("w", 0, 5, 0)
    story.open("r", "reader")
    story.start("r")
    story.poll("r", 0, "w", 0, 5)
    story.final(log_of("w", 0, 1, 2, 3))
    folder(tmp_path, story.operations)
    findings = check(tmp_path)
    lost = next(found for found in findings.anomalies if found.kind == "lost")
    shown = "\n".join(lost.evidence)
    assert "w invoke send t-0 #0 to #4" in shown
    assert "w ok send t-0 #0 to #4 at offset 0" in shown
    assert "r ok poll t-0 offsets 0 to 4: w from #0 on" in shown
    assert all(line in findings.text() for line in lost.evidence)


def folder(path: Path, operations: list[Operation]) -> None:
    """Write a history as client processes do, with the torn last line of a killed one."""
    for operation in operations:
        with (path / f"{operation.process}.jsonl").open("a") as file:
            file.write(json.dumps(operation._asdict()) + "\n")
    with (path / "w.jsonl").open("a") as file:
        file.write('{"process": "w", "type": "inv')


# -- any history -------------------------------------------------------------------------------

WRITERS = ("a", "b", "c")


@given(st.lists(st.tuples(st.sampled_from(WRITERS), st.booleans()), max_size=40))
def test_any_log_explains_its_own_history(sends: list[tuple[str, bool]]) -> None:
    """Writers send one record after the other; each is acknowledged, or its outcome is unknown."""
    story, log = told(sends)
    story.final(log)
    assert story.check().anomalies == []


@given(
    st.lists(st.tuples(st.sampled_from(WRITERS), st.just(True)), min_size=2, max_size=40),
    st.data(),
)
def test_any_change_of_a_log_is_found(sends: list[tuple[str, bool]], data: st.DataObject) -> None:
    story, log = told(sends)
    at = data.draw(st.integers(0, len(log) - 1))
    change = data.draw(st.sampled_from(["remove", "repeat", "swap"]))
    if change == "remove":
        wrong, kind = [*log[:at], *log[at + 1 :]], "lost"
    elif change == "repeat":
        wrong, kind = [*log, log[at]], "duplicate"
    else:
        other = data.draw(st.integers(0, len(log) - 1).filter(lambda there: there != at))
        wrong, kind = list(log), "reordered"
        wrong[at], wrong[other] = wrong[other], wrong[at]
    story.final(wrong)
    assert kind in story.kinds()


def told(sends: list[tuple[str, bool]]) -> tuple[Story, list[tuple[str, int]]]:
    """A history of sends and of one reader, and the log that it makes."""
    story = Story()
    numbers = dict.fromkeys(WRITERS, 0)
    log: list[tuple[str, int]] = []
    for writer in WRITERS:
        story.open(writer, "writer")
    for writer, is_acked in sends:
        number = numbers[writer]
        numbers[writer] += 1
        story.send(writer, number, number + 1)
        log.append((writer, number))
        if is_acked:
            story.acked(writer, number, number + 1, len(log) - 1)
    return story, log
