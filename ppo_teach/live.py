"""A training run that lives beside the notebook: update after update, with room for clicks in between (layer 5)."""

import asyncio
import weakref

# A second run would halve the speed of the first and answer to nobody: starting one pauses the others.
_RUNS = weakref.WeakSet()


class LiveRun:
    """A PPOTrainer advanced by an asyncio task on the kernel's own loop: nothing runs in a second thread.

    After each update the task sleeps for 5 ms, so that clicks and slider moves are heard; a cell that blocks would
    never hear them. `await run` waits for the end (or a pause) and gives the TrainingLog; it raises
    what ended the run, if anything did.

    Args: trainer, anything with `.step()`, `.log`, `.state_dict()` and `.load_state_dict()`; before(), called before
        each update; after(), called after each one, and whenever `.status` changes.
    `.status` is "ready", "running", "paused", "finished" or "failed"; `.error` is the exception that ended it.
    Errors: RuntimeError when started where no event loop runs (a notebook has one), or after `close`.
    Taught in: notebooks/08_training_run.ipynb
    """

    PAUSE = 0.005  # seconds; with 0 a Stop took 1.4 s to be heard

    def __init__(self, trainer, *, before=lambda: None, after=lambda: None):
        self.trainer, self.before, self.after = trainer, before, after
        self.status, self.error, self.task, self.goal, self.closed = "ready", None, None, 0, False
        _RUNS.add(self)

    @property
    def log(self):
        return self.trainer.log

    @property
    def running(self):
        return self.status == "running"

    def start(self, num_updates: int):
        """Train until the log has `num_updates` updates; while it runs, only the goal changes. Returns the run."""
        if isinstance(num_updates, bool) or not isinstance(num_updates, int) or num_updates < 1:
            raise ValueError(f"num_updates must be an integer >= 1, got {num_updates!r}")
        if self.closed:
            raise RuntimeError("this run is closed: make a new one")
        loop = asyncio.get_running_loop()
        self.goal = num_updates
        if self.task is None or self.task.done():
            self.pause_all()
            self.error, self.log.stopped_by = None, None
            self._become("running")
            self.task = loop.create_task(self._train())
        elif self.status == "paused":  # paused a moment ago, its last update is not over
            self._become("running")
        return self

    def pause(self):
        """No further update; the one under way is finished. `start` goes on from there."""
        if self.running:
            self.log.stopped_by = "should_stop"
            self._become("paused")

    @staticmethod
    def pause_all():
        """Pause every run of this process, whoever owns it."""
        for run in list(_RUNS):
            run.pause()

    def close(self):
        """Stop for good; no task survives."""
        self.pause()
        self.closed = True
        _RUNS.discard(self)
        if self.task is not None:
            self.task.cancel()

    def update(self):
        """One update, now. Half of one is thrown away when it is interrupted, so that policy and log fit together."""
        state = self.trainer.state_dict()
        try:
            self.before()
            self.trainer.step()
        except KeyboardInterrupt:
            self.trainer.load_state_dict(state)
            self.log.stopped_by = "interrupt"
            self._become("paused")
        except Exception as error:  # a task's error is silent otherwise; the owner shows it
            self.trainer.load_state_dict(state)
            self.error = error
            self._become("failed")
        else:
            self.after()

    async def _train(self):
        while self.running and len(self.log) < self.goal:
            self.update()
            await asyncio.sleep(self.PAUSE)
        if self.running:
            self.log.stopped_by = "finished"
            self._become("finished")

    def _become(self, status):
        self.status = status
        self.after()

    def __await__(self):
        return self._wait().__await__()

    async def _wait(self):
        if self.task is not None:
            try:
                await asyncio.shield(self.task)  # an interrupted cell must not tear an update apart
            except asyncio.CancelledError:
                self.pause()
                self.log.stopped_by = "interrupt"
        if self.error is not None:
            raise self.error
        return self.log
