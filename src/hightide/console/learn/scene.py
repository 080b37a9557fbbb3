"""What a scene is: steps with a caption, and the record of one run.

A step's `text` explains what happens before it happens.  What a step has seen is measured on the
cluster: `seen` is the sentence and `facts` are the numbers in it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hightide.console.learn.stage import Stage


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a scene."""

    title: str
    text: str
    do: Callable[[Stage], Awaitable[None]]
    waits: bool = True
    """Whether a guided run waits for the reader after it.  False where time changes the picture."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A scene: what it teaches, and its steps."""

    id: str
    title: str
    intro: str
    steps: tuple[Step, ...]
    about_s: int
    """About how long it takes without a reader."""
    needs_disk: bool = False
    """Whether a broker must find its log again after a restart."""


class State(StrEnum):
    """How far a run is."""

    RUNNING = "running"
    WAITING = "waiting"
    """A guided run waits for the reader."""
    CLEANING = "cleaning"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        return self in (State.DONE, State.FAILED, State.CANCELLED)


class StepState(StrEnum):
    """How far a step is."""

    TODO = "todo"
    DOING = "doing"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class StepRun:
    """What one step has done and seen."""

    title: str
    text: str
    state: StepState = StepState.TODO
    commands: list[str] = field(default_factory=list)
    """The commands that do the same."""
    seen: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    started_ms: int | None = None
    ended_ms: int | None = None

    def begin(self) -> None:
        self.state, self.started_ms = StepState.DOING, now_ms()

    def end(self, state: StepState) -> None:
        self.state, self.ended_ms = state, now_ms()


@dataclass(slots=True)
class Run:
    """One run of a scene."""

    scene: str
    title: str
    topic: str
    is_guided: bool
    steps: list[StepRun]
    state: State = State.RUNNING
    step: int = 0
    """The step that runs, or that the reader looks at."""
    error: str = ""
    restored: list[str] = field(default_factory=list)
    """What was undone at the end, as sentences."""
    started_ms: int = field(default_factory=now_ms)
    ended_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "scene": self.scene,
            "title": self.title,
            "topic": self.topic,
            "partition": 0,
            "guided": self.is_guided,
            "state": self.state.value,
            "step": self.step,
            "error": self.error or None,
            "restored": list(self.restored),
            "started_ms": self.started_ms,
            "ended_ms": self.ended_ms,
            "steps": [
                {
                    "title": step.title,
                    "text": step.text,
                    "state": step.state.value,
                    "commands": list(step.commands),
                    "seen": step.seen,
                    "facts": dict(step.facts),
                    "started_ms": step.started_ms,
                    "ended_ms": step.ended_ms,
                }
                for step in self.steps
            ],
        }


def begin_run(scene: Scene, topic: str, *, is_guided: bool) -> Run:
    steps = [StepRun(step.title, step.text) for step in scene.steps]
    return Run(scene.id, scene.title, topic, is_guided, steps)
