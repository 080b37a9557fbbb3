"""The shop's visitors: who clicks, who orders, and an order now and then that cannot be read.

All of it follows from a seed and a time, and nothing here knows of brokers.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random

from hightide.demo.names import CLICKS, ORDERS, USERS

NAMES = (
    *("Ada", "Alan", "Barbara", "Dennis", "Donald", "Edsger", "Frances", "Grace", "Jim"),
    *("John", "Ken", "Leslie", "Margaret", "Niklaus", "Radia", "Tony", "Vint", "Whitfield"),
)
COUNTRIES = ("Brazil", "Estonia", "India", "Japan", "Kenya", "Norway")
PAGES = ("/", "/search", "/books", "/music", "/games", "/basket")
PRODUCTS = ("book", "record", "game", "map", "kite")
CLICKS_PER_ORDER = 3
BROKEN_SHARE = 0.02
GUEST = "guest"

_ORDER = re.compile(rb'"order": ?"([0-9a-z]+)-([0-9]+)"')


@dataclass(frozen=True, slots=True)
class Message:
    """A record to be sent; an order has its number."""

    topic: str
    key: bytes
    value: bytes
    number: int | None = None


class Traffic:
    """Messages, at a given number of orders in a second."""

    def __init__(self, run: str, rate: float, seed: int = 0) -> None:
        self.run = run
        self._rate = rate
        self._chance = Random(seed)
        self._due = 0.0
        self.orders = 0

    def users(self) -> list[Message]:
        """The table of everybody who has an account."""
        return [
            self._message(
                USERS,
                user,
                {"user": user, "name": name, "country": COUNTRIES[nth % len(COUNTRIES)]},
            )
            for nth, name in enumerate(NAMES)
            if (user := name.lower())
        ]

    def pass_time(self, elapsed_s: float, now_ms: int) -> list[Message]:
        """What happens in a time; `now_ms` is when it has passed."""
        self._due += elapsed_s * self._rate
        made = []
        at = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
        while self._due >= 1:
            self._due -= 1
            made.append(self._order(at))
            made += [self._click(at) for _ in range(CLICKS_PER_ORDER)]
        return made

    def _order(self, at: str) -> Message:
        number, chance = self.orders, self._chance
        self.orders += 1
        user = self._user()
        order: dict[str, object] = {
            "order": f"{self.run}-{number}",
            "user": user,
            "product": chance.choice(PRODUCTS),
            "amount": round(chance.lognormvariate(3, 0.7), 2),
            "at": at,
        }
        if chance.uniform(0, 1) >= BROKEN_SHARE:
            return self._message(ORDERS, user, order, number)
        order["amount"] = "a lot"
        broken = self._message(ORDERS, user, order, number)
        cut = chance.choice((len(broken.value), len(broken.value) - 30))
        return Message(ORDERS, broken.key, broken.value[:cut], number)

    def _click(self, at: str) -> Message:
        user = self._user()
        return self._message(
            CLICKS, user, {"user": user, "page": self._chance.choice(PAGES), "at": at}
        )

    def _user(self) -> str:
        nth = self._chance.randrange(len(NAMES) + 1)
        return NAMES[nth].lower() if nth < len(NAMES) else GUEST

    @staticmethod
    def _message(
        topic: str, key: str, value: dict[str, object], number: int | None = None
    ) -> Message:
        return Message(topic, key.encode(), json.dumps(value).encode(), number)


def number_in(value: bytes | None, run: str) -> int | None:
    """The number of an order of this run, also in an order that cannot be read."""
    found = _ORDER.search(value or b"")
    return int(found[2]) if found and found[1].decode() == run else None
