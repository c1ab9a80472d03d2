#!/usr/bin/env python3
"""Train ReviewWorld's reward model on few and many pairs, from steady and careless raters, for notebook 02.

    python figures/make_reward_models.py    writes figures/runs/reward_models.json (minutes on one CPU thread)

Each row is `ReviewWorld().train_reward_model(num_pairs, noise, seed)`, held against pairs and reviews that it
has not seen. Rows are added as they are measured, so a stopped run goes on where it was; delete the file to
measure anew.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # so that it also runs from a folder without .venv

from ppo_teach import ReviewWorld  # noqa: E402

OUT = HERE / "runs" / "reward_models.json"
PAIRS, NOISES, SEEDS = (30, 100, 300, 1000, 3000), (0.0, 0.1, 0.2, 0.3, 0.4), (0, 1, 2)
DRAWN = 0  # the seed whose scores are kept for the pictures
NUM_BINS, NUM_REVIEWS = 10, 150


def rounded(tensor):
    return [round(value, 3) for value in tensor.tolist()]


def measure(world, num_pairs, noise, seed):
    """One row: accuracy and correlation; for one seed also what the pictures need.

    difference, preferred [NUM_BINS]: held-out pairs sorted by the model's score difference (not normalised) and
    cut into bins of equal size: the mean difference, and how often the raters chose the first.
    learned [NUM_REVIEWS]: the scores of the reviews in the file's "true".
    """
    model = world.train_reward_model(num_pairs, noise, seed)
    prompt_ids, first, second, chosen = world.sample_pairs(4000, noise, seed=900)
    learned, true = model(prompt_ids, first), world.true_score(prompt_ids, first)
    row = dict(num_pairs=num_pairs, noise=noise, seed=seed, accuracy=round(model.accuracy, 3),
               true_accuracy=round(model.true_accuracy, 3),
               correlation=round(torch.corrcoef(torch.stack([learned, true]))[0, 1].item(), 3))  # fmt: skip
    if seed == DRAWN:
        difference = (learned - model(prompt_ids, second)) * model.std
        order = difference.argsort(stable=True)
        row["difference"] = rounded(difference[order].view(NUM_BINS, -1).mean(1))
        row["preferred"] = rounded(chosen[order].float().view(NUM_BINS, -1).mean(1))
        row["learned"] = rounded(learned[:NUM_REVIEWS])
    return row


def main(arguments=None, grid=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="file to write")
    options, world = parser.parse_args(arguments), ReviewWorld()
    prompt_ids, first, _, _ = world.sample_pairs(4000, 0.0, seed=900)
    true = rounded(world.true_score(prompt_ids, first)[:NUM_REVIEWS])
    made = {"command": "python figures/make_reward_models.py", "true": true, "rows": []}
    if options.out.exists():
        made["rows"] = json.loads(options.out.read_text(encoding="utf-8"))["rows"]
    done = {(row["num_pairs"], row["noise"], row["seed"]) for row in made["rows"]}
    for place in grid or [(n, noise, seed) for seed in SEEDS for noise in NOISES for n in PAIRS]:
        if place not in done:
            made["rows"].append(measure(world, *place))
            options.out.write_text(json.dumps(made) + "\n", encoding="utf-8")
            print(*place, made["rows"][-1]["correlation"], flush=True)


if __name__ == "__main__":
    main()
