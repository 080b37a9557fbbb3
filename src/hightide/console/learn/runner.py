"""Plays one scene at a time, and leaves the cluster as it was, however a scene ends.

    start ─▶ step ─▶ (guided: wait for `next`) ─▶ step … ─▶ restore ─▶ over
               └── a failure, `cancel`, or a reader who has left ──▲

The steps and what undoes them run in tasks of their own: a request that ends, or a browser that
goes away, interrupts nothing half-way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import time
from typing import Any

from hightide.client.admin import Admin
from hightide.console.learn import (
    leader_dies,
    min_isr,
    paused_follower,
    reassignment,
    truncation,
    unclean,
    watermark,
)
from hightide.console.learn.scene import Run, Scene, State, StepState, begin_run, now_ms
from hightide.console.learn.stage import CONNECT_MS, FAILURES, Act, NotSeen, Stage
from hightide.control import NotRunning, Refused

log = logging.getLogger(__name__)

SCENES: dict[str, Scene] = {
    scene.id: scene
    for scene in (
        watermark.SCENE,
        paused_follower.SCENE,
        leader_dies.SCENE,
        truncation.SCENE,
        min_isr.SCENE,
        unclean.SCENE,
        reassignment.SCENE,
    )
}
LEAST_BROKERS = 3
LEFT_S = 45.0
"""A guided run ends when no browser has asked for it for so long."""
IDLE_S = 15 * 60.0
"""A guided run ends when its reader has not continued for so long."""
_TOPIC = re.compile(rf"learn-({'|'.join(SCENES)})-[0-9a-f]{{6}}")


class Busy(Exception):
    """A scene cannot start now; the text says why."""


class Learn:
    """The scenes of one console."""

    def __init__(self, bootstrap: str, act: Act | None) -> None:
        self._bootstrap = bootstrap
        self._act = act
        self.run: Run | None = None
        self._task: asyncio.Task[None] | None = None
        self._playing: asyncio.Task[None] | None = None
        self._next = asyncio.Event()
        self._seen_at = time.monotonic()
        self._starting = asyncio.Lock()

    @property
    def is_busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def why_not(self) -> str | None:
        """Why no scene can be played at all."""
        if self._act is None:
            return (
                "The scenes stop and start brokers, so they are played only on the cluster of a"
                " running `hightide up`."
            )
        return None

    def seen(self) -> None:
        """A browser has asked how the scene goes."""
        self._seen_at = time.monotonic()

    # -- start and end ---------------------------------------------------------------------

    async def start(self, scene: Scene, *, is_guided: bool) -> Run:
        """Begin a scene; Busy if it cannot be played now."""
        async with self._starting:
            if self._act is None:
                raise Busy(self.why_not() or "")
            if self.is_busy:
                assert self.run is not None
                raise Busy(f"The scene “{self.run.title}” is being played; cancel it first.")
            await self._check(scene)
            topic = f"learn-{scene.id}-{secrets.token_hex(3)}"
            self.run = begin_run(scene, topic, is_guided=is_guided)
            self._next.clear()
            self.seen()
            stage = Stage(self._bootstrap, self._act, topic)
            self._playing = asyncio.create_task(self._steps(scene, self.run, stage))
            self._task = asyncio.create_task(self._play(scene, self.run, stage, self._playing))
            return self.run

    async def _check(self, scene: Scene) -> None:
        """Refuse a cluster on which the scene would show something else."""
        admin = Admin(self._bootstrap, client_id="hightide-learn", connect_timeout_ms=CONNECT_MS)
        try:
            topics = await admin.topics.list()
            brokers = sorted(admin.router.nodes)
            if len(brokers) < LEAST_BROKERS:
                raise Busy(
                    f"A scene needs {LEAST_BROKERS} brokers that are alive, and the cluster has"
                    f" {len(brokers)}: start it with `hightide up --brokers 3`, or restart the"
                    " brokers that were ended."
                )
            for topic in topics:
                if _TOPIC.fullmatch(topic.name):  # left by a console that was killed
                    with contextlib.suppress(*FAILURES):
                        await admin.topics.delete(topic.name)
            behind = [
                f"{topic.name}/{partition.partition}"
                for topic in topics
                for partition in topic.partitions
                if not _TOPIC.fullmatch(topic.name)
                and (partition.leader < 0 or set(partition.isr) != set(partition.replicas))
            ]
            if behind:
                raise Busy(
                    f"{behind[0]} is not fully in sync yet, and a scene loses brokers on purpose:"
                    " wait until it is."
                )
            if scene.needs_disk and await _is_in_memory(admin):
                raise Busy(
                    "The data of this cluster is in memory, so a broker that restarts has nothing:"
                    " the scene needs `hightide up` without --memory."
                )
        finally:
            admin.close()

    async def continue_(self) -> None:
        """Go on with the next step, or end the scene after the last."""
        if self.run is None or self.run.state is not State.WAITING:
            raise Busy("No scene waits for its reader.")
        self._next.set()

    async def cancel(self) -> None:
        """End the scene, and return when the cluster is as it was."""
        if self._playing is not None:
            self._playing.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})

    async def close(self, within_s: float) -> None:
        """End the scene because the console ends."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.cancel(), within_s)

    # -- play ------------------------------------------------------------------------------

    async def _play(
        self, scene: Scene, run: Run, stage: Stage, playing: asyncio.Task[None]
    ) -> None:
        end = State.DONE
        try:
            await asyncio.wait({playing})
            if playing.cancelled():
                end = State.CANCELLED
            elif error := playing.exception():
                end, run.error = State.FAILED, _sentence(error)
        finally:
            run.state = State.CLEANING
            for step in run.steps:
                if step.state is StepState.DOING:
                    step.end(StepState.FAILED if end is State.FAILED else StepState.SKIPPED)
                elif step.state is StepState.TODO:
                    step.state = StepState.SKIPPED
            try:
                async for sentence in stage.restore():
                    run.restored.append(sentence)
            except Exception as error:
                log.exception("the scene %s could not be undone", scene.id)
                run.restored.append(f"✕ {_sentence(error)}")
            run.state, run.ended_ms = end, now_ms()

    async def _steps(self, scene: Scene, run: Run, stage: Stage) -> None:
        await stage.open()
        for at, step in enumerate(scene.steps):
            run.step, stage.step = at, run.steps[at]
            stage.step.begin()
            await step.do(stage)
            stage.step.end(StepState.DONE)
            if run.is_guided and step.waits:
                run.state = State.WAITING
                await self._wait_for_reader()
                run.state = State.RUNNING
            elif self._has_left(run):
                raise asyncio.CancelledError

    async def _wait_for_reader(self) -> None:
        idle_since = time.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._next.wait(), 1.0)
                self._next.clear()
                return
            if self.run is not None and (
                self._has_left(self.run) or time.monotonic() - idle_since > IDLE_S
            ):
                raise asyncio.CancelledError

    def _has_left(self, run: Run) -> bool:
        return run.is_guided and time.monotonic() - self._seen_at > LEFT_S

    # -- show ------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        why = self.why_not()
        return {
            "available": why is None,
            "why": why,
            "scenes": [
                {
                    "id": scene.id,
                    "number": number,
                    "title": scene.title,
                    "intro": scene.intro,
                    "about_s": scene.about_s,
                    "steps": [{"title": step.title, "text": step.text} for step in scene.steps],
                }
                for number, scene in enumerate(SCENES.values(), 1)
            ],
            "run": None if self.run is None else self.run.to_json(),
        }


async def _is_in_memory(admin: Admin) -> bool:
    found = await admin.cluster.log_dirs()
    return any(not directory.log_dir.startswith("/") for directory in found.directories)


def _sentence(error: BaseException) -> str:
    if isinstance(error, (NotSeen, Refused, NotRunning, *FAILURES)) and str(error):
        return str(error)
    log.error("a scene has failed", exc_info=error)
    return f"The scene has failed: {type(error).__name__} {error}".strip()
