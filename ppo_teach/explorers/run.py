"""The live lab, for notebook 08 (layer 6): a training run with its knobs within reach."""

import asyncio
import base64
import html
import io
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import ipywidgets
import numpy as np
import torch

from ..canvas import Explorer, close_all
from ..colors import COLORS
from ..config import PPOConfig
from ..exact import reward_kl_frontier
from ..live import LiveRun
from ..marks import Panel, Slider, format_number, guide, line, points, text
from ..models import make_reference
from ..rewards import kl_estimate
from ..train import PPOTrainer, shaped_advantages
from ..worlds import ReviewWorld
from ..worlds.review import FRONTIER

BATCH = 64  # an update of 8 epochs stays under a quarter of a second, so that a slider is felt
# Policy and critic share a trunk. At 0.1, turning β up to 2 in a run makes returns so large that the critic's gradient
# wrecks the policy within 20 updates (2 of 3 seeds); at 0.02 in none, though the value loss may still jump later on.
VALUE_COEF = 0.02
DRAW_EVERY = 0.1  # seconds between two pictures
CURVES = {  # mark -> metric, panel, meaning
    "reward": ("mean_reward", 0, "score"), "true_score": ("true_score", 0, "black"),
    "kl": ("kl_per_response", 1, "kl"), "clip_fraction": ("clip_fraction", 2, "policy"),
    "entropy": ("entropy", 3, "policy"), "value_loss": ("value_loss", 4, "value"),
}  # fmt: skip
BETAS = (0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2)
EPSILONS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
KNOBS = {"kl_coef": "β", "clip_epsilon": "ε", "gamma": "γ", "lam": "λ", "num_epochs": "epochs", "learning_rate": "lr"}
# name -> sliders that differ from the start, value_coef, what to predict
PRESETS = {
    "Healthy": ({}, VALUE_COEF, "Which curve settles first, and does the KL ever fall?"),
    "No leash": (dict(kl_coef=0, score="learned"), VALUE_COEF,
                 "The policy is paid by a learned score, and KL is free. What will the true score do?"),
    "Huge steps": (dict(clip_epsilon=1.0, num_epochs=8, learning_rate=2e-3), VALUE_COEF,
                   "The clip lets every ratio between 0 and 2 pass, for 8 epochs. Where does the KL go?"),
    "γ = 0.8": (dict(gamma=0.8), VALUE_COEF,
                "A token 10 words before the end sees a tenth of the score. What will the reviews look like?"),
    "No critic": ({}, 0.0, "The critic learns nothing, so the advantage is all luck and score. Does PPO still learn?"),
}  # fmt: skip
NOTHING = dict(x=[np.nan], y=[np.nan])
# A projector is wide and low: two sliders a row, so that the knobs stay on the screen under the curves.
LARGE = (".ppo-large { zoom: 1.5; } .ppo-large .ppo-canvas { max-width: none; } .ppo-large .ppo-choice "
         "{ grid-column: span 2; } .ppo-large .ppo-sliders "
         "{ grid-template-columns: repeat(2, max-content minmax(80px, 1fr) max-content); }")  # fmt: skip


def training_lab(world=None, config=None, *, num_updates=60, seed=0):
    """Train live, with sliders that take effect at the next update: a TrainingLab.

    Args: world, ReviewWorld (default) or ChainWorld; config, PPOConfig where the sliders start (a value between their
        positions becomes one); num_updates, where a run stops by itself; seed, where its slider starts.
    Raises: ValueError naming the argument.
    Taught in: notebooks/08_training_run.ipynb
    """
    world = ReviewWorld() if world is None else world
    config = PPOConfig(value_coef=VALUE_COEF) if config is None else config
    if not hasattr(world, "true_score"):
        raise ValueError(f"world must be a ReviewWorld or a ChainWorld, got {world!r}")
    if not isinstance(config, PPOConfig):
        raise ValueError(f"config must be a PPOConfig, got {config!r}")
    for name, value, low in (("num_updates", num_updates, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ValueError(f"{name} must be an integer >= {low}, got {value!r}")
    return TrainingLab(world, config, num_updates, seed)


def _sliders(config, seed, learned):
    def knob(name, symbol, positions, label, form=None):
        start = getattr(config, name)
        return Slider(name, symbol, sorted({*positions, start}), start, label, form)

    rewards = ("true", "learned") if learned else ("true",)
    return [
        knob("kl_coef", "β", BETAS, "KL coefficient", "{:g}"),
        knob("clip_epsilon", "ε", EPSILONS, "clip epsilon", "{:g}"),
        knob("gamma", "γ", (0.5, 0.8, 0.9, 0.95, 0.99, 1.0), "discount", "{:g}"),
        knob("lam", "λ", (0.0, 0.5, 0.8, 0.9, 0.95, 1.0), "GAE", "{:g}"),
        knob("num_epochs", "K", range(1, 9), "epochs"),
        knob("learning_rate", "α", (1e-4, 2e-4, 5e-4, 1e-3, 2e-3), "learning rate", "{:g}"),
        Slider("seed", "#", sorted({*range(10), seed}), seed, "seed, from the next Reset"),
        Slider("score", "R", rewards, "true", "score that is paid"),
        Slider("colour", "", ("advantage", "KL"), "advantage", "words coloured by"),
    ]  # fmt: skip


def _frontier(world, reference, betas):
    """Arrays beta, reward, kl of the best possible: exact for ChainWorld, shipped for ReviewWorld (with its errors)."""
    if isinstance(world, ReviewWorld):
        return {name: np.array(values) for name, values in json.loads(FRONTIER.read_text()).items()}
    return reward_kl_frontier(world, reference, [beta for beta in betas if beta > 0])


class TrainingLab(Explorer):
    """Six curves, six knobs, the reviews before and now, and a dot on its way to the frontier.

    Buttons and methods: `start()`, `pause()`, `step()`, `restart()`, `keep()` (this run stays in the picture),
    `load(preset)`, `enlarge()` (for a projector), `save()` (links to PNG, SVG and CSV). `await lab.run` waits for
    the end. `.log` is the TrainingLog, `.changes` what was turned when, `.policy` the model.
    One lab trains at a time; making another stops the first.
    Taught in: notebooks/08_training_run.ipynb
    """

    def __init__(self, world, config, num_updates, seed):
        self.world, self.base, self.num_updates = world, config, num_updates
        self.reference, self.learned, self.run = make_reference(world.policy()), None, None
        self.kept, self.changes, self.loop, self.drawn_at = {}, [], _loop(), 0.0
        sliders = _sliders(config, seed, hasattr(world, "train_reward_model"))
        self.best = _frontier(world, self.reference, sliders[0].positions)
        self.room = self._panels()
        buttons = {"Start": self.start, "Pause": self.pause, "Step": self.step, "Reset": self.restart,
                   "Keep this run": self.keep, "Large type": self.enlarge, "Save": self.save}  # fmt: skip
        groups = {"": buttons, "Presets": {name: lambda name=name: self.load(name) for name in PRESETS}}
        groups = {title: {n: self._on_loop(c) for n, c in group.items()} for title, group in groups.items()}
        super().__init__(
            "training_lab", sliders, self.room, self._marks(), height=235, columns=3, actions=groups,
            words="Press Start.",
            caption="Measured live, 64 responses an update. Dotted: the run that was kept. Upright lines: a knob was "
                    "turned.",
            alt="Six small panels: reward, KL, clip fraction, entropy and value loss over the updates, and a dot that "
                "moves from the reference towards the reward-KL frontier.",
        )  # fmt: skip
        self.reviews, self.links = ipywidgets.HTML(), ipywidgets.HTML()
        self.children = [*self.children, self.reviews, self.links]
        self.canvas.observe(lambda _: self._show_reviews(), "position")
        self._restart()

    # ---------------------------------------------------------------- what the buttons do

    def start(self, num_updates=None):
        """Train until the log has `num_updates` updates (default: 60 more once those are reached). Returns the run."""
        if num_updates is None:
            num_updates = self.num_updates * (1 + len(self.log) // self.num_updates)
        return self.run.start(num_updates)

    def pause(self):
        """Stop after the update under way."""
        self.run.pause()

    def step(self):
        """One update."""
        self.run.pause()
        self.run.update()

    def restart(self):
        """Back to the reference, with the seed of the slider. The knobs stay where they are (`reset()` moves them)."""
        self._restart()

    def keep(self):
        """Leave this run's curves in the picture, dotted; pressed before the first update, take them away."""
        self.kept = {name: list(self._series(name)) for name in CURVES} if len(self.log) else {}
        self.draw()
        self.canvas.update("This run stays in the picture, dotted." if self.kept else "No run is kept any more.")

    def load(self, preset):
        """Reset, with the knobs of a preset; the words ask what will happen."""
        if preset not in PRESETS:
            raise ValueError(f"preset must be one of {sorted(PRESETS)}, got {preset!r}")
        values, value_coef, question = PRESETS[preset]
        for slider in self.canvas.sliders:
            if slider.name not in ("seed", "colour"):
                self.sliders[slider.name].value = values.get(slider.name, slider.positions[slider.start])
        self.base = replace(self.base, value_coef=value_coef)
        self._restart(f"{preset}. Predict first: {question} Then press Start.")

    def enlarge(self):
        """Large type, for a projector; again: back to normal."""
        large = "ppo-large" not in self._dom_classes
        (self.add_class if large else self.remove_class)("ppo-large")
        self.layout.max_width = "none" if large else "920px"
        self._show_reviews()

    def save(self):
        """Links to the picture (PNG, SVG) and the log (CSV) as they are now."""
        figure, files = self.canvas.figure(), {}
        for kind, mime in (("png", "image/png"), ("svg", "image/svg+xml")):
            stream = io.BytesIO()
            figure.savefig(stream, format=kind, metadata={"Software": None} if kind == "png" else {"Date": None})
            files[kind] = (mime, stream.getvalue())
        with tempfile.TemporaryDirectory() as folder:
            self.log.to_csv(Path(folder, "log.csv"))
            files["csv"] = ("text/csv", Path(folder, "log.csv").read_bytes())
        self.links.value = "Save: " + " · ".join(
            f'<a download="training_lab.{kind}" href="data:{mime};base64,{base64.b64encode(data).decode()}">'
            f"{kind.upper()}</a>"
            for kind, (mime, data) in files.items()
        )

    def close(self):
        """Stop training and close every widget."""
        if self.run is not None:
            self.run.close()
            close_all(self.reviews, self.links)
        super().close()

    # ---------------------------------------------------------------- the run

    @property
    def log(self):
        return self.run.log

    @property
    def policy(self):
        return self.run.trainer.policy

    def config(self):
        """PPOConfig with the knobs as they stand now."""
        return replace(self.base, **{name: self.sliders[name].value for name in KNOBS})

    def _restart(self, words="Press Start."):
        if self.run is not None:
            self.run.close()
        LiveRun.pause_all()
        self.changes, self.question = [], words
        trainer = PPOTrainer(
            self.world, self.config(), reference=self.reference, reward=self._score(), seed=self.sliders["seed"].value,
            batch_size=BATCH, num_updates=self.num_updates,
        )  # fmt: skip
        self.run = LiveRun(trainer, before=self._turn, after=self._after)
        with torch.no_grad():
            self.before = trainer.sample()  # the first rollout, by the reference itself
            true = self.world.true_score(self.before.prompt_ids, self.before.response_ids)
        self.start_score = float(true.mean())
        trainer.generator.manual_seed(self.sliders["seed"].value)
        self.draw()

    def _score(self):
        if self.sliders["score"].value == "true":
            return "true"
        if self.learned is None:  # 3,000 noisy comparisons; takes about two seconds, once
            self.learned = self.world.train_reward_model(seed=0)
        return self.learned

    def _turn(self):
        """Before an update: take over the knobs, and note which ones were turned."""
        old, new = self.run.trainer.config, self.config()
        for name, symbol in KNOBS.items():
            if getattr(old, name) != getattr(new, name):
                self.changes.append((len(self.log), f"{symbol} {getattr(new, name):g}"))
        controller = self.run.trainer.controller
        if controller is not None and new.kl_coef != old.kl_coef:
            controller.value = float(new.kl_coef)  # an adaptive β goes on from where it is put
        self.run.trainer.config = new

    def _after(self):
        error = self.run.error
        self.canvas.error = "" if error is None else f"Training stopped. {type(error).__name__}: {error}"
        if not self.run.running or time.monotonic() - self.drawn_at > DRAW_EVERY:
            self.draw()

    def _on_loop(self, call):
        """Buttons are heard in another thread in some front ends; training lives on the kernel's loop alone."""
        def pressed():
            try:
                here = asyncio.get_running_loop()
            except RuntimeError:
                here = None
            if self.loop is None or here is self.loop:
                call()
            else:
                self.loop.call_soon_threadsafe(call)
        return pressed

    # ---------------------------------------------------------------- the picture

    def _panels(self):
        to, low = (0, self.num_updates), float(min(-0.5, self.best["reward"].min() - 0.3))
        high = float(np.nanmax(self.best["reward"]) + 0.4)
        return [
            Panel("Is it better?", "", "score", to, (low, high), zero=True),
            Panel("How far has it moved?", "", "KL, nats per response", to, (-0.5, 5), zero=True),
            Panel("Does the clip act?", "", "clip fraction", to, (0, 0.5)),
            Panel("How many choices?", "update", "entropy, nats", to, (0, 2.5)),
            Panel("Does the critic err less?", "update", "value loss", to, (0, 4)),
            Panel("How close to the best?", "KL", "true score", (-0.3, 5), (low, high)),
        ]

    def _marks(self):
        keys = {"reward": "paid score", "true_score": "true score"}
        curves = [line(name, **NOTHING, color=color, panel=panel, label=keys.get(name, ""), label_at="key")
                  for name, (_, panel, color) in CURVES.items()]  # fmt: skip
        kept = [line(f"kept_{name}", **NOTHING, color=color, panel=panel, dash=(2, 3), width=1.6)
                for name, (_, panel, color) in CURVES.items()]  # fmt: skip
        turned = [guide(f"turned_{panel}", [np.nan], "reference", panel=panel, width=1) for panel in range(5)]

        def optimum(name):
            def at(kl_coef):  # unknown below the smallest β that the sample can answer for
                return np.interp(kl_coef, self.best["beta"], self.best[name], left=np.nan)
            return at

        order = np.argsort(self.best["kl"])
        return [*turned, *kept, *curves,
                text("turned", [np.nan], [np.nan], [""], "reference"),
                line("frontier", self.best["kl"][order], self.best["reward"][order], panel=5, label="the best",
                     label_at="key"),
                points("optimum", optimum("kl"), optimum("reward"), "score", panel=5, label="π*", size=11),
                line("trail", **NOTHING, color="policy", panel=5, width=1.2),
                points("now", [np.nan], [np.nan], "policy", panel=5, label="now", size=11)]  # fmt: skip

    def _series(self, name):
        metric = CURVES[name][0]
        if name == "true_score" and self.run.trainer.score == self.world.true_score:
            return []  # the same curve twice
        return [row[metric] for row in self.log.rows]

    def draw(self):
        """The picture of this moment."""
        self.drawn_at = time.monotonic()
        length = max(len(self.log), len(self.kept.get("reward", ())), self.num_updates)
        marks, data = {}, {name: self._series(name) for name in CURVES}
        for prefix, source in (("", data), ("kept_", self.kept)):
            for name in CURVES:
                y = source.get(name) or [np.nan]
                marks[prefix + name] = dict(x=np.arange(len(y)), y=y)
        at, words = [update for update, _ in self.changes] or [np.nan], [told for _, told in self.changes] or [""]
        marks |= {f"turned_{panel}": dict(at=at) for panel in range(5)}
        low, high = self.canvas.panels[0].ylim
        rows = high - 0.08 * (high - low) * (1 + np.arange(len(at)) % 4)  # neighbours must not cover each other
        marks["turned"] = dict(x=np.array(at) + length / 80, y=rows, value=words)
        kl, true = data["kl"] or [0.0], [row["true_score"] for row in self.log.rows] or [self.start_score]
        marks["trail"] = dict(x=kl, y=true)
        marks["now"] = dict(x=[np.mean(kl[-3:])], y=[np.mean(true[-3:])])
        panels = {number: dict(xlim=(0, -(-length // 30) * 30)) for number in range(5)} | {5: {}}
        for number, names in ((0, ("reward", "true_score")), (1, ("kl",)), (4, ("value_loss",))):
            seen = [value for name in names for value in data[name] + list(self.kept.get(name, ()))]
            panels[number]["ylim"] = _room(self.room[number].ylim, seen)
        panels[5] = dict(xlim=_room(self.room[5].xlim, kl), ylim=_room(self.room[5].ylim, true))
        self.canvas.update(self._words(), panels, **marks)
        self._show_reviews()

    def _words(self):
        if not len(self.log):
            return self.question
        row, config = self.log.rows[-1], self.run.trainer.config
        kl_coef = row["kl_coef"]  # the one that was in force, also when it adapts
        worth = row["mean_reward"] - kl_coef * row["kl_per_response"]
        learned = self.run.trainer.score is self.learned
        score = f"learned score {row['mean_reward']:+.2f}, true score {row['true_score']:+.2f}"
        said = (f"Update {len(self.log)} ({self.run.status}): {score if learned else score.split(', ')[1]}, "
                f"KL {row['kl_per_response']:.1f} nats, worth {worth:+.2f} after the bill at β = {kl_coef:.4g}.")
        if kl_coef >= self.best["beta"].min() and not learned:
            best = np.interp(kl_coef, self.best["beta"], self.best["objective"])
            said += f" The best possible is worth {best:+.2f}."
        if not config.value_coef:  # no slider shows it
            said += " The critic learns nothing."
        return said.replace(" -", " −")

    def _show_reviews(self):
        rollout = getattr(self.run.trainer, "rollout", None) if self.run else None
        if self.run is None:
            return
        colour = self.sliders["colour"].value
        columns = [("Before, with the score that is paid", self.before, None),
                   ("Now; dark: far from 0; underlined: below 0", rollout or self.before, colour)]
        style = "width: 50%; padding: 4px 10px; text-align: left; vertical-align: top;"
        cells = "".join(f'<td style="{style}"><b>{title}</b>{self._reviews(batch, meaning)}</td>'
                        for title, batch, meaning in columns)  # fmt: skip
        self.reviews.value = (
            f"<style>{LARGE}</style>"
            f'<table style="width: 100%; background: #fff; color: #1a1a1a; font-size: 14px;"><tr>{cells}</tr></table>'
        )

    def _reviews(self, batch, meaning, count=4):
        values = None
        if meaning == "advantage":
            values = shaped_advantages(batch, self.run.trainer.config, eos_id=self.world.eos_id)[0]
        elif meaning == "KL":
            values = kl_estimate(batch.log_probs_old, batch.log_probs_ref)
        lines = []
        for row in range(min(count, len(batch))):
            said = html.escape(self.world.decode(batch.prompt_ids[row]))
            for place in range(int(batch.mask[row].sum())):
                word = html.escape(self.world.decode(batch.response_ids[row, place : place + 1]))
                said += " " + (word if values is None else _shaded(word, values[row, place].item(), meaning))
            score = format_number("{:+.2f}", batch.scores[row].item())
            lines.append(f'<p style="margin: 3px 0;">{said} <i>{score}</i></p>')
        return "".join(lines)


def _shaded(word, value, meaning):
    """A word on a background as strong as its number; below zero it is underlined: colour is not the only cue."""
    strength = f"{round(255 * min(abs(value) / 3, 1) * 0.8):02x}"
    color = COLORS["kl" if meaning == "KL" else "advantage"] + strength
    line_below = " text-decoration: underline;" if value < 0 else ""
    return f'<span title="{value:+.2f}" style="background: {color};{line_below}">{word}</span>'


def _room(limits, values):
    """Limits that hold all values: they grow by doubling, so that the picture jumps seldom, and never shrink."""
    low, high = limits
    values = [value for value in values if np.isfinite(value)]
    while values and max(values) > high:
        high += high - low
    while values and min(values) < low:
        low -= (high - low) / 2
    return low, high


def _loop():
    try:
        return asyncio.get_running_loop()
    except RuntimeError:  # a script: whoever awaits the run brings a loop
        return None
