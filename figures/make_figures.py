#!/usr/bin/env python3
"""Draw the pictures of the README.

    python figures/make_figures.py            from the run that is stored in figures/runs/
    python figures/make_figures.py --train    repeat that run first (about 15 seconds on one CPU thread)

The run is `train_ppo(ReviewWorld())` with every default and seed 0. Its log is stored whole, with the command that
made it, so each number in a picture can be looked up.
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # so that it also runs from a folder without .venv

from ppo_teach import PPOConfig, ReviewWorld, train_ppo  # noqa: E402
from ppo_teach.plots import plot_compare, plot_loop, plot_run  # noqa: E402
from ppo_teach.train import TrainingLog  # noqa: E402

RUN = HERE / "runs" / "review_default.json"
MOMENTS = (0, 18, 59)  # updates whose reviews stand under the curves


def train():
    """Repeat the stored run."""
    _, log = train_ppo(ReviewWorld(), PPOConfig(), num_updates=60, seed=0)
    log.info["command"] = "python figures/make_figures.py --train"
    log.save(RUN)
    return log


def typical_samples(log, updates):
    """Of the four reviews that the log kept at each of these updates, the second worst."""
    kept = ([sample for sample in log.samples if sample["update"] == update] for update in updates)
    return [sorted(four, key=lambda sample: sample["score"])[1] for four in kept]


def figures(log):
    """File name -> Figure."""
    title = "A language model learns to write good reviews, by PPO, in 60 updates"
    return {
        "hero.png": plot_run(log, typical_samples(log, MOMENTS), title=title),
        "loop.png": plot_loop(),
        "schematic_vs_measured.png": plot_compare(log, title="The chapter's curves beside measured ones"),
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", action="store_true", help="repeat the training run first")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the pictures")
    options = parser.parse_args(arguments)
    log = train() if options.train else TrainingLog.load(RUN)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, figure in figures(log).items():
        figure.savefig(options.out / name, dpi=96)
        print(f"{name}: {(options.out / name).stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
