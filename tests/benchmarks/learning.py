"""ReviewWorld: which share of the possible gain in reward - kl_coef * KL does PPO reach within 20 s of one CPU thread?

0 is the reference, 1 the KL-regularised optimum; both come from 10,000 samples a prompt (ppo_teach/exact.py), and their
sampling error is printed. The budget covers everything from the world's weights on, the optimizer's slow first
construction included. `--rounds` does not matter here: a run is repeated over three seeds.
"""

import math
import statistics
import time

import torch

from ppo_teach import PPOConfig, PPOTrainer, ReviewWorld, make_reference
from ppo_teach.exact import find_candidates, optimal_policy, share_of_gain

from .timing import verdict

KL_COEF, SECONDS, SEEDS = 0.3, 20.0, (0, 1, 2)
# name -> config, batch size, updates: the course's defaults, and what reaches more in twice the time
RUNS = {
    "defaults, 60 updates of 128": (PPOConfig(kl_coef=KL_COEF), 128, 60),
    "learning rate 2e-3 to 0, 1 epoch of 4 minibatches, 110 updates of 256": (
        PPOConfig(kl_coef=KL_COEF, learning_rate=2e-3, lr_schedule="linear", num_epochs=1, num_minibatches=4), 256, 110,
    ),  # fmt: skip
}


def run(rounds):
    """Print share and seconds of each run. Returns whether the best of them meets the target."""
    torch.set_num_threads(1)
    world = ReviewWorld()
    reference = make_reference(world.policy())
    generator = torch.Generator().manual_seed(0)
    candidates = find_candidates(world, reference, generator=generator)
    best = optimal_policy(world, reference, KL_COEF, candidates=candidates)
    print(f"Learning, ReviewWorld, kl_coef {KL_COEF}, one thread, mean over seeds {SEEDS}")
    print(f"  optimum: reward {best.reward:.2f}, KL {best.kl:.2f} nats; effective sample size {best.ess:.0f}")
    results = {}
    for name, (config, batch_size, num_updates) in RUNS.items():
        shares, errors, seconds = [], [], []
        for seed in SEEDS:
            start = time.process_time()
            trainer = PPOTrainer(world, config, num_updates=num_updates, batch_size=batch_size, seed=seed)
            for _ in range(num_updates):
                trainer.step()
            seconds.append(time.process_time() - start)
            gain = share_of_gain(
                trainer.policy, reference, world, KL_COEF, candidates=candidates, generator=generator
            )  # fmt: skip
            shares.append(gain.share)
            errors.append(gain.stderr)
        results[name] = statistics.mean(shares), statistics.mean(seconds)
        each = ", ".join(f"{share:.3f}" for share in shares)
        print(
            f"  {name}: {results[name][0]:.3f} of the possible gain ({each}; sampling error of one {max(errors):.3f})\n"
            f"    {results[name][1]:.1f} s CPU a run, {1e3 * results[name][1] / num_updates:.0f} ms an update"
        )
    in_time = [share for share, seconds in results.values() if seconds <= SECONDS]
    text, met = verdict(max(in_time, default=-math.inf), 0.9, unit="")
    print(f"  best within {SECONDS:.0f} s: {text}")
    return met
