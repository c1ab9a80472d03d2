#!/usr/bin/env python3
"""Run PPO against learned reward models and keep what both scores did, for notebook 09.

    python figures/make_hacking.py      writes figures/runs/hacking.json (13 minutes of one CPU thread)

Every row is one run of `ppo_teach.hacking.watched_run` (40 updates of 64 reviews), or one reward model's
best-of-n. Rows are added as they are measured, so a stopped script goes on where it was; delete the file to
measure anew.
"""

import argparse
import json
import os
import sys
from functools import cache
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # so that it also runs from a folder without .venv

from ppo_teach import ReviewWorld, make_reference  # noqa: E402
from ppo_teach import hacking  # noqa: E402
from ppo_teach.exact import find_candidates  # noqa: E402

OUT = HERE / "runs" / "hacking.json"
BETAS, PAIRS, D_MODELS = (0.0, 0.05, 0.1, 0.3, 1.0), (300, 1000, 3000), (8, 32, 64)
SEEDS = {0.1: 5, 0.3: 3}  # rater noise -> number of seeds
UPDATES, BATCH = 40, 64
STOPS = (0, 2, 4, 6, 8, 10, 12, 15, 20, 25, 30, 39)  # updates at which a review is kept
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # n of best-of-n
REMEDIES = ("mean of three", "lowest of three", "clipped score", "length penalty", "fresh pairs")
FRESH_AT, FRESH_PAIRS = 8, 1000


def places():
    """What is measured, in order: (kind, ...), seed by seed so that a short run already has everything once."""
    for seed in range(max(SEEDS.values())):
        for noise, count in SEEDS.items():
            if seed < count:
                yield from (("grid", kl_coef, n, noise, seed) for n in PAIRS for kl_coef in BETAS)
        yield from (("size", d_model, seed) for d_model in D_MODELS)
        yield from (("best of n", d_model, seed) for d_model in D_MODELS)
        if seed < 3:
            yield from (("remedy", name, seed) for name in REMEDIES)


class Bench:
    """The world, the reward models trained so far, and a sample of the reference for best-of-n."""

    def __init__(self, updates=UPDATES, batch=BATCH, samples=4000):
        self.world, self.run = ReviewWorld(), dict(num_updates=updates, batch_size=batch)
        self.model = cache(self.world.train_reward_model)
        self.samples = samples

    @cache  # noqa: B019
    def candidates(self):
        reference = make_reference(self.world.policy())
        draw = torch.Generator().manual_seed(0)
        return find_candidates(self.world, reference, num_samples=self.samples, generator=draw)

    def measure(self, kind, *place):
        return getattr(self, kind.replace(" ", "_"))(*place)

    def grid(self, kl_coef, num_pairs, noise, seed):
        model = self.model(num_pairs, noise, seed)
        run = hacking.watched_run(
            self.world, model, kl_coef, seed=seed, read=STOPS if seed == 0 else (), **self.run
        )  # fmt: skip
        return {name: run[name] for name in (*hacking.SIGNS, "true", "samples")} | {"range": model.score_range}

    def size(self, d_model, seed):
        run = hacking.watched_run(self.world, self.model(3000, 0.1, seed, d_model=d_model), seed=seed, **self.run)
        return {name: run[name] for name in ("learned", "true", "kl")}

    def best_of_n(self, d_model, seed):
        model = self.model(3000, 0.1, seed, d_model=d_model)
        return hacking.best_of_n_scores(self.world, model, self.candidates(), SIZES)

    def remedy(self, name, seed):
        """The remedies that need a run of their own, at β = 0; models of further seeds join the ensemble."""
        models = [self.model(3000, 0.1, seed + 100 * i) for i in range(3 if "three" in name else 1)]
        model, before = models[0], None
        paid = {"mean of three": hacking.mean_of(models), "lowest of three": hacking.least_of(models),
                "clipped score": hacking.clipped(model),
                "length penalty": hacking.length_penalised(model, self.world)}.get(name)  # fmt: skip
        if name == "fresh pairs":
            def before(update, trainer):
                if update == FRESH_AT:
                    more = self.world.sample_pairs(FRESH_PAIRS, 0.1, seed + 500, policy=trainer.policy)
                    trainer.score = self.world.train_reward_model(3000, 0.1, seed, extra_pairs=more)
        run = hacking.watched_run(self.world, model, paid=paid, seed=seed, before=before, **self.run)
        return {key: run[key] for key in ("paid", "learned", "true", "kl", "length", "distinct")}


def rounded(value):
    if isinstance(value, dict):
        return {str(key): rounded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    return round(value, 2) if isinstance(value, float) else value


def main(arguments=None, wanted=None, bench=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="file to write")
    options = parser.parse_args(arguments)
    made = {"command": "python figures/make_hacking.py", "updates": UPDATES, "batch": BATCH, "rows": []}
    if options.out.exists():
        made["rows"] = json.loads(options.out.read_text(encoding="utf-8"))["rows"]
    done, bench = {tuple(row["place"]) for row in made["rows"]}, bench or Bench()
    for place in wanted or places():
        if place not in done:
            made["rows"].append({"place": list(place)} | rounded(bench.measure(*place)))
            part = options.out.with_suffix(".part")
            part.write_text(json.dumps(made, separators=(",", ":")).replace('{"place"', '\n{"place"') + "\n", "utf-8")
            os.replace(part, options.out)
            print(*place, *made["rows"][-1].get("true", ())[-1:], flush=True)


if __name__ == "__main__":
    main()
