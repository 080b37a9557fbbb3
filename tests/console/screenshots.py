"""Takes the pictures of README and docs: `python -m tests.console.screenshots [FOLDER]`.

A cluster of three brokers runs, a load writes to it, and a real browser looks: all is well; a
follower is paused and holds the high watermark back; the leader dies and another one leads.
"""

from __future__ import annotations

import base64
import re
import struct
import sys
import tempfile
import threading
import time
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from playwright.sync_api import Page, expect, sync_playwright

from hightide.testing import Cluster
from tests.console.browsing import CHROMIUM, ROOT, console

FOLDER = ROOT / "docs" / "pictures"
WIDTH = 1440
MOST_BYTES = 120 * 1024
FREQUENT = 128
DECODE = """async (png) => {
  const image = new Image();
  image.src = "data:image/png;base64," + png;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const drawing = canvas.getContext("2d");
  drawing.drawImage(image, 0, 0);
  const bytes = drawing.getImageData(0, 0, image.width, image.height).data;
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768) {
    text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  }
  return btoa(text);
}"""
WAIT_MS = 60_000
EAGER = {
    "linger.ms": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 20,
}
TOPICS = {"orders": 6, "payments": 3, "shipments": 12}


class Colour(NamedTuple):
    red: int
    green: int
    blue: int


@contextmanager
def load(cluster: Cluster) -> Iterator[None]:
    """Records for all topics at a rate that changes a little."""
    done = threading.Event()

    def run() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": 1, **EAGER})
        number = 0
        while not done.wait(0.01):
            for topic, partitions in TOPICS.items():
                number += 1
                for _ in range(1 + number // 40 % 3):
                    producer.produce(topic, value=b"x" * 200, partition=number % partitions)
                producer.produce("orders", value=b"x" * 200, partition=0)
            producer.poll(0)
        producer.flush(5)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def take(page: Page, folder: Path, name: str, height: int) -> None:
    """A picture of the top of the page, with few colours: it stays small."""
    page.mouse.move(0, 0)
    clip: Any = {"x": 0, "y": 0, "width": WIDTH, "height": height}
    png = with_palette(pixels(page, page.screenshot(clip=clip)), WIDTH)
    path = folder / f"{name}.png"
    path.write_bytes(png)
    assert len(png) <= MOST_BYTES, f"{path} has {len(png)} bytes, more than {MOST_BYTES}"
    print(f"{path}  {len(png) // 1024} KiB")


def pixels(page: Page, png: bytes) -> array[int]:
    """The pixels of a picture, four bytes each; the browser decodes it."""
    with page.context.browser.new_page() as blank:  # type: ignore[union-attr]
        text = blank.evaluate(DECODE, base64.b64encode(png).decode())
    found = array("I")
    found.frombytes(base64.b64decode(text))
    return found


def with_palette(found: array[int], width: int) -> bytes:
    """A PNG of 256 colours; a pixel of another colour gets the nearest of them."""
    counts = Counter(found)
    colours = {pixel: Colour(*pixel.to_bytes(4, sys.byteorder)[:3]) for pixel in counts}
    palette = palette_of(counts, colours)
    index = {
        pixel: min(range(len(palette)), key=lambda at: distance(palette[at], colour))
        for pixel, colour in colours.items()
    }
    indexes = bytes(map(index.__getitem__, found))
    lines = b"".join(b"\0" + indexes[at : at + width] for at in range(0, len(indexes), width))
    header = struct.pack(">IIBBBBB", width, len(indexes) // width, 8, 3, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(kind, data)
        for kind, data in (
            (b"IHDR", header),
            (b"PLTE", b"".join(map(bytes, palette))),
            (b"IDAT", zlib.compress(lines, 9)),
            (b"IEND", b""),
        )
    )


def palette_of(counts: Counter[int], colours: Mapping[int, Colour]) -> list[Colour]:
    """The most frequent colours, and then those that are the farthest from all chosen ones."""
    frequent = [colours[pixel] for pixel, _ in counts.most_common(FREQUENT)]
    apart = {colour: min(distance(colour, one) for one in frequent) for colour in colours.values()}
    while len(frequent) < 256:
        farthest = max(apart, key=lambda colour: apart[colour])
        if not apart[farthest]:
            break
        frequent.append(farthest)
        apart = {colour: min(old, distance(colour, farthest)) for colour, old in apart.items()}
    return frequent


def distance(one: Colour, other: Colour) -> int:
    return (
        (one.red - other.red) ** 2 + (one.green - other.green) ** 2 + (one.blue - other.blue) ** 2
    )


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def open_page(page: Page, path: str) -> None:
    page.goto(path)
    expect(page.locator(".sentence")).to_be_visible(timeout=WAIT_MS)


def all_pictures(page: Page, cluster: Cluster, folder: Path) -> None:
    page.goto("/")
    expect(page.locator(".ov-cell")).to_have_count(sum(TOPICS.values()))
    with load(cluster):
        time.sleep(45)  # the curve of the throughput needs some time to show
        take(page, folder, "overview", 1000)
        open_page(page, "/x/orders/0")
        page.get_by_role("button", name="1 min").click()
        page.get_by_role("button", name="Send a probe").click()
        expect(page.locator(".xj-step").last).to_contain_text("ms", timeout=WAIT_MS)
        time.sleep(3)
        take(page, folder, "xray", 1060)

        leader = cluster.leader("orders", 0)
        follower = next(one for one in cluster.brokers if one != leader)
        cluster.pause(follower)
        expect(page.locator(".xp-held")).to_contain_text("holds", timeout=WAIT_MS)
        time.sleep(5)
        take(page, folder, "xray-held-back", 760)
        cluster.resume(follower)
        expect(page.locator(".sentence")).to_contain_text("All 3", timeout=WAIT_MS)

        cluster.kill(leader)
        expect(page.locator(".sentence")).to_contain_text("not alive", timeout=WAIT_MS)
        time.sleep(6)
        cluster.restart(leader)
        expect(page.locator(".xf-phase.xf-in_sync")).to_be_visible(timeout=WAIT_MS)
        expect(page.locator(".sentence")).to_contain_text("All 3", timeout=WAIT_MS)
        time.sleep(5)
        expect(page.locator(".xf")).to_contain_text(re.compile("first write after"))
        take(page, folder, "xray-failover", 1160)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"zookeeper.session.timeout.ms": "45000"}
    with (
        tempfile.TemporaryDirectory() as scratch,
        Cluster(brokers=3, settings=settings) as cluster,
        sync_playwright() as playwright,
    ):
        for topic, partitions in TOPICS.items():
            cluster.create_topic(topic, partitions=partitions, config={"min.insync.replicas": 2})
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with console(cluster, Path(scratch), "--title", "shop") as url:
            context = browser.new_context(
                base_url=url,
                viewport={"width": WIDTH, "height": 1200},
                color_scheme="light",
                reduced_motion="reduce",
            )
            all_pictures(context.new_page(), cluster, folder)
        browser.close()


if __name__ == "__main__":
    main()
