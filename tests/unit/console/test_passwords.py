"""The password file, its hash, and the sessions that it opens."""

from __future__ import annotations

import asyncio
import io
import stat

import pytest

from hightide.console import server
from hightide.console.context import Options
from hightide.console.logins import (
    FIRST_PAUSE_S,
    FREE_TRIES,
    LONGEST_PAUSE_S,
    SESSION_S,
    Logins,
    TooManyTries,
)
from hightide.console.password import BadPassword, hash_of, read

SECRET = "correct horse"
PASSWORD = hash_of(SECRET)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_hash_knows_the_password_and_no_other():
    assert PASSWORD.is_right(SECRET)
    assert not any(PASSWORD.is_right(wrong) for wrong in ("", "correct", SECRET + " "))
    assert hash_of(SECRET).hash != PASSWORD.hash  # another salt


@pytest.mark.parametrize("content", [SECRET, f"{SECRET}\n", f"{PASSWORD.line()}\n", "pässwörter\n"])
def test_a_file_has_a_password_or_its_hash(tmp_path, content):
    file = tmp_path / "password"
    file.write_text(content, "utf-8")
    right = SECRET if "horse" in content or content.startswith("scrypt") else "pässwörter"
    assert read(file).is_right(right)
    assert not read(file).is_right("wrong password")


@pytest.mark.parametrize(
    "content",
    ["", "\n", "short", "one password\nand another", "scrypt:", "scrypt:1:2:3:zz:zz",
     "scrypt:16383:8:1:00:00", "scrypt:-1:8:1:00:00", "scrypt:1073741824:8:1:00:00"],
)  # fmt: skip
def test_a_file_without_a_usable_password_is_refused(tmp_path, content):
    file = tmp_path / "password"
    file.write_text(content)
    with pytest.raises(BadPassword):
        read(file)


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(BadPassword, match="nowhere"):
        read(tmp_path / "nowhere")


def test_a_password_is_set_as_a_hash_that_only_its_owner_reads(tmp_path, monkeypatch, capsys):
    file = tmp_path / "password"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{SECRET}\n"))
    assert server.run(["--set-password", "--password-file", str(file)]) == 0
    assert SECRET not in file.read_text()
    assert read(file).is_right(SECRET)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    monkeypatch.setattr("sys.stdin", io.StringIO("short\n"))
    assert server.run(["--set-password", "--password-file", str(file)]) == 1
    assert "at least" in capsys.readouterr().err
    assert read(file).is_right(SECRET)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "kafka.example"])
def test_beyond_this_machine_a_password_is_needed(tmp_path, host):
    with pytest.raises(server.StartRefused, match="a password is needed"):
        server.checked(Options("localhost:9092", host))
    file = tmp_path / "password"
    file.write_text(SECRET)
    assert server.checked(Options("localhost:9092", host, password_file=file)) is not None
    assert server.checked(Options("localhost:9092")) is None


@pytest.mark.parametrize(
    "words",
    [["--bootstrap", "nowhere"], ["--host", "0.0.0.0", "--port", "0"], ["--set-password"]],
)
def test_a_console_that_cannot_start_says_why_in_a_sentence(words, capsys):
    assert server.run(words) == 1
    said = capsys.readouterr().err
    assert said.startswith("hightide: ")
    assert "Traceback" not in said


def test_a_session_ends_after_its_time():
    clock = Clock()
    logins = Logins(PASSWORD, clock)
    key = asyncio.run(logins.log_in(SECRET, "a"))
    assert key is not None
    assert logins.is_valid(key)
    assert not logins.is_valid(key + "x")
    clock.now_s = SESSION_S - 1
    assert logins.is_valid(key)
    clock.now_s = SESSION_S + 1
    assert not logins.is_valid(key)


def test_pauses_double_up_to_a_limit_for_one_address_only():
    clock = Clock()
    logins = Logins(PASSWORD, clock)

    async def run() -> list[float]:
        for _ in range(FREE_TRIES):
            assert await logins.log_in("wrong", "a") is None
        waits = []
        for _ in range(10):
            with pytest.raises(TooManyTries) as refused:
                await logins.log_in(SECRET, "a")
            waits.append(refused.value.wait_s)
            clock.now_s += refused.value.wait_s
            assert await logins.log_in("wrong", "a") is None
        assert await logins.log_in(SECRET, "b")
        clock.now_s += LONGEST_PAUSE_S
        assert await logins.log_in(SECRET, "a")
        assert await logins.log_in("wrong", "a") is None  # and the count starts again
        return waits

    waits = asyncio.run(run())
    assert waits[:4] == [FIRST_PAUSE_S * factor for factor in (1, 2, 4, 8)]
    assert waits[-1] == LONGEST_PAUSE_S


def test_tries_at_the_same_time_do_not_get_past_the_limit():
    logins = Logins(PASSWORD, Clock())

    async def run() -> list[object]:
        tries = (logins.log_in("wrong", "a") for _ in range(FREE_TRIES * 3))
        return await asyncio.gather(*tries, return_exceptions=True)

    found = asyncio.run(run())
    assert found.count(None) == FREE_TRIES
