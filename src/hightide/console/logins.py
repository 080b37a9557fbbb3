"""Who is logged in, and how often a password may be tried."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from hightide.console.password import Password

SESSION_S = 12 * 3600.0
FREE_TRIES = 5
"""Wrong passwords in a row that are answered at once."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 300.0
MOST_ADDRESSES = 1000
MOST_SESSIONS = 1000
AT_ONCE = 2
"""Passwords that are checked at the same time: each takes 16 MiB and 50 ms."""


@dataclass(slots=True)
class _Tries:
    wrong: int = 0
    free_at: float = 0.0


class TooManyTries(Exception):
    """An address has to wait before it may try again."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"There were too many wrong passwords. Try again in {wait_s:.0f} s.")
        self.wait_s = wait_s


class Logins:
    """Sessions in memory: a restart ends them all."""

    def __init__(
        self, password: Password | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._password = password
        self._clock = clock
        self._sessions: OrderedDict[bytes, float] = OrderedDict()
        self._tries: OrderedDict[str, _Tries] = OrderedDict()
        self._checking = asyncio.Semaphore(AT_ONCE)

    @property
    def are_needed(self) -> bool:
        return self._password is not None

    def is_valid(self, key: str) -> bool:
        """Whether a cookie is of a session that has not ended."""
        ends = self._sessions.get(_digest(key))
        return ends is not None and ends > self._clock()

    async def log_in(self, given: str, address: str) -> str | None:
        """Return the key of a new session, None if the password is wrong."""
        assert self._password is not None
        tries = self._tries.setdefault(address, _Tries())
        self._tries.move_to_end(address)
        while len(self._tries) > MOST_ADDRESSES:
            self._tries.popitem(last=False)
        wait_s = tries.free_at - self._clock()
        if wait_s > 0:
            raise TooManyTries(wait_s)
        # Counted before it is checked, so that tries at the same time do not get past the limit.
        tries.wrong += 1
        if tries.wrong >= FREE_TRIES:
            pause_s = FIRST_PAUSE_S * 2 ** min(tries.wrong - FREE_TRIES, 20)
            tries.free_at = self._clock() + min(pause_s, LONGEST_PAUSE_S)
        async with self._checking:
            if not await asyncio.to_thread(self._password.is_right, given):
                return None
        self._tries.pop(address, None)
        return self._add()

    def _add(self) -> str:
        key = secrets.token_urlsafe(32)
        now = self._clock()
        for old in [digest for digest, ends in self._sessions.items() if ends <= now]:
            del self._sessions[old]
        while len(self._sessions) >= MOST_SESSIONS:
            self._sessions.popitem(last=False)
        self._sessions[_digest(key)] = now + SESSION_S
        return key

    def log_out(self, key: str) -> None:
        self._sessions.pop(_digest(key), None)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
