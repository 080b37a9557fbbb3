"""No request keeps the event loop for 100 ms, and no request's memory stays.

Every request type that the server serves is sent in three ways: as the largest frame, with repeated
names, and many times in 256 KiB of pipelined frames. The turns are measured by the CPU clock of the
server's thread, so a busy machine does not matter.
"""

import gc
import random
import struct
import tracemalloc

import pytest

from hightide.zookeeper.server import requests
from hightide.zookeeper.server.options import MAX_FRAME_BYTES
from tests.fuzz.targets_zookeeper import fuzz_zookeeper_requests
from tests.support.turns import measured_turns
from tests.unit.zookeeper import raw_client as raw
from tests.unit.zookeeper.raw_client import create, int32, int64, multi, read, text, versioned

TURN_S = 0.1
KEPT_BYTES = 32 * 1024 * 1024
ROOM = MAX_FRAME_BYTES - 100
LONG = "/" + "x" * (ROOM - 100)
DEEP = "/" + "x/" * (ROOM // 2 - 100) + "x"
XIDS = {raw.PING: -2, raw.AUTH: -4}
SERVED = sorted({*requests.READS, *requests._WRITES, requests.MULTI, requests.AUTH})


def filled(part: bytes, most: int = 1 << 30) -> bytes:
    """Repeat a part of a multi up to the largest frame."""
    return part * min(ROOM // len(part), most) + int32(-1) + b"\1" + int32(-1)


def part(kind: int, body: bytes) -> bytes:
    return int32(kind) + b"\0" + int32(-1) + body


def paths(count: int) -> bytes:
    return int32(count) + b"".join(text(f"/{number}") for number in range(count))


def watches(count: int) -> bytes:
    return int64(0) + paths(count) + paths(count) + paths(count)


def bodies(kind: int) -> list[bytes]:
    """Return the largest bodies of a request type, and bodies with repeated names."""
    many_ids = [(31, "ip", f"10.{n % 200}.{n // 200}.0/24") for n in range(9_900)]
    match kind:
        case raw.CREATE | raw.CREATE2 | raw.CREATE_CONTAINER:
            wide = create("/acl", b"", many_ids)
            return [create("/big", bytes(ROOM - 60)), create(LONG), create(DEEP), wide, wide * 2]
        case raw.CREATE_TTL:
            return [create("/big", bytes(ROOM - 60), flags=5) + int64(1)]
        case raw.DELETE | raw.CHECK:
            return [versioned(LONG), versioned(DEEP)]
        case raw.SET_DATA:
            return [raw.set_data("/data", bytes(ROOM - 60)), raw.set_data(DEEP, b"")]
        case raw.SET_ACL:
            return [text("/data") + raw.acl(many_ids) + int32(-1)]
        case raw.MULTI:
            return [
                filled(part(raw.CHECK, versioned("/"))),
                filled(part(raw.CHECK, versioned("/")), 2000),
                filled(part(raw.SET_DATA, raw.set_data("/data", b"")), 2000),
                multi(*[(raw.CREATE, create("/many/m", flags=2))] * 2000),
                multi(*[(raw.CREATE, create(f"/many/{n}")) for n in range(2000)]),
            ]
        case raw.MULTI_READ:
            return [
                filled(part(raw.GET_DATA, read("/data"))),
                filled(part(raw.GET_DATA, read("/data")), 2000),
                filled(part(raw.GET_CHILDREN, read("/many")), 2000),
            ]
        case raw.SET_WATCHES | raw.SET_WATCHES2:
            tail = int32(0, 0) if kind == raw.SET_WATCHES2 else b""
            same = int64(0) + (int32(3_300) + text("/data") * 3_300) * 3
            return [watches(3_300) + tail, watches(20_000) + tail, same + tail]
        case raw.CHECK_WATCHES | raw.REMOVE_WATCHES:
            return [text(LONG) + int32(3), text(DEEP) + int32(3)]
        case raw.AUTH:
            return [int32(0) + text("digest") + raw.buffer(b"u:" + bytes(ROOM - 200))]
        case raw.PING | raw.WHO_AM_I:
            return [bytes(ROOM)]
        case raw.GET_ACL | raw.SYNC | raw.GET_EPHEMERALS | raw.ALL_CHILDREN:
            return [text("/"), text("/many"), text(DEEP)]
        case _:
            return [read("/many"), read("/data"), read(DEEP), read(LONG, watch=True)]


def small_body(kind: int) -> bytes:
    """Return a short valid body, so that 256 KiB hold many requests."""
    match kind:
        case raw.CREATE | raw.CREATE2 | raw.CREATE_CONTAINER:
            return create("/many/p", flags=2)
        case raw.CREATE_TTL:
            return create("/p", flags=5) + int64(1)
        case raw.DELETE | raw.CHECK:
            return versioned("/p")
        case raw.SET_DATA:
            return raw.set_data("/data", b"")
        case raw.SET_ACL:
            return text("/data") + raw.acl(raw.OPEN_ACL) + int32(-1)
        case raw.MULTI:
            return multi(*[(raw.SET_DATA, raw.set_data("/data", b""))] * 10)
        case raw.MULTI_READ:
            return multi(*[(raw.GET_CHILDREN, read("/zookeeper"))] * 10)
        case raw.SET_WATCHES | raw.SET_WATCHES2:
            return raw.set_watches(0, [], ["/data"] * 10) + int32(0, 0)
        case raw.CHECK_WATCHES | raw.REMOVE_WATCHES:
            return text("/data") + int32(3)
        case raw.AUTH:
            return int32(0) + text("digest") + raw.buffer(b"u:p")
        case raw.PING | raw.WHO_AM_I:
            return b""
        case raw.GET_ACL | raw.SYNC | raw.GET_EPHEMERALS | raw.ALL_CHILDREN:
            return text("/zookeeper")
        case _:
            return read("/zookeeper", watch=True)


@pytest.fixture(scope="module", params=["memory", "file"])
def server(request, tmp_path_factory):
    from tests.unit.zookeeper.conftest import World

    world = World(tmp_path_factory.mktemp("turns"))
    world.start(**({"file": None} if request.param == "memory" else {}))
    client = world.client()
    client.create("/data", bytes(10_000))
    client.create("/many")
    for start in range(0, 20_000, 1000):
        names = (f"/many/n{number}" for number in range(start, start + 1000))
        client.ok(raw.MULTI, multi(*[(raw.CREATE, create(name)) for name in names]))
    yield world
    world.end()


def assert_short(turns, kind):
    assert turns.count
    assert turns.worst_s < TURN_S, f"request {kind}: {turns.worst_s * 1000:.0f} ms, {turns.worst}"


@pytest.mark.parametrize("kind", SERVED)
def test_the_largest_requests_take_no_long_turn(server, kind):
    for body in bodies(kind):
        client = server.client(timeout_ms=2000)
        with measured_turns() as turns:
            xid = XIDS.get(kind)
            client.reply(client.send(kind, body[: MAX_FRAME_BYTES - 8], xid))
            client.ping()
        client.close_session()
        assert_short(turns, kind)


@pytest.mark.parametrize("kind", SERVED)
def test_pipelined_requests_take_no_long_turn(server, kind):
    frame = int32(1, kind) + small_body(kind)
    frame = int32(len(frame)) + frame
    count = 256 * 1024 // len(frame)
    client = server.client(timeout_ms=10_000)
    with measured_turns() as turns:
        client.socket.sendall(frame * count)
        for _ in range(count):
            while isinstance(client.receive(), raw.Event):
                pass
    client.close_session()
    assert_short(turns, kind)


def test_memory_returns_after_the_largest_requests(server):
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for kind in (raw.MULTI_READ, raw.SET_WATCHES, raw.GET_CHILDREN, raw.GET_DATA):
            for body in bodies(kind):
                client = server.client(timeout_ms=2000)
                client.call(kind, body[: MAX_FRAME_BYTES - 8])
                client.close_session()
                client.socket.close()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < KEPT_BYTES


def test_garbage_requests_of_a_live_client_do_no_harm(server):
    chance = random.Random(15)
    bystander = server.client(timeout_ms=10_000)
    kinds = [kind for kind in SERVED if kind != raw.AUTH]
    with measured_turns() as turns:
        for _ in range(150):
            client = server.client(timeout_ms=2000)
            frames = [
                struct.pack(">ii", 1, chance.choice(kinds)) + chance.randbytes(chance.randrange(60))
                for _ in range(20)
            ]
            client.socket.sendall(b"".join(int32(len(frame)) + frame for frame in frames))
            client.socket.close()
            bystander.ping()
    assert_short(turns, "garbage")


def test_the_fuzz_target_takes_any_bytes():
    chance = random.Random(15)
    for _ in range(300):
        frames = []
        for _ in range(chance.randrange(10)):
            body = chance.choice([read("/a", watch=True), create("/b"), chance.randbytes(30)])
            frame = bytes([chance.choice(SERVED)]) + body
            frames.append(bytes([len(frame) - 1]) + frame)
        fuzz_zookeeper_requests(b"".join(frames))
