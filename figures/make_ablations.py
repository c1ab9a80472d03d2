"""Measure how close PPO comes to the optimum, and which details matter: python figures/make_ablations.py PART WORLD

PART "gain": the recipe at five KL coefficients. PART "details": the baseline and one change at a time. Both over 5
seeds; what a run reached is its share of the possible gain in reward - kl_coef * KL over the reference (1 = the
optimum), from the policy after its last update. Rows are added to figures/runs/PART_WORLD.json as they are measured,
so a stopped run goes on where it was; delete the file to measure anew. About 10 seconds of one CPU thread a row.
"""

import json
import sys
import time
from pathlib import Path

import torch

from ppo_teach import ChainWorld, PPOConfig, ReviewWorld, make_reference, train_ppo
from ppo_teach.exact import find_candidates, share_of_gain

RUNS = Path(__file__).parent / "runs"
SEEDS = range(5)
KL_COEFS = (0.1, 0.2, 0.3, 0.5, 1.0)
# few, large rollouts; one pass in many small steps; a step size that goes to 0; a critic with a trunk of its own
RECIPE = dict(
    num_updates=64, batch_size=512, critic="separate", num_epochs=1, num_minibatches=8, learning_rate=1e-3,
    lr_schedule="linear",
)  # fmt: skip
BASELINE = RECIPE | dict(batch_size=256, critic="shared", num_epochs=2, num_minibatches=4, kl_coef=0.3)
DETAILS = {  # name -> what is changed against the baseline
    "baseline": {},
    "batch 128, as many updates": dict(batch_size=128),
    "batch 128, twice the updates": dict(batch_size=128, num_updates=128),
    "batch 512, half the updates": dict(batch_size=512, num_updates=32),
    "1 minibatch": dict(num_minibatches=1),
    "8 minibatches": dict(num_minibatches=8),
    "1 epoch": dict(num_epochs=1),
    "4 epochs": dict(num_epochs=4),
    "constant learning rate": dict(lr_schedule="constant"),
    "learning rate / 2": dict(learning_rate=5e-4),
    "learning rate x 2": dict(learning_rate=2e-3),
    "lambda 0.8": dict(lam=0.8),
    "lambda 1": dict(lam=1.0),
    "gamma 0.95": dict(gamma=0.95),
    "separate critic": dict(critic="separate"),
    "value_coef 0.1": dict(value_coef=0.1),
    "critic trained first, 5 updates": dict(value_warmup=5),
    "separate critic, trained first": dict(critic="separate", value_warmup=5),
    "value clipping 0.2": dict(value_clip_epsilon=0.2),
    "whitening per minibatch": dict(whiten_advantages="minibatch"),
    "no whitening": dict(whiten_advantages="none"),
    "clip epsilon 0.1": dict(clip_epsilon=0.1),
    "no clip": dict(clip_epsilon=1e6),
    "no gradient clipping": dict(max_grad_norm=None),
    "Adam eps 1e-5": dict(adam_eps=1e-5),
    "entropy bonus 0.01": dict(entropy_coef=0.01),
    "k3 in the reward": dict(kl_estimator="k3"),
}


def measure(world, reference, candidates, settings, seed):
    """Train once; return a row of results."""
    settings = dict(settings)
    length = {name: settings.pop(name) for name in ("num_updates", "batch_size")}
    policy = world.policy(critic=settings.pop("critic"))
    config = PPOConfig(**settings)
    start = time.process_time()
    policy, _ = train_ppo(world, config, policy=policy, seed=seed, progress=False, **length)
    seconds = time.process_time() - start
    generator = torch.Generator().manual_seed(1000 + seed)
    gain = share_of_gain(
        policy, reference, world, config.kl_coef, candidates=candidates, generator=generator, num_samples=2000
    )
    return dict(
        seed=seed, share=round(gain.share, 4), stderr=round(gain.stderr, 4), reward=round(gain.reward, 3),
        kl=round(gain.kl, 3), seconds=round(seconds, 1),
    )  # fmt: skip


def main(part, world_name):
    torch.set_num_threads(1)
    world = {"chain": ChainWorld, "review": ReviewWorld}[world_name]()
    reference = make_reference(world.policy())
    candidates = find_candidates(world, reference, num_samples=20_000, generator=torch.Generator().manual_seed(9))
    table = DETAILS if part == "details" else {f"kl_coef {beta}": dict(kl_coef=beta) for beta in KL_COEFS}
    base = BASELINE if part == "details" else RECIPE
    path = RUNS / f"{part}_{world_name}.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    done = {(row["name"], row["seed"]) for row in rows}
    for seed in SEEDS:
        for name, change in table.items():
            if (name, seed) in done:
                continue
            rows.append(dict(name=name, **measure(world, reference, candidates, base | change, seed)))
            path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
            print(rows[-1], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
