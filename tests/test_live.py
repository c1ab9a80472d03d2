"""LiveRun: start, pause, interrupt, failure, one run at a time; no task is left behind."""

import asyncio

import pytest

from ppo_teach.live import LiveRun
from ppo_teach.train import TrainingLog


class Counter:
    """A trainer that counts; `trouble` maps an update to the exception it raises there."""

    def __init__(self, trouble=None):
        self.log, self.value, self.trouble = TrainingLog(), 0, trouble or {}

    def step(self):
        self.value += 1  # half of the update is done when the trouble comes
        if (error := self.trouble.pop(len(self.log), None)) is not None:
            raise error
        self.log.append({"value": self.value})

    def state_dict(self):
        return self.value

    def load_state_dict(self, value):
        self.value = value


def tasks():
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


def test_it_trains_to_the_goal_and_goes_on():
    async def use():
        seen = []
        run = LiveRun(Counter(), after=lambda: seen.append((run.status, len(run.log))))
        assert run.status == "ready" and await run.start(3) is run.log
        assert (run.status, len(run.log), run.log.stopped_by) == ("finished", 3, "finished")
        await run.start(5)
        assert len(run.log) == 5 and seen[0] == ("running", 0) and seen[-1] == ("finished", 5)
        assert not tasks()

    asyncio.run(use())


def test_other_work_goes_on_between_updates():
    async def use():
        run, turns = LiveRun(Counter()).start(20), 0
        while run.running:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 20

    asyncio.run(use())


def test_a_pause_is_heard_and_start_goes_on():
    async def use():
        run = LiveRun(Counter()).start(1000)
        await asyncio.sleep(0.05)
        run.pause()
        at = len(run.log)
        log = await run
        assert 0 < at == len(log) < 1000 and (run.status, log.stopped_by) == ("paused", "should_stop")
        run.start(at + 2)
        run.pause()
        run.start(at + 2)  # before the task has seen the pause: still one task
        assert len(tasks()) == 1
        await run
        assert len(log) == at + 2 and not tasks()

    asyncio.run(use())


def test_before_is_called_before_each_update():
    async def use():
        calls = []
        run = LiveRun(Counter(), before=lambda: calls.append(len(run.log)))
        await run.start(3)
        assert calls == [0, 1, 2]

    asyncio.run(use())


def test_half_an_update_is_thrown_away():
    async def use():
        run = LiveRun(Counter({2: KeyboardInterrupt()}))
        log = await run.start(5)
        assert (run.status, log.stopped_by, len(log), run.trainer.value) == ("paused", "interrupt", 2, 2)
        await run.start(5)
        assert log.metrics["value"] == [1, 2, 3, 4, 5]

    asyncio.run(use())


def test_an_error_reaches_who_waits_and_the_run_can_go_on():
    async def use():
        run = LiveRun(Counter({1: FloatingPointError("the loss became nan")}))
        with pytest.raises(FloatingPointError, match="became nan"):
            await run.start(5)
        assert run.status == "failed" and isinstance(run.error, FloatingPointError) and not tasks()
        assert len(await run.start(5)) == 5 and run.error is None

    asyncio.run(use())


def test_an_interrupted_wait_pauses_the_run():
    async def use():
        run = LiveRun(Counter()).start(1000)
        waiting = asyncio.ensure_future(run._wait())
        await asyncio.sleep(0.03)
        waiting.cancel()  # what the kernel does to a cell that waits
        log = await waiting
        assert (run.status, log.stopped_by) == ("paused", "interrupt") and 0 < len(log) < 1000
        await asyncio.sleep(0.02)
        assert not tasks()

    asyncio.run(use())


def test_one_run_at_a_time_and_none_after_close():
    async def use():
        first, second = LiveRun(Counter()).start(1000), LiveRun(Counter())
        await asyncio.sleep(0.02)
        second.start(1000)
        assert first.status == "paused" and second.running
        second.close()
        await asyncio.sleep(0.02)
        assert not tasks() and second.status == "paused"

    asyncio.run(use())


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True, "x", None])
def test_a_goal_is_a_positive_integer(wrong):
    async def use():
        run = LiveRun(Counter())
        with pytest.raises(ValueError, match="num_updates must be an integer >= 1, got"):
            run.start(wrong)
        assert run.status == "ready" and not tasks()

    asyncio.run(use())


def test_a_closed_run_stays_closed():
    async def use():
        run = LiveRun(Counter())
        await run.start(2)
        run.close()
        with pytest.raises(RuntimeError, match="this run is closed"):
            run.start(5)
        assert len(run.log) == 2 and not tasks()

    asyncio.run(use())


def test_it_needs_an_event_loop():
    with pytest.raises(RuntimeError, match="no running event loop"):
        LiveRun(Counter()).start(1)
