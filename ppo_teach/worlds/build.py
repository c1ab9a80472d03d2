"""Rebuild what ships with the worlds, weights and the frontier of ReviewWorld (layer 3):

python -m ppo_teach.worlds.build [--fraction 0.02] [--out DIR]
"""

import argparse
import json
from pathlib import Path

import torch

from ..exact import find_candidates, reward_kl_frontier
from ..models import make_reference
from ..tensor_ops import masked_mean, response_log_probs, response_mask, single_thread
from .chain import WEIGHTS as CHAIN_WEIGHTS
from .chain import ChainWorld, pretrain_chain_policy
from .grammar import PAD, STOP, WORD_ID, sample_corpus
from .review import FRONTIER, WEIGHTS, ReviewWorld, new_policy

BETAS = (0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1, 1.2, 1.5, 2, 3, 5, 10, 100)


def corpus_loss(policy, prompt_ids, response_ids):
    """Cross-entropy of the reviews in nats per response token (scalar); exp of it is the perplexity."""
    logits, _ = policy(torch.cat([prompt_ids, response_ids], dim=1))
    mask = response_mask(response_ids, WORD_ID[STOP], WORD_ID[PAD])
    return -masked_mean(response_log_probs(logits, response_ids), mask)


def pretrain(num_steps=750, batch_size=64, learning_rate=4e-3, seed=0):
    """Train a new policy on reviews that the grammar writes, with a linearly decaying learning rate."""
    generator = torch.Generator().manual_seed(seed)
    policy = new_policy(seed=seed)
    with torch.no_grad():
        # start with words that differ clearly; otherwise it takes five times as long
        # until the model sees that praise follows praise
        policy.trunk.token_embedding.weight.mul_(25)
        policy.trunk.position_embedding.weight.mul_(5)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.1)
    with single_thread():
        for step in range(num_steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * min(1.0, (step + 1) / 50) * (1 - step / num_steps)
            loss = corpus_loss(policy, *sample_corpus(batch_size, generator))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
    return policy


def frontier(world, num_samples):
    """The best reward for each KL, from samples of the reference: dict of lists, one entry a β."""
    generator = torch.Generator().manual_seed(0)
    reference = make_reference(world.policy())
    found = find_candidates(world, reference, num_samples=num_samples, generator=generator)
    curve = reward_kl_frontier(world, reference, BETAS, candidates=found)
    return {name: [round(float(value), 4) for value in array] for name, array in curve.items()}


def main(arguments=None):
    """Train the policies of both worlds and write their weights; then measure the frontier of ReviewWorld."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fraction", type=float, default=1.0, help="share of the training steps, in (0, 1]")
    parser.add_argument("--out", type=Path, default=WEIGHTS.parent, help="folder for the weights")
    options = parser.parse_args(arguments)
    if not 0 < options.fraction <= 1:
        parser.error(f"--fraction must be in (0, 1], got {options.fraction}")
    policy = pretrain(num_steps=max(1, round(750 * options.fraction)))
    options.out.mkdir(parents=True, exist_ok=True)
    torch.save(policy.state_dict(), options.out / WEIGHTS.name)
    chain_policy = pretrain_chain_policy(ChainWorld(), num_steps=max(1, round(400 * options.fraction)))
    torch.save(chain_policy.state_dict(), options.out / CHAIN_WEIGHTS.name)
    curve = frontier(ReviewWorld(options.out / WEIGHTS.name), num_samples=max(200, round(20_000 * options.fraction)))
    (options.out / FRONTIER.name).write_text(json.dumps(curve) + "\n", encoding="utf-8")
    with torch.no_grad():
        loss = corpus_loss(policy, *sample_corpus(2000, torch.Generator().manual_seed(1)))
    print(f"{options.out / WEIGHTS.name}: {loss:.3f} nats per token on unseen reviews")


if __name__ == "__main__":
    main()
