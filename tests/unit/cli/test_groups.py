"""The output of `hightide group`: rows, pages, and what a reset would do."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import typer

from hightide.cli import position, render
from hightide.cli.group.commands import only_named, print_lags
from hightide.cli.group.reset import Shift, moment, planned, target
from hightide.cli.group.rows import (
    group_details,
    group_page,
    lag_details,
    lag_page,
    named,
    refuse_members,
)
from hightide.cli.moment import age, duration_ms, iso
from hightide.cli.options import Failed
from hightide.cli.render import Output, counted
from hightide.client.model.cluster import Extent
from hightide.client.model.groups import (
    Commit,
    GroupDescription,
    GroupLag,
    GroupMember,
    PartitionLag,
    Rebalance,
)

NOW_MS = 1_800_000_000_000
ANN = GroupMember("ann-1", None, "ann", "/10.0.0.1", (("orders", 0), ("orders", 2)))
BOB = GroupMember("bob-1", "desk", "bob", "/10.0.0.2", (("orders", 1),))
GROUP = GroupDescription(
    group="shop",
    type="Classic",
    state="Stable",
    coordinator=2,
    protocol_type="consumer",
    assignor="range",
    generation=4,
    members=[ANN, BOB],
    leader="ann-1",
    since_ms=NOW_MS - 65_000,
    last_rebalance=Rebalance("bob-1 joined", NOW_MS - 66_000, 3),
)
LAG = GroupLag(
    GROUP,
    [
        PartitionLag(
            "orders",
            0,
            Commit(10, -1, "", NOW_MS - 2500),
            Extent(0, 25),
            NOW_MS - 5250,
            ANN,
        ),
        PartitionLag("orders", 1, None, Extent(0, 3), None, BOB),
        PartitionLag("pay", 0, Commit(7, -1, "x"), Extent(0, 7), None, None),
    ],
)


# -- looking -----------------------------------------------------------------------------------


def test_a_page_has_the_group_the_reason_of_the_last_rebalance_and_the_members():
    assert group_page(GROUP, NOW_MS).splitlines() == [
        "group           shop",
        "state           Stable for 1m05s",
        "type            Classic",
        "protocol        consumer",
        "assignor        range",
        "generation      4",
        "coordinator     2",
        "last rebalance  1m06s ago, after generation 3: bob-1 joined",
        "",
        "MEMBER  INSTANCE-ID  CLIENT-ID  HOST      PARTITIONS  ASSIGNMENT",
        "ann-1   -            ann        10.0.0.1           2  orders=0,2",
        "bob-1   desk         bob        10.0.0.2           1  orders=1",
    ]


def test_an_empty_group_of_another_cluster_has_a_page_too():
    bare = GroupDescription("shop", "Classic", "Empty", 2, "", "", None, [])
    assert group_page(bare, NOW_MS).splitlines()[-4:] == [
        "coordinator     2",
        "last rebalance  -",
        "",
        "The group has no members.",
    ]


def test_programs_get_times_in_iso_and_all_fields():
    found = render.plain(group_details(GROUP))
    assert found["since"] == "2027-01-15T07:58:55.000Z"
    assert found["last_rebalance"] == {
        "at": "2027-01-15T07:58:54.000Z",
        "reason": "bob-1 joined",
        "ended_generation": 3,
    }
    assert found["members"][0]["assignment"] == {"orders": [0, 2]}
    json.dumps(found)


def test_lag_is_shown_in_records_and_seconds():
    assert lag_page(lag_details(LAG, NOW_MS)).splitlines() == [
        "shop: Stable, 2 members, 15 records behind, 5.25 s",
        "",
        "TOPIC   PARTITION  COMMITTED  END  LAG  LAG-S  LAST-COMMIT  OWNER  HOST",
        "orders          0         10   25   15   5.25  2s           ann-1  10.0.0.1",
        "orders          1          -    3    -      -  -            bob-1  10.0.0.2",
        "pay             0          7    7    0   0.00  -            -      -",
    ]


def test_a_group_without_partitions_says_so():
    page = lag_page(lag_details(replace(LAG, partitions=[]), NOW_MS))
    assert page.splitlines()[1] == "The group has no commits, and its members have no partitions."


def test_only_the_topics_that_are_asked_for_count():
    found = only_named(LAG, [("pay", None)])
    assert [lag.topic for lag in found.partitions] == ["pay"]
    assert only_named(LAG, []) == LAG


def test_watching_prints_a_line_of_json_for_each_look(capsys):
    print_lags([lag_details(LAG, NOW_MS)], Output.JSON, True)
    (line,) = capsys.readouterr().out.splitlines()
    (group,) = json.loads(line)
    assert (group["lag_records"], group["lag_seconds"]) == (15, 5.25)
    assert group["partitions"][0]["committed_at"] == "2027-01-15T07:59:57.500Z"
    print_lags([], Output.TABLE, False)
    assert capsys.readouterr().err == "There are no groups.\n"


def test_who_is_in_the_way_is_said():
    with pytest.raises(
        Failed, match=r"cannot be reset while it has 2 members: ann-1 at 10\.0\.0\.1"
    ):
        refuse_members(GROUP, "reset")
    refuse_members(replace(GROUP, members=[]), "reset")
    assert named([BOB]) == "desk at 10.0.0.2"
    assert named([ANN] * 5).endswith("ann-1 at 10.0.0.1 and 2 more")
    assert counted(1, "member") == "1 member"


# -- times -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("passed_ms", "word"),
    [
        (-5, "0ms"),
        (350, "350ms"),
        (4_999, "4s"),
        (200_000, "3m20s"),
        (18_120_000, "5h02m"),
        (12 * 86_400_000 + 3 * 3_600_000, "12d03h"),
    ],
)
def test_an_age_is_one_word(passed_ms, word):
    assert age(NOW_MS - passed_ms, NOW_MS) == word
    assert age(None, NOW_MS) is None
    assert iso(None) is None


def test_durations_have_units():
    assert duration_ms("90s") == 90_000
    assert duration_ms("2H") == 7_200_000
    with pytest.raises(ValueError, match="is not a duration"):
        duration_ms("90")


# -- reset -------------------------------------------------------------------------------------


def test_where_to_is_said_once():
    assert target(None, 5, False, False, None) == position.Offset(5)
    assert target(None, None, True, False, None) == position.Beginning()
    assert target(None, None, False, True, None) == position.End()
    assert target(None, None, False, False, -3) == Shift(-3)
    assert isinstance(target("15m", None, False, False, None), position.Time)
    with pytest.raises(typer.BadParameter, match="give one of"):
        target(None, None, False, False, None)
    with pytest.raises(typer.BadParameter, match="not 2"):
        target("15m", 5, False, False, None)


def test_a_time_is_iso_an_age_or_milliseconds():
    assert moment("15m", NOW_MS) == position.Time(NOW_MS - 900_000)
    assert moment("1800000000000", 0) == position.Time(NOW_MS)
    assert moment("2027-01-15T08:00:00Z", 0) == position.Time(NOW_MS)
    with pytest.raises(typer.BadParameter, match="give milliseconds, not seconds"):
        moment("1800000000", NOW_MS)
    for text in ("-10", "beginning", "noon"):
        with pytest.raises(typer.BadParameter, match="is not a time"):
            moment(text, NOW_MS)


PARTITION = "orders", 0
COMMITS = {PARTITION: Commit(20, -1, "")}


@pytest.mark.parametrize(
    ("wanted", "at_time", "after"),
    [
        (position.Beginning(), None, 5),
        (position.End(), None, 50),
        (position.Offset(7), None, 7),
        (position.Offset(99), None, 50),
        (Shift(4), None, 24),
        (Shift(-4), None, 16),
        (Shift(-40), None, 5),
        (position.Time(1), 33, 33),
        (position.Time(1), None, 50),
    ],
)
def test_a_move_stays_inside_the_partition(wanted, at_time, after, capsys):
    row = planned(PARTITION, COMMITS, Extent(5, 50), wanted, at_time)
    assert (row.before, row.after, row.moved) == (20, after, after - 20)
    messages = capsys.readouterr().err
    assert ("becomes its" in messages) == (wanted in (position.Offset(99), Shift(-40)))


def test_nothing_can_be_shifted_that_was_not_committed():
    with pytest.raises(Failed, match="orders/0 cannot be shifted"):
        planned(PARTITION, {}, Extent(5, 50), Shift(1))
    row = planned(PARTITION, {}, Extent(5, 50), position.End())
    assert (row.before, row.after, row.moved) == (None, 50, None)
