"""Reward hacking under watch (layer 5): a run paid by a learned score, its signs, and the true score beside them."""

import torch

from .config import PPOConfig
from .exact import best_of_n_kl_bound, best_of_n_log_probs
from .tensor_ops import check_same_shape, response_mask
from .train import PPOTrainer

SIGNS = ("learned", "outside", "kl", "length", "distinct", "entropy")  # what a practitioner sees; "true" is not


def distinct_share(response_ids, mask):
    """Different words / words of each response, [B, T] -> [B]: 1 = no word twice, 1/T = one word, T times.

    Taught in: notebooks/09_reward_hacking.ipynb
    """
    check_same_shape(response_ids=response_ids, mask=mask)
    mask = mask.bool()
    same = (response_ids.unsqueeze(2) == response_ids.unsqueeze(1)) & mask.unsqueeze(1)  # [B, T, T]
    repeated = same.tril(-1).any(2) & mask
    return 1 - repeated.sum(1) / mask.sum(1).clamp(min=1)


def hacking_signs(rollout, model):
    """What can be seen of a batch without the true score: dict of floats.

    learned: mean score by `model`; outside: share of scores beyond `model.score_range`; kl: nats per response;
    length: tokens; distinct: `distinct_share`; entropy: nats per token.
    Taught in: notebooks/09_reward_hacking.ipynb
    """
    scores, (low, high) = model(rollout.prompt_ids, rollout.response_ids), model.score_range
    mask = rollout.mask
    return {
        "learned": scores.mean().item(),
        "outside": ((scores < low) | (scores > high)).float().mean().item(),
        "kl": ((rollout.log_probs_old - rollout.log_probs_ref) * mask).sum(1).mean().item(),
        "length": mask.sum(1).float().mean().item(),
        "distinct": distinct_share(rollout.response_ids, mask).mean().item(),
        "entropy": (rollout.entropy * mask).sum().item() / mask.sum().item(),
    }


def watched_run(
    world, model, kl_coef=0.0, *, paid=None, num_updates=40, batch_size=64, seed=0, before=None, read=()
):  # fmt: skip
    """PPO on a learned score, with its signs and the true score at every update.

    Args: model, a LearnedRewardModel; paid, the reward that PPO gets (default: the model), a callable
        (prompt_ids, response_ids) -> [B]; before(update, trainer), called before each update; read, the updates
        at which one review (the first to the world's first prompt) is kept.
    Returns: dict: each of SIGNS, true and paid, a list with one number an update; samples, update -> dict with
        words, scores (what each word adds to the learned score, in its units), learned and true; policy.
    Taught in: notebooks/09_reward_hacking.ipynb
    """
    trainer = PPOTrainer(
        world, PPOConfig(kl_coef=kl_coef, value_coef=0.1), reward=model if paid is None else paid,
        num_updates=num_updates, batch_size=batch_size, seed=seed,
    )  # fmt: skip
    rows, samples = [], {}
    for update in range(num_updates):
        if before is not None:
            before(update, trainer)
        row = trainer.step()
        rows.append(
            hacking_signs(trainer.rollout, model) | {"true": row["true_score"], "paid": row["mean_reward"]}
        )
        if update in read:
            samples[update] = read_review(world, model, trainer.rollout)
    return {name: [row[name] for row in rows] for name in rows[0]} | {"samples": samples, "policy": trainer.policy}


def read_review(world, model, rollout):
    """The first review of a rollout to the world's first prompt, word by word: dict words, scores, learned, true.

    Taught in: notebooks/09_reward_hacking.ipynb
    """
    asked = (rollout.prompt_ids == world.prompts[0]).all(1)
    i = int(asked.int().argmax())  # 0 where nobody was asked that
    x, y, length = rollout.prompt_ids[i : i + 1], rollout.response_ids[i : i + 1], int(rollout.mask[i].sum())
    return {
        "words": [world.decode(y[0, t : t + 1]) for t in range(length)],
        "scores": model.word_scores(x, y)[0, :length].tolist(),
        "learned": model(x, y).item(),
        "true": world.true_score(x, y).item(),
    }


def best_of_n_scores(world, model, candidates, sizes):
    """Best of n by the learned score, without training: dict of lists n, kl, learned, true (means over prompts).

    Each prompt's candidates stand for the reference; which of n draws from them wins is computed, not drawn. kl is
    the bound log n - (n - 1) / n.
    Args: candidates, of `find_candidates`; sizes, the numbers n.
    Taught in: notebooks/09_reward_hacking.ipynb
    """
    N, M, T = candidates.response_ids.shape
    rows = candidates.prompt_ids.repeat_interleave(M, 0), candidates.response_ids.reshape(N * M, T)
    learned, true = (score(*rows).double().view(N, M) for score in (model, world.true_score))
    found = {"n": list(sizes), "kl": [best_of_n_kl_bound(n) for n in sizes], "learned": [], "true": []}
    for n in sizes:
        chosen = best_of_n_log_probs(candidates.log_weights, learned, n).exp()
        found["learned"].append((chosen * learned).sum(1).mean().item())
        found["true"].append((chosen * true).sum(1).mean().item())
    return found


def mean_of(models):
    """An ensemble's mean score: callable (prompt_ids, response_ids) -> [B]. Source: Coste et al. 2024.

    Taught in: notebooks/09_reward_hacking.ipynb
    """
    return lambda prompt_ids, response_ids: torch.stack([m(prompt_ids, response_ids) for m in models]).mean(0)


def least_of(models):
    """An ensemble's lowest score, so that one doubter is enough. Source: Coste et al. 2024.

    Taught in: notebooks/09_reward_hacking.ipynb
    """
    return lambda prompt_ids, response_ids: torch.stack([m(prompt_ids, response_ids) for m in models]).amin(0)


def clipped(model):
    """The model's score, cut to the range that it gave its training data.

    Taught in: notebooks/09_reward_hacking.ipynb
    """
    return lambda prompt_ids, response_ids: model(prompt_ids, response_ids).clamp(*model.score_range)


def length_penalised(model, world, cost=0.1):
    """The model's score minus `cost` for each token.

    Taught in: notebooks/09_reward_hacking.ipynb
    """
    def score(prompt_ids, response_ids):
        return model(prompt_ids, response_ids) - cost * response_mask(
            response_ids, world.eos_id, world.pad_id
        ).sum(1)
    return score


def grid_runs(measured):
    """The stored grid of `figures/make_hacking.py`: (kl_coef, num_pairs, noise) -> its runs, one a seed.

    Taught in: notebooks/09_reward_hacking.ipynb
    """
    found = {}
    for row in measured["rows"]:
        if row["place"][0] == "grid":
            found.setdefault(tuple(row["place"][1:4]), []).append(row)
    return found


def stop_by_signs(signs, limit=0.5):
    """The first update at which more than `limit` of the scores lie outside the training range; None = never.

    Args: signs, dict name -> list, as `watched_run` gives it. Taught in: notebooks/09_reward_hacking.ipynb
    """
    return next((update for update, share in enumerate(signs["outside"]) if share > limit), None)
