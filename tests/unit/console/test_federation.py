"""The metrics of several brokers on one page that Prometheus reads."""

from __future__ import annotations

from hightide.console.federation import federate
from tests.support.scrape import Scrape

ONE = """\
# HELP bytes_total Bytes.
# TYPE bytes_total counter
bytes_total 1.0
bytes_total{topic="a{b} \\"c\\""} 2.0
# HELP time_seconds Time.
# TYPE time_seconds histogram
time_seconds_bucket{le="0.1"} 1
time_seconds_bucket{le="+Inf"} 2
time_seconds_sum 0.3
time_seconds_count 2
"""
OTHER = """\
# HELP bytes_total Bytes.
# TYPE bytes_total counter
bytes_total 5.0
# HELP only_here A gauge.
# TYPE only_here gauge
only_here{x="",} 7 1700000000000
"""


def test_each_sample_says_which_broker_it_is_of():
    text = federate({"1": ONE, "2": OTHER, "3": None})
    found = Scrape(text)
    assert found.value("bytes_total", broker="1") == 1
    assert found.value("bytes_total", broker="2") == 5
    assert found.value("bytes_total", broker="1", topic='a{b} "c"') == 2
    assert found.value("time_seconds_bucket", broker="1", le="+Inf") == 2
    assert found.value("only_here", broker="2", x="") == 7
    assert [found.value("hightide_broker_up", broker=n) for n in "123"] == [1, 1, 0]


def test_a_family_is_in_one_place_under_one_heading():
    lines = federate({"1": ONE, "2": OTHER}).splitlines()
    assert lines.count("# TYPE bytes_total counter") == 1
    assert lines.count("# HELP bytes_total Bytes.") == 1
    places = [n for n, line in enumerate(lines) if line.startswith("bytes_total{")]
    assert places == list(range(places[0], places[0] + 3))


def test_a_heading_without_samples_is_there_once():
    heading = "# HELP empty Nothing yet.\n# TYPE empty gauge\n"
    lines = federate({"1": heading, "2": heading + "empty 1\n"}).splitlines()
    assert lines[4:] == [*heading.splitlines(), 'empty{broker="2"} 1']


def test_a_page_without_comments_is_read_too():
    found = Scrape(federate({"1": "a 1\nb 2\n", "2": "a 3\n"}))
    assert found.value("a", broker="2") == 3
    assert found.value("b", broker="1") == 2
