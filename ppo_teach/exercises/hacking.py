"""The exercises of notebook 09: a leash and a stop, signs of hacking, a reward of one's own (layer 6)."""

import numpy as np
import torch

from ..checker import OutOfTime, Task, Verdict, call_with_limit, says
from ..config import PPOConfig
from ..hacking import SIGNS, distinct_share, grid_runs, stop_by_signs, watched_run
from ..train import PPOTrainer
from ..worlds import ReviewWorld


def smoothed(curve):
    """Mean of each update and its two neighbours: one batch of 64 is noisy."""
    padded = np.pad(np.asarray(curve, dtype=float), 1, mode="edge")
    return np.convolve(padded, np.ones(3) / 3, mode="valid")


# ---------------------------------------------------------------- 9.1 a leash and a stop

TOLERANCE = 0.25  # of the true score: about two standard errors of a difference of two places in the grid


def check_leash_and_stop(choice, measured, num_pairs=1000, noise=0.3) -> Verdict:
    """Exercise 9.1: choice = (kl_coef, update to stop after), judged by the stored true scores of that budget.

    Args: measured, what `figures/make_hacking.py` stored.
    Taught in: notebooks/09_reward_hacking.ipynb
    """
    say = says("Exercise 9.1")
    if choice is None or choice is ... or (isinstance(choice, tuple) and ... in choice):
        return say(None, attempted=False)
    runs = {place[0]: found for place, found in grid_runs(measured).items() if place[1:] == (num_pairs, noise)}
    true = {kl_coef: smoothed(np.mean([run["true"] for run in runs[kl_coef]], axis=0)) for kl_coef in sorted(runs)}
    if not isinstance(choice, (tuple, list)) or len(choice) != 2:
        return say("not_a_pair", f"You gave {choice!r}; a pair (kl_coef, update) is wanted.")
    kl_coef, stop = choice
    if not isinstance(kl_coef, (int, float)) or kl_coef not in true:
        return say("not_measured", f"β = {kl_coef!r} was not measured. There are {', '.join(f'{b:g}' for b in true)}.")
    last = len(true[kl_coef]) - 1
    if isinstance(stop, bool) or not isinstance(stop, (int, np.integer)) or not 0 <= stop <= last:
        return say("not_an_update", f"You gave {stop!r} as update; the runs have the updates 0 to {last}.")
    yours, own_best = true[kl_coef][stop], true[kl_coef].max()
    best_beta = max(true, key=lambda beta: true[beta].max())
    gap = true[best_beta].max() - yours
    seen = (f"β = {kl_coef:g}, stopped after update {stop}: true score {yours:.2f}, "
            f"{gap:.2f} below the best of the grid.")  # fmt: skip
    if gap <= TOLERANCE:
        return say(None, seen, f"Within {TOLERANCE:g} of the best, chosen without the truth.", ok=True)
    if own_best - yours > TOLERANCE:
        if stop < true[kl_coef].argmax():
            return say("too_early", seen, "Too early for this β. Which sign had already settled when you stopped?")
        return say("too_late", seen, "Too late for this β. Which sign had left its usual range before you stopped?")
    if kl_coef > best_beta:
        return say("too_tight", seen, "Your stop suits this β. How far can a policy go on so short a leash?")
    return say("too_loose", seen, "Your stop suits this β. What does this β allow in the updates before it?")


LEASH = Task(
    "leash_and_stop",
    hints=(
        "Two things can be wrong: the leash, and the moment. Look at the signs for each β on its own first.",
        "On a very tight leash the policy hardly moves, and stays poor. Without one, only the moment protects you.",
        "Either no leash, and a stop where the share out of range shoots up; or 0.1, where it creeps, and a late stop.",
    ),
    source=(watched_run,),
)

# ---------------------------------------------------------------- 9.2 signs of hacking

# The stored runs that are read, (kl_coef, num_pairs, noise, seed): with and without hacking.
LOGS = ((0.0, 3000, 0.1, 0), (1.0, 3000, 0.1, 0), (0.0, 300, 0.1, 0), (0.05, 300, 0.1, 0), (0.0, 1000, 0.1, 1),
        (0.3, 1000, 0.1, 0), (0.0, 3000, 0.1, 2), (0.1, 300, 0.1, 0))  # fmt: skip
HEALTHY, HACKED = 0.3, 0.6  # how much true score a stop may lose, against the best of its run


def check_stop_by_signs(fn, measured) -> Verdict:
    """Exercise 9.2: fn(signs, a dict name -> list without the true score) -> update to stop after, None = never.

    Args: measured, what `figures/make_hacking.py` stored. The function is run on the logs of LOGS.
    Taught in: notebooks/09_reward_hacking.ipynb
    """
    say, runs, losses = says("Exercise 9.2"), grid_runs(measured), []
    if fn is None or fn is ...:
        return say(None, attempted=False)
    if not callable(fn):
        return say("not_a_function", f"You gave a {type(fn).__name__}. Give the function itself.")
    answers = []
    for number, (*place, seed) in enumerate(LOGS):
        run = runs[tuple(place)][seed]
        try:
            stop = call_with_limit(fn, {name: list(run[name]) for name in SIGNS})
        except OutOfTime:
            return say("endless", "Your function did not come to an end.", "Which condition should end its loop?")
        except KeyError as error:
            return say("not_a_sign", f"There is no {error} in the log: it holds {', '.join(SIGNS)}.",
                       "Which of these can stand in for what nobody has?")  # fmt: skip
        except NotImplementedError:
            return say(None, attempted=False)
        except Exception as error:
            return say("exception", f"{type(error).__name__}: {error}", f"It was raised on log {number}.")
        if stop is ...:
            return say(None, attempted=False)
        whole = stop is None or (isinstance(stop, (int, np.integer)) and not isinstance(stop, bool))
        if not whole or (stop is not None and not 0 <= stop < len(run["true"])):
            return say("not_an_update", f"On log {number} your function returned {stop!r}.",
                       f"An update, 0 to {len(run['true']) - 1}, or None for never is wanted.")  # fmt: skip
        answers.append(stop)
    if all(stop is None for stop in answers):  # as a stub does
        return say(None, attempted=False)
    for number, ((*place, seed), stop) in enumerate(zip(LOGS, answers, strict=True)):
        true = smoothed(runs[tuple(place)][seed]["true"])
        at, best = len(true) - 1 if stop is None else int(stop), int(true.argmax())
        loss, healthy = true[best] - true[at], true[-1] > true[best] - HEALTHY
        losses.append(loss)
        where = (f"Log {number} (β = {place[0]:g}, {place[1]} pairs): you stop after update {at}, where the true score "
                 f"is {true[at]:.2f}; at its best, after update {best}, it is {true[best]:.2f}.")  # fmt: skip
        if healthy and at < best and loss > HEALTHY:
            return say("false_alarm", where, "This run is healthy to its end. Which sign did you take for hacking?")
        if loss > HACKED:
            if at < best:
                return say("early", where, "The run was still getting better. Which limit was crossed too soon?")
            return say("late", where, "Which sign had moved before that, and how far does it move in a healthy run?")
    return say(None, f"On {len(LOGS)} logs your stops lose {np.mean(losses):.2f} of true score on average, at most "
               f"{max(losses):.2f}.", ok=True)  # fmt: skip


SIGNS_TASK = Task(
    "stop_by_signs",
    hints=(
        "A sign is good if it stays where it was in healthy runs and moves in hacked ones. Print each for one of both.",
        "The reward model never met a review beyond its training range. What share of its scores lies there?",
        "Go through `enumerate(signs['outside'])` and return the first update whose share is above a limit; else None.",
    ),
    source=(stop_by_signs,),
)

# ---------------------------------------------------------------- 9.3 a reward of one's own

OUTCOMES = {  # prediction -> what must be seen, from before (the first batch) to after (the last)
    "longer": lambda before, after: after["length"] > before["length"] + 2,
    "shorter": lambda before, after: after["length"] < before["length"] - 2,
    "repetition": lambda before, after: after["distinct"] < before["distinct"] - 0.3,
    "never stops": lambda before, after: after["stopped"] < 0.5,
    "no hack": lambda before, after: after["true"] > before["true"] + 0.5,
}


def _batch_facts(rollout, world):
    return {"reward": rollout.scores.mean().item(), "length": rollout.mask.sum(1).float().mean().item(),
            "distinct": distinct_share(rollout.response_ids, rollout.mask).mean().item(),
            "stopped": (rollout.response_ids == world.eos_id).any(1).float().mean().item(),
            "true": world.true_score(rollout.prompt_ids, rollout.response_ids).mean().item()}  # fmt: skip


def check_own_reward(reward, prediction, num_updates=25) -> Verdict:
    """Exercise 9.3: train on your reward without a leash, and hold your prediction against what happens.

    Args: reward(prompt_ids [B, P], response_ids [B, T]) -> [B]; prediction, one of OUTCOMES.
    Taught in: notebooks/09_reward_hacking.ipynb
    """
    say, world = says("Exercise 9.3"), ReviewWorld()
    if reward is None or reward is ...:
        return say(None, attempted=False)
    if not isinstance(prediction, str) or prediction not in OUTCOMES:
        return say("not_a_prediction", f"You predicted {prediction!r}. Choose one of: {', '.join(OUTCOMES)}.")
    x, y, _, _ = world.sample_pairs(8, seed=0)
    try:
        scores = reward(x, y)
        if scores is None or scores is ...:
            return say(None, attempted=False)
        scores = torch.as_tensor(scores)
    except Exception as error:
        return say("exception", f"{type(error).__name__}: {error}", "It was raised on 8 reviews of 14 tokens.")
    if scores.shape != (8,) or not bool(scores.isfinite().all()):
        return say("not_scores", f"For 8 reviews your reward gave shape {list(scores.shape)}: {scores.tolist()}",
                   "Does each review get one finite number?")  # fmt: skip
    trainer = PPOTrainer(world, PPOConfig(kl_coef=0, value_coef=0.1), num_updates=num_updates, batch_size=64,
                         reward=lambda x, y: torch.as_tensor(reward(x, y)).float())  # fmt: skip
    facts = []
    try:
        for _ in range(num_updates):
            trainer.step()
            facts.append(_batch_facts(trainer.rollout, world))
    except Exception as error:
        where = f"It was raised in update {len(facts)}, on 64 reviews."
        return say("exception", f"{type(error).__name__}: {error}", where)
    before, after = facts[0], facts[-1]
    happened = [name for name, seen in OUTCOMES.items() if seen(before, after)] or ["worse in a way of its own"]
    told = ("reward", "length", "distinct", "true")
    moved = "; ".join(f"{name} {before[name]:.2f} to {after[name]:.2f}" for name in told)
    sample = f"{world.decode(trainer.rollout.prompt_ids[0])} {world.decode(trainer.rollout.response_ids[0])}"
    seen = f"In {num_updates} updates: {moved}. The last review: “{sample}”"
    if after["reward"] <= before["reward"] + 1e-3:
        return say("not_learned", seen, "The reward did not rise, so nothing was hacked. Can any review change it?")
    if prediction in happened:
        return say(None, seen, f"As you predicted: {prediction}.", ok=True)
    return say("surprised", seen, f"You predicted “{prediction}”, it became: {', '.join(happened)}.",
               "Which reviews does your reward pay best, whatever you meant by it?")  # fmt: skip


OWN_REWARD = Task(
    "own_reward",
    hints=(
        "`world.encode('great').item()` is a word's id, so `(response_ids == id).sum(1)` counts a word in each review.",
        "Ask what the best-paid text of 14 tokens would be, if you were free to write nonsense.",
        "A reward that counts a word is paid most when every word is that one. A reward per token is paid most when "
        "the review never ends.",
    ),
    source=(watched_run,),
)

EXERCISES = (LEASH, SIGNS_TASK, OWN_REWARD)
