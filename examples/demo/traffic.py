"""The shop's traffic: clicks, orders, and a few orders that cannot be parsed.

The messages follow from a seed and the time; nothing here talks to a broker.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random

from examples.demo.topics import CLICKS, ORDERS, USERS

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
    """A record to send; `number` is set for an order."""

    topic: str
    key: bytes
    value: bytes
    number: int | None = None


class Traffic:
    """Makes messages at a given number of orders per second."""

    def __init__(self, run: str, rate: float, seed: int = 0) -> None:
        self.run = run
        self._rate = rate
        self._random = Random(seed)
        self._due = 0.0
        self.orders = 0

    def users(self) -> list[Message]:
        """Return one message for each user with an account."""
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
        """Return the messages of the `elapsed_s` seconds before `now_ms`."""
        self._due += elapsed_s * self._rate
        messages = []
        at = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
        while self._due >= 1:
            self._due -= 1
            messages.append(self._order(at))
            messages += [self._click(at) for _ in range(CLICKS_PER_ORDER)]
        return messages

    def _order(self, at: str) -> Message:
        number, random = self.orders, self._random
        self.orders += 1
        user = self._user()
        order: dict[str, object] = {
            "order": f"{self.run}-{number}",
            "user": user,
            "product": random.choice(PRODUCTS),
            "amount": round(random.lognormvariate(3, 0.7), 2),
            "at": at,
        }
        if random.uniform(0, 1) >= BROKEN_SHARE:
            return self._message(ORDERS, user, order, number)
        order["amount"] = "a lot"
        broken = self._message(ORDERS, user, order, number)
        cut = random.choice((len(broken.value), len(broken.value) - 30))
        return Message(ORDERS, broken.key, broken.value[:cut], number)

    def _click(self, at: str) -> Message:
        user = self._user()
        return self._message(
            CLICKS, user, {"user": user, "page": self._random.choice(PAGES), "at": at}
        )

    def _user(self) -> str:
        nth = self._random.randrange(len(NAMES) + 1)
        return NAMES[nth].lower() if nth < len(NAMES) else GUEST

    @staticmethod
    def _message(
        topic: str, key: str, value: dict[str, object], number: int | None = None
    ) -> Message:
        return Message(topic, key.encode(), json.dumps(value).encode(), number)


def order_number(value: bytes | None, run: str) -> int | None:
    """Return the number of an order of this run, even if the order cannot be parsed."""
    found = _ORDER.search(value or b"")
    return int(found[2]) if found and found[1].decode() == run else None
