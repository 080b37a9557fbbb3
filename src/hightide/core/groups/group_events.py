"""What happens to groups, as events."""

from __future__ import annotations

from dataclasses import dataclass

from hightide.core.events import Event


def _members(count: int) -> str:
    return "1 member" if count == 1 else f"{count} members"


@dataclass(frozen=True, slots=True)
class GroupRebalancing(Event):
    """A group has begun to share its partitions out again."""

    group: str
    generation: int
    """The generation that ends."""
    members: int
    why: str

    def __str__(self) -> str:
        return (
            f"group {self.group} rebalances, with {_members(self.members)}, from generation"
            f" {self.generation}: {self.why}"
        )


@dataclass(frozen=True, slots=True)
class GroupRebalanced(Event):
    """All members of a group have joined, and a generation begins."""

    group: str
    generation: int
    members: int
    took_ms: int

    def __str__(self) -> str:
        return (
            f"group {self.group} is in generation {self.generation}, with"
            f" {_members(self.members)}, after {self.took_ms} ms"
        )
