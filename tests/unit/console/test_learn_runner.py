"""The runner of the scenes: however a scene ends, what it did is undone, once."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from hightide.console.learn import runner
from hightide.console.learn.runner import SCENES, Busy, Learn
from hightide.console.learn.scene import Scene, State, Step, StepState
from hightide.console.learn.stage import NotSeen
from hightide.control import Refused


class FakeStage:
    """Remembers what was done to it."""

    made: ClassVar[list[FakeStage]] = []

    def __init__(self, bootstrap, act, topic):
        self.topic = topic
        self.restored = 0
        self.fails_to_restore = False
        FakeStage.made.append(self)

    async def open(self):
        pass

    async def restore(self):
        self.restored += 1
        yield "Everything is as before."
        if self.fails_to_restore:
            raise RuntimeError("no")


async def see(stage):
    stage.step.seen = "seen"


async def hang(_):
    await asyncio.Event().wait()


async def fail(_):
    raise NotSeen("It did not happen.")


async def refuse(_):
    raise Refused("broker 2 is not running")


def scene(*steps, waits=True):
    return Scene(
        "test", "Test", "", tuple(Step(f"step {n}", "", do, waits) for n, do in enumerate(steps)), 1
    )


@pytest.fixture(autouse=True)
def stage(monkeypatch):
    FakeStage.made = []
    monkeypatch.setattr(runner, "Stage", FakeStage)

    async def check(self, scene):
        pass

    monkeypatch.setattr(Learn, "_check", check)
    return FakeStage.made


async def act(command, broker):
    return ""


async def over(learn):
    await until(learn, lambda: learn.run.state.is_over)
    return learn.run


async def until(learn, holds):
    for _ in range(10_000):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError(learn.run)


def test_a_scene_is_played_to_its_end(stage):
    async def run():
        learn = Learn("", act)
        await learn.start(scene(see, see), is_guided=False)
        return await over(learn)

    ended = asyncio.run(run())
    assert ended.state is State.DONE
    assert [step.state for step in ended.steps] == [StepState.DONE] * 2
    assert stage[0].restored == 1
    assert ended.restored == ["Everything is as before."]


@pytest.mark.parametrize(
    ("broken", "why"), [(fail, "It did not happen."), (refuse, "broker 2 is not running")]
)
def test_a_failure_is_told_and_undone(stage, broken, why):
    async def run():
        learn = Learn("", act)
        await learn.start(scene(see, broken, see), is_guided=False)
        return await over(learn)

    ended = asyncio.run(run())
    assert ended.state is State.FAILED
    assert ended.error == why
    assert [step.state for step in ended.steps] == [
        StepState.DONE,
        StepState.FAILED,
        StepState.SKIPPED,
    ]
    assert stage[0].restored == 1


def test_what_cannot_be_undone_is_told(stage):
    async def run():
        learn = Learn("", act)
        await learn.start(scene(hang), is_guided=False)
        stage[0].fails_to_restore = True
        await learn.cancel()
        return learn.run

    ended = asyncio.run(run())
    assert ended.state is State.CANCELLED
    assert ended.restored[-1].startswith("✕")


def test_a_cancelled_scene_is_undone_before_the_answer(stage):
    async def run():
        learn = Learn("", act)
        await learn.start(scene(see, hang), is_guided=False)
        await asyncio.sleep(0.01)
        await learn.cancel()
        return learn.run

    ended = asyncio.run(run())
    assert ended.state is State.CANCELLED
    assert stage[0].restored == 1


def test_a_guided_scene_ends_when_its_browser_has_left(stage, monkeypatch):
    monkeypatch.setattr(runner, "LEFT_S", 0.0)

    async def run():
        learn = Learn("", act)
        await learn.start(scene(see, see), is_guided=True)
        return await over(learn)

    ended = asyncio.run(run())
    assert ended.state is State.CANCELLED
    assert ended.steps[1].state is StepState.SKIPPED
    assert stage[0].restored == 1


def test_a_guided_scene_waits_for_its_reader(stage):
    async def run():
        learn = Learn("", act)
        with pytest.raises(Busy):
            await learn.continue_()
        await learn.start(scene(see, see), is_guided=True)
        await until(learn, lambda: learn.run.state is State.WAITING)
        with pytest.raises(Busy, match="is being played"):
            await learn.start(scene(see), is_guided=True)
        assert learn.run.step == 0
        await learn.continue_()
        await until(learn, lambda: learn.run.step == 1 and learn.run.state is State.WAITING)
        assert stage[0].restored == 0
        await learn.continue_()
        return await over(learn)

    assert asyncio.run(run()).state is State.DONE
    assert stage[0].restored == 1


def test_there_are_no_scenes_without_brokers_of_its_own():
    learn = Learn("", None)
    assert "hightide up" in learn.to_json()["why"]
    with pytest.raises(Busy, match="hightide up"):
        asyncio.run(learn.start(next(iter(SCENES.values())), is_guided=False))


def test_there_are_seven_scenes_with_captions():
    assert len(SCENES) == 7
    for found in SCENES.values():
        assert found.title
        assert found.intro
        assert len(found.steps) >= 4
        assert all(step.title and step.text for step in found.steps)
        # The last step waits: the reader looks at the end before the topic is deleted.
        assert found.steps[-1].waits
