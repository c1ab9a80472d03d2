"""A check-up for a batch of your own (layer 5): plain tensors in, findings in words out."""

from dataclasses import dataclass, fields, is_dataclass
from functools import partial

import torch

from . import losses
from .bugs import BUGS, private_modules
from .losses import clip_fraction, probability_ratio
from .tensor_ops import kl_from_log_ratio, masked_mean, response_mask

# our name -> (what it is, names that other libraries use)
FIELDS = {
    "responses": ("[B, T] token ids", "response_ids query_responses_only completions completion_ids actions"),
    "mask": ("[B, T], 1 = real token", "action_mask response_mask completion_mask loss_mask"),
    "padding_mask": ("[B, T], 1 = padding; used when there is no mask", ""),
    "log_probs_old": ("[B, T] nats, frozen at rollout", "logprobs log_probs old_log_probs action_log_probs"),
    "log_probs_sampled": ("[B, T] nats, as the sampler gave them", "rollout_log_probs sampling_logprobs"),
    "log_probs_ref": ("[B, T] nats, under the reference", "ref_logprobs ref_log_probs base_action_log_probs"),
    "log_probs_new": ("[B, T] nats, of the training pass", "new_logprobs new_log_probs"),
    "entropy": ("[B, T] nats, of the policy at rollout", "entropys"),
    "values": ("[B, T], before each token, frozen at rollout", "values_old old_values"),
    "values_new": ("[B, T], of the training pass", "new_values vpred"),
    "scores": ("[B], one number a response", "score reward_scores"),
    "rewards": ("[B, T], score and KL together", "shaped_rewards token_level_rewards"),
    "kl": ("[B, T] nats", "kls"),
    "advantages": ("[B, T]", ""),
    "returns": ("[B, T]", ""),
    "eos_id": ("a token id", "eos_token_id stop_token_id"),
    "kl_coef": ("number", "beta init_kl_coef"),
    "clip_epsilon": ("number", "cliprange eps_clip clip_coef clip_ratio"),
    "clip_fraction": ("number, as you log it", "clipfrac pg_clipfrac"),
    "mean_ratio": ("number, as you log it", ""),
    "updates_done": ("how many updates came before this rollout", ""),
    "steps_done": ("how many optimiser steps came before this minibatch", ""),
    "policy_loss": ("function of new, old, advantages, mask -> scalar, ε = 0.2", ""),
    "value_loss": ("function of new, returns, old, mask -> scalar", ""),
}
_NUMBERS = ("eos_id", "kl_coef", "clip_epsilon", "clip_fraction", "mean_ratio", "updates_done", "steps_done")
_LOSSES = ("policy_loss", "value_loss")
_FROZEN = ("log_probs_old", "log_probs_ref", "values", "rewards", "kl", "advantages", "returns")


@dataclass(frozen=True)
class Finding:
    """One thing that looks wrong: a short name, what was seen and where to look next, ids of BUGS that it resembles.

    Taught in: notebooks/10_bug_clinic.ipynb
    """

    name: str
    message: str
    resembles: tuple

    def __str__(self):
        like = ", ".join(BUGS[bug].title for bug in self.resembles)
        return f"{self.name}: {self.message}" + (f" Resembles: {like}." if like else "")


def read_batch(batch):
    """Any dict or dataclass of tensors -> dict with our names, masks as bool; unknown names are left out.

    Raises: ValueError naming both fields when two shapes differ, or the field that holds something else.
    """
    if is_dataclass(batch) and not isinstance(batch, type):
        batch = {f.name: getattr(batch, f.name) for f in fields(batch)}
    if not hasattr(batch, "items"):
        raise ValueError(f"batch must be a dict or a dataclass of tensors, got {type(batch).__name__}")
    names = {other: ours for ours, (_, others) in FIELDS.items() for other in (ours, *others.split())}
    found = {names[name]: value for name, value in batch.items() if name in names and value is not None}
    for name, value in found.items():
        if name in _LOSSES:
            if not callable(value):
                raise ValueError(f"{name} must be a {FIELDS[name][0]}, got {type(value).__name__}")
            continue
        try:
            if name in _NUMBERS:
                found[name] = float(value)
                if name == "eos_id":
                    int(found[name])  # NaN is no token
            elif not isinstance(value, torch.Tensor):  # an array is copied: it may be read-only
                found[name] = torch.as_tensor(value.copy() if hasattr(value, "__array__") else value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{name} must be {FIELDS[name][0]}, got {value!r:.60}") from error
    if "scores" not in found and getattr(found.get("rewards"), "ndim", 0) == 1:
        found["scores"] = found.pop("rewards")  # one reward a response is a score
    tables = [name for name, value in found.items() if isinstance(value, torch.Tensor) and name != "scores"]
    for name in tables:
        shape, first = found[name].shape, found[tables[0]].shape
        if len(shape) != 2 or shape != first:
            other = "must have a" if name == tables[0] else f"and {tables[0]} of shape {tuple(first)} must have the same"
            raise ValueError(f"{name} of shape {tuple(shape)} {other} shape [B, T]")
        if "scores" in found and found["scores"].shape != shape[:1]:
            given = tuple(found["scores"].shape)
            raise ValueError(f"scores of shape {given} and {name} of shape {tuple(shape)} must have the same B")
    if "padding_mask" in found:
        found.setdefault("mask", found["padding_mask"] == 0)
    if "mask" in found:
        found["mask"] = found["mask"] != 0
    return found


def checkup(batch):
    """Say what looks wrong in a batch of PPO tensors, and which fault of the clinic it resembles.

    Args: batch, a dict or dataclass with any of FIELDS (or the names that TRL, OpenRLHF and verl use for them). What
        is missing is skipped; without a mask, responses and eos_id give one. Every test is exact up to rounding, but
        for the one that compares -log p with the entropy: it is statistical, and wants 8 responses or more.
    Returns: list of Finding; empty = nothing was seen, which is no proof of health.
    Raises: ValueError for shapes that do not fit together.
    Taught in: notebooks/10_bug_clinic.ipynb
    """
    given = read_batch(batch)
    tensor = next((x for x in given.values() if isinstance(x, torch.Tensor) and x.ndim == 2), None)
    if "mask" not in given and _has(given, "responses", "eos_id"):
        given["mask"] = response_mask(given["responses"].long(), int(given["eos_id"]))
    elif tensor is not None:
        given.setdefault("mask", torch.ones_like(tensor, dtype=torch.bool))
    empty = "mask" in given and not given["mask"].any()  # then there is nothing to average over
    tests = (_storage, _masks, _losses) if empty else _TESTS
    return [Finding(name, message, tuple(like)) for test in tests for name, message, *like in test(given)]


def _has(given, *names):
    return all(name in given for name in names)


def _numbers(given, *names):
    """The tensors in float64, 0 at padding."""
    return [torch.where(given["mask"], given[name].detach().double(), 0.0) for name in names]


def _rounding(given, *names):
    """How far numbers that were once held in 16 bits, and perhaps widened since, may be from the exact ones."""
    far = 0.0
    for real in (given[name].detach()[given["mask"]] for name in names):
        for half in (torch.bfloat16, torch.float16):
            # a few round numbers, typed by hand, are no sign of it
            if real.dtype == half or len(real.unique()) > 8 and torch.equal(real.to(half).to(real.dtype), real):
                far = max(far, torch.finfo(half).eps * real.abs().max().item())
                break
    return far


def _off(a, b, tolerance=1e-3):
    return bool((a - b).abs().max() > tolerance * (1.0 + b.abs().max()))


def _storage(given):
    for name in FIELDS:
        value = given.get(name)
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        real = value[given["mask"]] if value.ndim == 2 else value
        if not real.isfinite().all():
            yield "not finite", f"{name} holds NaN or infinity at a real token. Which step makes the first one?"
        if name in _FROZEN and value.requires_grad:
            yield ("carries gradient", f"{name} still has its graph: a loss could move what it was made from. "
                   "Measure the rollout under no_grad.", "kl_attached", "detach_misplaced")  # fmt: skip
        if name.startswith("log_probs") and (real > 1e-4).any():
            yield "not a log-prob", f"{name} is above 0 somewhere. Is it a probability, or not normalised?"
    if _has(given, "log_probs_new", "values_new"):
        if given["log_probs_new"].requires_grad and not given["values_new"].requires_grad:
            yield ("critic detached", "values_new carries no gradient while log_probs_new does, so the critic "
                   "cannot learn. Look for a detach or a no_grad around the values.", "critic_detached")  # fmt: skip


def _masks(given):
    if _has(given, "responses", "eos_id"):
        right, mask = response_mask(given["responses"].long(), int(given["eos_id"])), given["mask"]
        ends = right & (given["responses"] == given["eos_id"])
        if (ends & ~mask).any():
            yield ("EOS masked", f"the mask leaves out {int((ends & ~mask).sum())} of {int(ends.sum())} EOS tokens, so "
                   "stopping is never learned. Is there a < that should be <=?", "mask_drops_eos")  # fmt: skip
        if (mask & ~right).any():
            yield ("tokens after EOS", f"the mask keeps {int((mask & ~right).sum())} cells behind the first EOS. "
                   "Was it made from pad_id alone?")  # fmt: skip
    if "mask" in given and not given["mask"].any(1).all():
        yield "empty response", "a row of the mask has no real token, so its score falls nowhere."


def _two_passes(given):
    if _has(given, "log_probs_sampled", "log_probs_old"):
        sampled, old = _numbers(given, "log_probs_sampled", "log_probs_old")
        gap = ((sampled - old).abs().sum() / given["mask"].sum()).item()
        if gap > 0.02:
            yield ("sampler and training disagree", f"the same tokens differ by {gap:.2f} nats on average. Compare "
                   "mask, shift, temperature and top-k of the two passes.", "no_causal_mask", "logits_late",
                   "filtered_log_probs", "temperature_sampling_only")  # fmt: skip
    if _has(given, "log_probs_new", "log_probs_old"):
        new, old = _numbers(given, "log_probs_new", "log_probs_old")
        gap, done = (new - old).abs().max().item(), given.get("steps_done", 0)
        if not done and gap > 1e-3 + _rounding(given, "log_probs_new", "log_probs_old"):
            yield ("ratio not 1 at the start", f"before any step, a log-prob has moved by {gap:.3f} nats. Look for "
                   "dropout, another precision, another temperature.", "dropout_on")  # fmt: skip
        if done and gap == 0:
            yield ("ratio always 1", f"after {done:.0f} optimiser steps new and old log-probs are equal, so the clip "
                   "cannot act. Where are the old ones taken?", "old_recomputed")  # fmt: skip


def _own_samples(given):
    if not _has(given, "log_probs_old", "entropy") or len(given["entropy"]) < 8:
        return
    old, entropy = _numbers(given, "log_probs_old", "entropy")
    excess, tokens = (-old - entropy).sum(1), given["mask"].sum()
    mean, error = (excess.sum() / tokens).item(), (excess.std() * len(excess) ** 0.5 / tokens).item()
    if abs(mean) > max(5 * error, 0.1):
        like = ["random_responses"] if mean > 0 else ["temperature_sampling_only", "filtered_log_probs"]
        gap = f"{abs(mean):.2f} nats {'less' if mean > 0 else 'more'} likely"
        yield ("not the policy's own samples", f"the tokens are {gap} than the entropy says. Was another temperature, "
               "a filter, another policy at work?", *like)  # fmt: skip


def _reference(given):
    if not _has(given, "log_probs_old", "log_probs_ref"):
        return
    old, ref = _numbers(given, "log_probs_old", "log_probs_ref")
    ratio, updates = old - ref, given.get("updates_done", 0)
    if updates > 0 and not ratio.any():
        yield ("reference equals policy", f"after {updates:.0f} updates the KL is exactly 0. Do the two share their "
               "weights?", "reference_is_policy")  # fmt: skip
    rounded = _rounding(given, "log_probs_old", "log_probs_ref")
    off = lambda a, b, more=1.0: _off(a, b, 1e-3 + more * rounded)
    kinds = [kl_from_log_ratio(ratio, name) for name in ("k1", "k2", "k3")]
    wrong = {"kl_sign": -ratio, "kl_clamped": ratio.clamp(min=0), "k3_upside_down": kl_from_log_ratio(-ratio, "k3")}
    if "kl" in given:
        (kl,) = _numbers(given, "kl")
        if all(off(kl, kind) for kind in kinds):
            like = [bug for bug, kind in wrong.items() if not off(kl, kind)]
            yield ("KL is no estimate", "kl is neither k1, k2 nor k3 of log_probs_old and log_probs_ref. Check the "
                   "sign, the order of the two, and whether anything is cut off.", *like)  # fmt: skip
    if not _has(given, "rewards", "scores", "kl_coef"):
        return
    paid, scores, mask = _numbers(given, "rewards")[0].sum(1), given["scores"].double(), given["mask"]
    price = lambda kl: given["kl_coef"] * kl.sum(1)
    more = given["kl_coef"] * mask.shape[1] ** 0.5  # errors of a sum
    after = mask | torch.cat([mask[:, :1], mask[:, :-1]], dim=1)  # TRL pays the score one cell after the last real token
    late = torch.where(after, given["rewards"].detach().double(), 0.0).sum(1)
    if all(off(total, scores - price(kl), more) for kl in kinds for total in (paid, late)):
        like = [bug for bug, kl in wrong.items() if not off(paid, scores - price(kl), more)]
        places = {"score_on_pad": torch.where(mask[:, -1], scores, 0), "score_every_token": scores * mask.sum(1)}
        like += [bug for bug, score in places.items() if not all(off(paid, score - price(kl), more) for kl in kinds)]
        gap = (paid - scores + price(kinds[0])).abs().max()
        yield ("rewards do not add up", "a response's rewards should sum to its score minus kl_coef times its KL; the "
               f"largest distance is {gap:.2f}. Add up one row by hand.", *like)  # fmt: skip


def _advantages(given):
    if "advantages" not in given or given["mask"].sum() < 4:
        return
    mask, cells = given["mask"], given["advantages"].detach().double()
    mean, spread = cells[mask].mean().item(), cells[mask].std(correction=0).item()
    if "log_probs_new" in given:  # part of a rollout: whitened with the rest of it
        return
    whitened, raw = abs(spread - 1) < 0.01, None
    over_all = abs(cells.mean()) < 1e-3 and abs(cells.std(correction=0) - 1) < 1e-3
    if _has(given, "returns", "values"):
        A, G, V = _numbers(given, "advantages", "returns", "values")
        raw = not _off(A, G - V)
    if over_all and abs(mean) > 1e-3:
        yield ("whitened with the pads", f"mean 0 over all cells, but {mean:.2f} over the real tokens. Does the "
               "whitening get the mask?", "whitened_over_pads")  # fmt: skip
    elif whitened and not raw and abs(mean) > 1e-2:
        yield ("not centred", f"spread 1, but mean {mean:.2f}: scaled as in whitening, but not shifted. Is the mean "
               "added back?", "mean_added_back")  # fmt: skip
    if raw and (over_all or whitened and abs(mean) < 1e-3):
        yield ("returns from whitened advantages", "returns - values has mean 0 and spread 1, so the critic's targets "
               "have lost the units of the reward. Which is made first?", "returns_whitened")  # fmt: skip
    elif _has(given, "rewards", "returns", "responses", "eos_id"):
        rewards, returns = _numbers(given, "rewards", "returns")
        ends = mask & (given["responses"] == given["eos_id"])
        if ends.any() and _off(returns[ends], rewards[ends]):
            yield ("a finished response has a future", "at an EOS the return is up to "
                   f"{(returns - rewards)[ends].abs().max():.2f} away from the reward there, but nothing follows. "
                   "What is V after the last token?", "bootstraps_itself")  # fmt: skip


def _reports(given):
    if not _has(given, "log_probs_new", "log_probs_old"):
        return
    (new, old), mask = _numbers(given, "log_probs_new", "log_probs_old"), given["mask"]
    if "mean_ratio" in given:
        right = masked_mean(probability_ratio(new, old), mask).item()
        if abs(right - given["mean_ratio"]) > 0.01 * right:
            yield ("the mean counts pads", f"mean_ratio is logged as {given['mean_ratio']:.2f}; over the real tokens "
                   f"it is {right:.2f}. By what does your mean divide?", "mean_over_pads")  # fmt: skip
    if _has(given, "clip_fraction", "clip_epsilon", "advantages"):
        right = clip_fraction(new, old, given["advantages"].detach().double(), given["clip_epsilon"], mask).item()
        ratio, rounded = probability_ratio(new, old), _rounding(given, "log_probs_new", "log_probs_old")
        edge = ((ratio - 1).abs() - given["clip_epsilon"]).abs() < rounded * ratio  # these may fall on either side
        if abs(right - given["clip_fraction"]) > 1e-3 + 0.01 * right + masked_mean(edge.double(), mask).item():
            yield ("clip fraction is off", f"logged as {given['clip_fraction']:.3f}; over the real tokens it is "
                   f"{right:.3f}.", "clip_fraction_over_pads", "mean_over_pads")  # fmt: skip


def _slope(loss, at):
    """∂ loss / ∂ at, 0 where there is none."""
    leaf = at.clone().requires_grad_()
    with torch.enable_grad():
        value = loss(leaf)
        if not isinstance(value, torch.Tensor) or value.ndim:
            raise ValueError(f"a loss must be a scalar tensor, got {value!r:.60}")
        found = torch.autograd.grad(value, leaf, allow_unused=True)[0] if value.requires_grad else None
    return torch.zeros_like(at) if found is None else found


def _losses(given):
    """The gradients of your losses on nine tokens and three pads, held against the right ones and the clinic's."""
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]]) != 0
    at = torch.tensor([[-1.7, -1.1, -0.9, -0.5, -1.0, -0.7]]).double().repeat(2, 1)
    old, A = torch.full_like(at, -1.0), torch.tensor([[2.0], [-1.0]]).double().expand_as(at)
    G = torch.tensor([[1.0], [-3.0]]).double().expand_as(at)
    policy = lambda module: lambda x: module.clipped_policy_loss(x, old, A, 0.2, mask)
    critic = lambda module: lambda x: module.value_loss(x, G, mask, old, 0.2)
    plain = lambda module: lambda x: module.value_loss(x, G, mask)
    cases = {"policy_loss": ((old, A, mask), (policy,)), "value_loss": ((G, old, mask), (critic, plain))}
    for name in [name for name in cases if name in given]:
        rest, rights = cases[name]
        yours = _slope(partial(_first, given[name], rest), at)
        right = [_slope(of(losses), at) for of in rights]
        if any(not _off(yours, factor * slope, 1e-4) for slope in right for factor in (1.0, 0.5)):
            continue  # 1/2 of a squared error is fine too
        suspects = [bug for bug in BUGS.values() if bug.module == "losses" or bug.id == "mean_over_pads"]
        slopes = {bug.id: _slope(rights[0](private_modules(bug)["losses"]), at) for bug in suspects}
        like = [bug for bug, slope in slopes.items() if _off(slope, right[0], 1e-4) and not _off(yours, slope, 1e-4)]
        yield (f"{name} pulls wrongly", "on tokens inside and outside the band, and on pads, its gradient is not that "
               "of PPO. Work out the slope of one token by hand.", *like)  # fmt: skip


def _first(loss, rest, x):
    return loss(x, *rest)


_TESTS = (_storage, _masks, _two_passes, _own_samples, _reference, _advantages, _reports, _losses)
