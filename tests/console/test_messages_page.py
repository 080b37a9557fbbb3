"""The page of messages in a real browser, over a real cluster."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from playwright.sync_api import Browser, Locator, Page, expect

from hightide.testing import Cluster
from tests.console.browsing import Tab, console, violations
from tests.console.browsing import tab as opened
from tests.console.conftest import OpenTab
from tests.support.eventually import eventually

pytestmark = pytest.mark.extended

expect.set_options(timeout=20_000)

SCRIPT = "<script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"
MANY = 12_000


@pytest.fixture(scope="module", autouse=True)
def producer(cluster: Cluster) -> Producer:
    for name in ("orders", "odd", "many", "live", "copies", "empty"):
        cluster.create_topic(name, partitions=2 if name in ("orders", "copies") else 1)
    made = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 20})
    for number in range(40):
        value = json.dumps({"number": number, "big": 9007199254740993, "tags": ["a", "b"]})
        made.produce("orders", value, key=f"k{number % 4}", partition=number % 2)
    odd: list[bytes | str | None] = [
        SCRIPT,
        "\u202egnp.exe\x00\x1b[31m",
        b"\xff\xfe\xfd",
        None,
        "x" * 900_000,
        json.dumps({"list": list(range(500))}),
    ]
    for contents in odd:
        made.produce("odd", contents, key=SCRIPT, headers=[(SCRIPT, b"\xff"), ("\u202eh", SCRIPT)])
    made.produce("odd", "headers", headers=[(f"h{n}", str(n)) for n in range(10_000)])
    for number in range(MANY):
        made.produce("many", f"value {number}", key=str(number))
        made.poll(0)
    assert made.flush(60) == 0
    return made


def rows(page: Page) -> Locator:
    return page.locator(".message")


def status(page: Page) -> Locator:
    return page.locator(".reading-status [role=status]")


def open_record(page: Page, place: str) -> Locator:
    page.get_by_title(f"Open {place}", exact=True).click()
    return page.get_by_role("dialog")


def test_the_last_records_are_shown_at_once_the_newest_first(tab: Tab) -> None:
    page = tab.open("/t/orders/m")
    expect(status(page)).to_contain_text("40 found in 40 records looked at")
    expect(rows(page).first).to_contain_text('"number": 39')


def test_a_filter_and_a_key_are_scanned_on_the_server(tab: Tab) -> None:
    page = tab.open("/t/orders/m")
    page.get_by_role("combobox", name="From").select_option("beginning")
    page.get_by_label("With the key").fill("k1")
    page.get_by_role("button", name="Read").click()
    expect(status(page)).to_contain_text("10 found in 40 records looked at")
    page.get_by_label("With the key").fill("")
    page.get_by_label("Containing").fill('"NUMBER": 17,')
    page.keyboard.press("Enter")
    expect(status(page)).to_contain_text("1 found in 40 records looked at")
    assert "text=" in page.url
    page.reload()
    expect(rows(page)).to_have_count(1)


def test_an_offset_of_a_partition_is_found(tab: Tab) -> None:
    page = tab.open("/t/orders/m?from=offset&offset=18&partitions=1")
    expect(rows(page)).to_have_count(2)
    expect(rows(page).first).to_contain_text('"number": 37')


def test_a_record_is_a_tree_with_exact_numbers(tab: Tab) -> None:
    page = tab.open("/t/orders/m?from=offset&offset=0&partitions=0&limit=100")
    dialog = open_record(page, "partition 0, offset 0")
    expect(dialog.locator(".json-number").nth(1)).to_have_text("9007199254740993")
    dialog.get_by_label("Value as").select_option("hex")
    expect(dialog.locator("section[aria-label=Value]")).to_contain_text("00000000  7b 22 6e")
    dialog.get_by_text("Copy as a command or as Python").click()
    expect(dialog.locator(".copy-as code").first).to_contain_text(
        "hightide consume orders --from 0 --partition 0 --count 1"
    )
    dialog.get_by_label("Python client").select_option("kafka_python")
    expect(dialog.locator(".program code")).to_contain_text("from kafka import KafkaConsumer")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_contents_never_become_part_of_the_page(tab: Tab) -> None:
    page = tab.open("/t/odd/m?from=beginning")
    expect(rows(page)).to_have_count(7)
    expect(rows(page).nth(0)).to_contain_text(SCRIPT)
    expect(rows(page).nth(1)).to_contain_text("⟨U+202E⟩gnp.exe␀␛[31m")
    expect(rows(page).nth(2)).to_contain_text("0xfffefd")
    expect(rows(page).nth(3)).to_contain_text("null")
    dialog = open_record(page, "partition 0, offset 0")
    expect(dialog.locator("section[aria-label=Value]")).to_contain_text(SCRIPT)
    expect(dialog.locator("section[aria-label=Headers]")).to_contain_text("⟨U+202E⟩h")
    assert page.evaluate("window.broken") is None
    assert "\u202e" not in page.locator("main").inner_text()
    assert page.locator("main img, main script").count() == 0


def test_a_large_value_is_cut_until_all_is_wanted(tab: Tab) -> None:
    page = tab.open("/t/odd/m?from=beginning")
    dialog = open_record(page, "partition 0, offset 4")
    value = dialog.locator("section[aria-label=Value] pre")
    assert len(value.inner_text()) == 2000
    dialog.get_by_role("button", name="Show all").click()
    expect(dialog.get_by_role("button", name="Show all")).to_have_count(0)
    assert len(value.inner_text()) == 900_000


def test_ten_thousand_headers_are_a_list_that_stays_small(tab: Tab) -> None:
    page = tab.open("/t/odd/m?from=beginning")
    dialog = open_record(page, "partition 0, offset 6")
    headers = dialog.locator("section[aria-label=Headers]")
    expect(headers).to_contain_text("and 9,980 more")
    dialog.get_by_role("button", name="Show all").click()
    expect(headers).not_to_contain_text("more")
    assert dialog.locator(".header-row").count() < 60
    headers.locator(".virtual").evaluate("list => list.scrollTop = list.scrollHeight")
    expect(headers).to_contain_text("h9999")


def test_ten_thousand_records_are_a_list_that_stays_small(tab: Tab) -> None:
    page = tab.open("/t/many/m?from=beginning&limit=10000")
    expect(status(page)).to_contain_text("10,000 found")
    assert rows(page).count() < 60
    page.locator(".virtual").evaluate("list => list.scrollTop = list.scrollHeight")
    expect(rows(page).last).to_contain_text("value 9999")
    page.get_by_role("button", name="Go on").click()
    expect(status(page)).to_contain_text("2,000 found")
    page.locator(".virtual").evaluate("list => list.scrollTop = list.scrollHeight")
    expect(rows(page).last).to_contain_text(f"value {MANY - 1}")


def test_a_tail_shows_new_records_and_pauses(tab: Tab, producer: Producer) -> None:
    page = tab.open("/t/live/m")
    page.get_by_role("button", name="Live", exact=True).click()
    expect(status(page)).to_contain_text("Live.")
    producer.produce("live", "first")
    producer.flush(20)
    expect(rows(page)).to_have_count(1)
    page.get_by_role("button", name="Pause").click()
    producer.produce("live", "second")
    producer.flush(20)
    expect(page.get_by_role("button", name="Resume (1 new)")).to_be_visible()
    expect(rows(page)).to_have_count(1)
    page.get_by_role("button", name="Resume (1 new)").click()
    expect(rows(page)).to_have_count(2)
    expect(rows(page).last).to_contain_text("second")
    page.get_by_role("button", name="Stop").click()
    expect(status(page)).to_contain_text("Stopped.")


def test_a_record_is_written(tab: Tab) -> None:
    page = tab.open("/t/empty/m?from=beginning")
    expect(page.locator(".message-list")).to_contain_text("No records here.")
    page.get_by_role("button", name="Write a record").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Key is").select_option("text")
    dialog.get_by_label("Key", exact=True).fill("k")
    dialog.get_by_label("Value", exact=True).fill("hello there")
    dialog.get_by_role("button", name="Add a header").click()
    dialog.get_by_label("Header name").fill("trace")
    dialog.get_by_label("Header value").fill("7")
    expect(dialog.locator(".command code")).to_contain_text(
        "hightide produce empty 'hello there' --key k --header trace=7"
    )
    dialog.get_by_role("button", name="Write", exact=True).click()
    expect(dialog.locator(".notice.ok")).to_contain_text("partition 0 at offset 0")
    dialog.get_by_role("button", name="Close").last.click()
    page.get_by_role("button", name="Read").click()
    expect(rows(page)).to_contain_text(["hello there"])


def test_a_selection_is_replayed_after_its_counts_are_seen(tab: Tab) -> None:
    page = tab.open("/t/orders/m?from=offset&offset=17")
    page.get_by_label("Select partition 0, offset 18").check()
    page.get_by_label("Select partition 1, offset 19").check()
    page.get_by_role("button", name="Replay 2").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To the topic").select_option("copies")
    expect(dialog.locator(".counts")).to_contain_text("2 records of 2 read")
    expect(dialog.locator(".counts")).to_contain_text("1 to partition 0, 1 to partition 1")
    expect(dialog.locator(".command code").first).to_contain_text(
        "hightide consume orders/0 --from 18 --count 1 --output json"
    )
    dialog.get_by_role("button", name="Write 2 records").click()
    expect(dialog.locator(".notice.ok")).to_contain_text("2 records written to copies")
    page = tab.open("/t/copies/m?from=beginning")
    expect(rows(page)).to_have_count(2)


def test_avro_is_decoded_with_a_pasted_schema(tab: Tab, producer: Producer) -> None:
    producer.produce("empty", b"\x0eAda L.!\x54", key="avro")
    producer.flush(20)
    page = tab.open("/t/empty/m?from=beginning&text=avro&places=key")
    expect(rows(page)).to_have_count(1)
    page.get_by_text("Formats, case, transactions").click()
    page.get_by_label("Values as").select_option("avro")
    schema = {
        "type": "record",
        "name": "P",
        "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": "int"}],
    }
    page.get_by_label("Avro schema").fill(json.dumps(schema))
    page.get_by_role("button", name="Read").click()
    expect(rows(page)).to_contain_text(['{"name": "Ada L.!", "age": 42}'])


def test_a_topic_that_is_not_there_says_so(tab: Tab) -> None:
    page = tab.page
    page.goto(f"{tab.url}/t/nowhere/m")
    expect(page.locator("main .notice.bad")).to_contain_text("nowhere")


def stream(console_url: str, topic: str, **params: str) -> HTTPResponse:
    query = urllib.parse.urlencode(params)
    address = f"{console_url}/api/v1/topics/{topic}/messages/stream?{query}"
    answer = urllib.request.urlopen(address, timeout=30)
    assert isinstance(answer, HTTPResponse)
    return answer


def first_event(answer: HTTPResponse) -> dict[str, Any]:
    found = json.loads(answer.readline().removeprefix(b"data: "))
    assert isinstance(found, dict)
    return found


def test_readings_are_few_and_end_with_their_pages(console_url: str) -> None:
    tails = [stream(console_url, "live", **{"from": "end", "follow": "1"}) for _ in range(12)]
    assert {first_event(tail)["type"] for tail in tails} == {"begin"}
    with stream(console_url, "live") as refused:
        assert "Too many" in first_event(refused)["error"]
    for tail in tails:
        tail.close()

    def is_free() -> bool:
        with stream(console_url, "live") as answer:
            return first_event(answer)["type"] == "begin"

    eventually(is_free)


def test_a_long_schema_fits_into_a_request(console_url: str) -> None:
    fields = [{"name": f"field_{n}", "type": ["null", "string"]} for n in range(700)]
    schema = json.dumps({"type": "record", "name": "Long", "fields": fields})
    assert len(schema) > 30_000
    with stream(console_url, "live", value_as="avro", schema=schema) as answer:
        assert first_event(answer)["type"] == "begin"


@pytest.mark.parametrize("width", [375, 1440])
def test_the_dialogs_are_for_everyone(open_tab: OpenTab, axe: str, width: int) -> None:
    wrong = []
    with open_tab(width=width) as tab:

        def look(what: str) -> None:
            expect(page.get_by_role("dialog")).to_be_visible()
            excess = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            wrong.extend(f"{what}: {one}" for one in violations(page, axe))
            if excess > 0:
                wrong.append(f"{what}: {excess} pixels too wide")
            page.keyboard.press("Escape")
            expect(page.get_by_role("dialog")).to_have_count(0)

        page = tab.open("/t/orders/m?from=beginning")
        page.get_by_title("Open partition 0, offset 0", exact=True).click()
        look("record")
        page.get_by_role("button", name="Write a record").click()
        page.get_by_role("button", name="Add a header").click()
        look("write")
        page.get_by_label("Select partition 0, offset 0", exact=True).check()
        page.get_by_role("button", name="Replay 1").click()
        look("replay")
        page.get_by_text("Formats, case, transactions").click()
        page.get_by_label("Values as").select_option("avro")
        expect(page.get_by_label("Avro schema")).to_be_visible()
        wrong += [f"questions: {one}" for one in violations(page, axe)]
        page = tab.open("/t")
        page.get_by_role("button", name="Create a topic").click()
        page.get_by_role("button", name="Add a setting").click()
        look("create")
        page = tab.open("/t/orders")
        page.get_by_role("button", name="Edit retention.ms").click()
        look("setting")
        page.get_by_role("button", name="Delete", exact=True).click()
        look("delete")
    assert not wrong, "\n".join(wrong)


def test_a_read_only_console_writes_nothing(
    browser: Browser, cluster: Cluster, tmp_path: Path
) -> None:
    with console(cluster, tmp_path, "--read-only") as url, opened(browser, url) as tab:
        page = tab.open("/t/orders/m?from=beginning")
        expect(page.get_by_role("button", name="Write a record")).to_be_disabled()
        page.get_by_label("Select partition 0, offset 0", exact=True).check()
        expect(page.get_by_role("button", name="Replay 1")).to_be_disabled()
        page = tab.open("/t/orders")
        for name in ("Delete", "Add partitions", "Edit retention.ms"):
            expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()


def test_the_page_fits_a_telephone(narrow: Tab) -> None:
    page = narrow.open("/t/orders/m")
    expect(rows(page).first).to_contain_text('"number": 39')
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
