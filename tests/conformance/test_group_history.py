"""The checker of groups finds every anomaly, and none in a correct history."""

from __future__ import annotations

import pytest

from hightide.wire.records.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataMember,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tests.conformance.group_history import (
    AnomaliesFound,
    Event,
    GroupHistory,
    Written,
    check_group_log,
)
from tests.conformance.raw_group import share

P = ("topic", 0)
RIGHT = [
    (1, "one", "assigned", 0, {P: None}),
    (2, "one", "delivered", 1, {P: (0, 4)}),
    (3, "one", "committing", 1, {P: 5}),
    (4, "one", "committed", 1, {P: 5}),
    (5, "one", "revoked", 0, {P: None}),
    (6, "two", "assigned", 0, {P: None}),
    (7, "two", "delivered", 2, {P: (5, 9)}),
    (8, "two", "committing", 2, {P: 10}),
    (9, "two", "committed", 2, {P: 10}),
    (10, "two", "ended", 0, {}),
]


def kinds(rows, end=10):
    history = GroupHistory()
    for at_s, member, kind, generation, offsets in rows:
        history.note(Event(at_s, member, kind, generation or -1, offsets, begun_s=at_s - 0.5))
    return {anomaly.kind for anomaly in history.anomalies({P: end})}


def changed(at, row):
    return [*RIGHT[:at], row, *RIGHT[at + 1 :]]


def given_over(*, in_generation, taken_in):
    """Two members have a partition for a moment, until the first learns that it was revoked."""
    rows = changed(5, (6, "two", "assigned", in_generation, {P: None}))
    rows[4] = (6.5, "one", "revoked", taken_in, {P: None})
    return rows


def test_nothing_is_found_in_what_is_right():
    assert kinds(RIGHT) == set()


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (RIGHT[:7], set()),
        (changed(6, (7, "two", "delivered", 2, {P: (6, 9)})), {"unseen", "skip"}),
        (changed(6, (7, "two", "delivered", 2, {P: (3, 9)})), {"went-back"}),
        (changed(6, (7, "two", "delivered", 1, {P: (5, 9)})), {"two-owners"}),
        (changed(4, (6.5, "one", "revoked", 0, {P: None})), {"overlap"}),
        (changed(4, (6.5, "one", "lost", 0, {P: None})), set()),
        (given_over(in_generation=2, taken_in=1), {"overlap"}),
        (given_over(in_generation=2, taken_in=2), set()),
        ([*RIGHT[:9], (9.5, "two", "delivered", 2, {P: (11, 12)})], {"gap", "unseen"}),
        ([*RIGHT[:9], (9.5, "two", "delivered", 2, {P: (9, 9)})], {"repeat"}),
        (
            [*RIGHT[:9], (9.5, "two", "delivered", 1, {P: (10, 10)})],
            {"generation-went-back", "two-owners"},
        ),
        ([*RIGHT, (9.8, "one", "committed", 1, {P: 5})], {"old-generation"}),
        ([*RIGHT, (11, "one", "error", 0, {})], {"error"}),
    ],
)
def test_what_is_wrong_is_found(rows, found):
    assert kinds(rows, end=13 if "gap" in found else 10) == found


# -- the coordinator's log -----------------------------------------------------------------------


def generation(number, *shares):
    members = [
        GroupMetadataMember(
            member_id=str(at),
            client_id="",
            client_host="",
            session_timeout=1,
            subscription=b"",
            assignment=share(*partitions),
        )
        for at, partitions in enumerate(shares)
    ]
    value = GroupMetadataValue(
        protocol_type="consumer", generation=number, protocol="range", leader="0", members=members
    )
    return Written(GroupMetadataKey(group="g"), value)


def offset(number):
    key = OffsetCommitKey(group="g", topic=P[0], partition=P[1])
    return Written(key, OffsetCommitValue(offset=number, metadata="", commit_timestamp=0))


def test_a_log_that_only_goes_on_is_right():
    log = [generation(1, [P]), offset(3), generation(2, [], [P]), offset(3), offset(7)]
    assert check_group_log(log, [P]) == 2


@pytest.mark.parametrize(
    ("log", "found"),
    [
        ([generation(2, [P]), generation(1, [P])], "generation-went-back"),
        ([offset(7), offset(6)], "commit-went-back"),
        ([generation(1, [P], [P])], "shared-twice"),
    ],
)
def test_a_log_that_goes_back_is_not(log, found):
    with pytest.raises(AnomaliesFound, match=found):
        check_group_log(log, [P])
