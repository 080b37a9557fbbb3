"""Apps on a real broker: every kind of query, compared with plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import timedelta

import pandas as pd
import pytest
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import hightide.spark.streams as st
from hightide.spark.blocking_client import shared_client
from tests.spark.shop_data import NOON, at, moment, order, received, send, values, window_start
from tests.support.eventually import eventually

# The queries that these tests look at take most of a minute.
pytestmark = pytest.mark.extended

LATE_S = 10
ORDERS = "id BIGINT NOT NULL, user STRING, amount DOUBLE, ts TIMESTAMP"
# Two micro-batches see these; after the first of them the watermark is at 125 - 10 seconds.
FIRST = [order(n, ("ada", "bob", "eve")[n % 3], float(n), n * 5) for n in range(51)]
# The last sees these: on time, late within its window, too late, and the same order again.
# A batch drops rows that were late already when the previous batch started to write.
SECOND = [
    order(100, "ada", 100.0, 400),
    order(101, "bob", 7.0, 245),
    order(102, "ada", 9.0, 30),
    order(50, "eve", 50.0, 250),
    order(103, "bob", 3.0, 900),
]
HALF = 26
BATCHES = [FIRST[:HALF], FIRST[HALF:], SECOND]
WATERMARK_S = (HALF - 1) * 5 - LATE_S
BAD = b'{"id": "no number"}'


def best_so_far():
    """Return a processor class; made in a function, because Spark's workers cannot import this
    file.
    """

    class Best(StatefulProcessor):
        """The highest amount of each user so far, emitted whenever it rises."""

        def init(self, handle):
            self._best = handle.getValueState("best", "amount DOUBLE")

        def handleInputRows(self, key, rows, timer_values):
            highest = max(amount for bought in rows for amount in bought["amount"])
            known = self._best.get()[0] if self._best.exists() else None
            if known is None or highest > known:
                self._best.update((highest,))
                yield pd.DataFrame({"user": [key[0]], "best": [highest]})

    return Best()


def declare(app, topic):
    """Declare one query of each kind; all read the same topic."""
    orders = app.topic(
        topic,
        ORDERS,
        time="ts",
        late="10 s",
        on_error=f"dlq:{topic}-bad",
        options={"maxOffsetsPerTrigger": str(HALF)},
    )

    @app.query(to=f"{topic}-tumbling", key="user", partitions=2)
    def tumbling():
        total = F.sum("amount").alias("total")
        return orders.stream().groupBy(st.tumbling("1 minute"), "user").agg(total)

    @app.query(to=f"{topic}-sliding")
    def sliding():
        return orders.stream().groupBy(st.sliding("1 minute", "30 s")).count()

    @app.query(to=f"{topic}-sessions", key="user")
    def sessions():
        return orders.stream().groupBy(st.session("14 s"), "user").count()

    @app.query(to=f"{topic}-updates", key="user", mode="update", guarantee="at-least-once")
    def updates():
        return orders.stream().groupBy("user").agg(F.count("*").alias("n"))

    @app.query(to=f"{topic}-unique", key=["user", "id"])
    def unique():
        return orders.stream().dropDuplicatesWithinWatermark(["id"])

    @app.query(to=f"{topic}-best", mode="update")
    def best():
        return (
            orders.stream()
            .groupBy("user")
            .transformWithStateInPandas(best_so_far(), "user STRING, best DOUBLE", "Update", "None")
        )

    @app.query(to=f"{topic}-placed", partition="place", partitions=3)
    def placed():
        shout = F.udf(lambda user: user.upper(), "string")
        rows = orders.stream().where("amount >= 40")
        return rows.select("_key", "id", shout("user").alias("user"), F.expr("int(id % 3) place"))

    app.sql(
        "per_user",
        f"SELECT user, sum(amount) AS total FROM `{topic}` GROUP BY user",
        to=f"{topic}-complete",
        mode="complete",
    )


@pytest.fixture(scope="module", autouse=True)
def lightly(spark):
    """Settings for few rows: Spark would spend most of its time compiling code."""
    name = "spark.sql.codegen.wholeStage"
    spark.conf.set(name, "false")
    yield
    spark.conf.unset(name)


@pytest.fixture(scope="module")
def shop(spark, broker, tmp_path_factory):
    """All queries, run on the orders in three micro-batches."""
    topic = broker.create_topic("shop")
    app = st.App("shop", brokers=broker.bootstrap, state=tmp_path_factory.mktemp("state"))
    declare(app, topic)
    send(broker, topic, FIRST, key="user")
    send(broker, topic, [("bad", BAD)])
    send(broker, topic, SECOND, key="user")
    app.run(once=True)
    return app


def seconds(row):
    return (moment(row["ts"]) - NOON).total_seconds()


def on_time(size):
    """Return the orders whose window was still open when they came."""
    still = [bought for bought in SECOND if seconds(bought) // size * size + size > WATERMARK_S]
    return FIRST + still


def closed(start, size):
    """Return whether a window ended before the last watermark."""
    return start + timedelta(seconds=size) <= at(900 - LATE_S)


def test_tumbling_windows_leave_out_what_comes_too_late(broker, shop):
    totals = defaultdict(float)
    for bought in on_time(60):
        totals[window_start(seconds(bought), 60), bought["user"]] += bought["amount"]
    expected = {key: total for key, total in totals.items() if closed(key[0], 60)}
    found = received(broker, "shop-tumbling")
    assert all(key == row["user"] for key, row in found)
    assert Counter(
        (moment(row["window"]["start"]), row["user"], row["total"]) for _, row in found
    ) == Counter((*key, total) for key, total in expected.items())
    # The order of half a minute past noon came after its window had been written.
    assert (NOON, "ada") in expected
    assert len(expected) > 10


def test_sliding_windows_count_a_row_in_each_window_that_it_is_in(broker, shop):
    expected = Counter()
    for first in range(-30, 900, 30):
        rows = [
            bought
            for bought in FIRST + [row for row in SECOND if first + 60 > WATERMARK_S]
            if first <= seconds(bought) < first + 60
        ]
        if rows and closed(at(first), 60):
            expected[at(first), len(rows)] += 1
    found = values(broker, "shop-sliding")
    assert Counter((moment(row["window"]["start"]), row["count"]) for row in found) == expected


def test_sessions_end_when_nothing_happens(broker, shop):
    # Each user orders every 15 seconds, so no two orders are in one session of 14; but bob's late
    # order joins his session of that time.
    times = defaultdict(list)
    for bought in FIRST + [row for row in SECOND if seconds(row) + 14 > WATERMARK_S]:
        times[bought["user"]].append(seconds(bought))
    expected = Counter()
    for user, stamps in times.items():
        start, last, count = None, None, 0
        for stamp in [*sorted(stamps), None]:
            if last is not None and (stamp is None or stamp > last + 14):
                if last + 14 <= 900 - LATE_S:
                    expected[user, at(start), at(last + 14), count] += 1
                start, count = stamp, 0
            start = stamp if start is None else start
            last, count = stamp, count + 1
    found = Counter(
        (key, moment(row["window"]["start"]), moment(row["window"]["end"]), row["count"])
        for key, row in received(broker, "shop-sessions")
    )
    assert found == expected
    assert any(count > 1 for *_, count in expected)


def test_an_update_tells_each_change_of_a_count(broker, shop):
    expected, counts = [], Counter()
    for rows in BATCHES:
        changed = {bought["user"] for bought in rows}
        counts.update(bought["user"] for bought in rows)
        expected += [(user, counts[user]) for user in changed]
    found = [(key, row["n"]) for key, row in received(broker, "shop-updates")]
    assert Counter(found) == Counter(expected)


def test_a_complete_result_comes_whole_each_time(broker, shop):
    totals, total = [], defaultdict(float)
    for rows in BATCHES:
        for bought in rows:
            total[bought["user"]] += bought["amount"]
        totals += total.items()
    found = [(row["user"], row["total"]) for row in values(broker, "shop-complete")]
    assert Counter(found) == Counter(totals)


def test_a_row_that_comes_twice_within_the_watermark_counts_once(broker, shop):
    late = {bought["id"] for bought in SECOND if seconds(bought) <= WATERMARK_S}
    expected = {
        bought["id"]: bought["user"] for bought in FIRST + SECOND if bought["id"] not in late
    }
    found = received(broker, "shop-unique")
    assert sorted(row["id"] for _, row in found) == sorted(expected)
    assert found[0][0] == f'{{"user":"{found[0][1]["user"]}","id":{found[0][1]["id"]}}}'


def test_a_processor_keeps_state_of_its_own(broker, shop):
    expected, best = [], {}
    for rows in BATCHES:
        highest = defaultdict(float)
        for bought in rows:
            highest[bought["user"]] = max(highest[bought["user"]], bought["amount"])
        for user, amount in highest.items():
            if amount > best.get(user, -1):
                best[user] = amount
                expected.append((user, amount))
    found = [(row["user"], row["best"]) for row in values(broker, "shop-best")]
    assert Counter(found) == Counter(expected)


def test_rows_go_where_their_column_says_and_keep_their_key(broker, shop):
    expected = {bought["id"]: bought["user"] for bought in FIRST + SECOND if bought["amount"] >= 40}
    found = received(broker, "shop-placed")
    assert Counter((key, row["id"]) for key, row in found) == Counter(
        (bought["user"], bought["id"]) for bought in FIRST + SECOND if bought["amount"] >= 40
    )
    assert {row["user"] for _, row in found} == {user.upper() for user in expected.values()}
    assert all(set(row) == {"id", "user"} for _, row in found)
    raw = shared_client({"bootstrap.servers": broker.bootstrap})
    ends = raw.offsets({("shop-placed", number): -1 for number in range(3)})
    assert all(end > 0 for end in ends.values())


def test_a_bad_record_goes_to_the_dead_letters_once_with_its_reason(broker, spark, shop):
    options = {"kafka.bootstrap.servers": broker.bootstrap, "includeHeaders": "true"}
    reader = spark.read.format("hightide").options(**options, subscribe="shop-bad")
    (letter,) = reader.load().where("value IS NOT NULL").collect()
    headers = {header["key"]: bytes(header["value"]).decode() for header in letter["headers"]}
    assert (bytes(letter["key"]), bytes(letter["value"])) == (b"bad", BAD)
    assert "id should be bigint" in headers["hightide.error"]
    assert headers["hightide.source.topic"] == "shop"


def test_progress_shows_as_the_lag_of_a_group(broker, shop):
    client = shared_client({"bootstrap.servers": broker.bootstrap})
    ends = client.offsets({("shop", 0): -1})
    for query in ("tumbling", "updates", "shop-dead-letters"):
        group = shop.group(query)
        committed = eventually(lambda named=group: client.committed(named, list(ends)))
        assert {where: offset for where, (offset, _) in committed.items()} == ends
