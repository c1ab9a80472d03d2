#!/usr/bin/env python3
"""Measure where PPO lands on ChainWorld's reward-KL plane, for the dots of notebook 04.

    python figures/make_frontier.py     writes figures/runs/chain_frontier.json (minutes on one CPU thread)

Each dot is one run: `train_ppo(ChainWorld(), PPOConfig(kl_coef=β), num_updates=60, seed=...)`, every other
setting at its default. Reward and KL of the policy it ends with are exact, by `share_of_gain`.
"""

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # so that it also runs from a folder without .venv

from ppo_teach import ChainWorld, PPOConfig, make_reference, train_ppo  # noqa: E402
from ppo_teach.exact import (  # noqa: E402
    find_candidates,
    next_token_log_probs,
    sequence_log_probs,
    share_of_gain,
)

OUT = HERE / "runs" / "chain_frontier.json"
BETAS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0)
SEEDS = (0, 1, 2)
NUM_UPDATES = 60


def run(world, reference, candidates, kl_coef, seed):
    """One dot: kl_coef, seed, reward, kl, share of the possible gain, likeliest response to each prompt."""
    config = PPOConfig(kl_coef=kl_coef)
    policy, _ = train_ppo(world, config, num_updates=NUM_UPDATES, seed=seed, progress=False)
    gain = share_of_gain(policy, reference, world, kl_coef, candidates=candidates)
    numbers = {name: round(getattr(gain, name), 4) for name in ("reward", "kl", "share")}
    log_probs = sequence_log_probs(next_token_log_probs(policy, world.prompts(), world))
    likeliest = [world.decode(candidates.response_ids[x, i]) for x, i in enumerate(log_probs.argmax(1))]
    return {"kl_coef": kl_coef, "seed": seed, **numbers, "likeliest": likeliest}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="file to write")
    options = parser.parse_args(arguments)
    world = ChainWorld()
    reference = make_reference(world.policy())
    candidates = find_candidates(world, reference)
    runs = []
    for kl_coef in BETAS:
        for seed in SEEDS:
            runs.append(run(world, reference, candidates, kl_coef, seed))
            print(runs[-1], flush=True)
    info = {"command": "python figures/make_frontier.py", "world": "chain", "num_updates": NUM_UPDATES}
    options.out.write_text(json.dumps({"info": info, "runs": runs}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
