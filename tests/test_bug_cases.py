"""The bugs that real PPO code has had, as numbers. Each case of bug_cases.json has inputs, what is right, and
what the known mistakes give. The package must agree with the first; the comparison must refuse the others:
the numbers listed, and the same mistakes made here in a line.
"""

import contextlib
import json
import math
from pathlib import Path
from unittest import mock

import pytest
import torch
from stubs import ForeignActorCritic, HuggingFaceStyle, ProbeWorld, perturbed, tiny_lm
from torch import nn

import ppo_teach as pt
from ppo_teach import rollout as rollout_module
from ppo_teach import train
from ppo_teach.models import sample_tokens
from ppo_teach.tensor_ops import position_ids
from ppo_teach.train import minibatch_loss, ppo_epochs

CASES = {case["id"]: case for case in json.loads(Path(__file__).with_name("bug_cases.json").read_text())}
LISTED = [(name, variant) for name, case in CASES.items() for variant in case.get("faulty", {})]


def t(x):
    """A list of the file as a float64 tensor; "nan" stands for NaN."""
    if x == "nan":
        x = math.nan
    elif isinstance(x, list):
        return torch.stack([t(part) for part in x])
    return torch.tensor(x, dtype=torch.float64)


def ids(x):
    return torch.tensor(x, dtype=torch.long)


def agree(computed, case):
    """Assert that every expected output is there and equal within the case's tolerance; NaN never is."""
    for name, wanted in case["expected"].items():
        got = computed[name]
        if isinstance(wanted, bool) or (isinstance(wanted, list) and isinstance(wanted[0], str)):
            assert got == wanted, f"{name} is {got}, not {wanted}"
            continue
        got, wanted = got.double() if isinstance(got, torch.Tensor) else t(got), t(wanted)
        assert got.shape == wanted.shape, f"{name} has shape {tuple(got.shape)}, not {tuple(wanted.shape)}"
        error = (got - wanted).abs()
        if "attention_mask" in case.get("inputs", {}):
            error = error[t(case["inputs"]["attention_mask"]) != 0]
        assert bool((error <= case["tolerance"]).all()), f"{name} is {got.tolist()}, not {wanted.tolist()}"


def with_gradient(function, x):
    """The value of function(x) and its gradient."""
    x = x.clone().requires_grad_(True)
    value = function(x)
    value.backward()
    return value.detach(), x.grad


# ---------------------------------------------------------------- what the package computes

CORRECT, FAULTY = {}, {}


def correct(name):
    return lambda function: CORRECT.setdefault(name, function)


def faulty(name, variant):
    return lambda function: FAULTY.setdefault((name, variant), function)


@correct("LP01-shift-by-one")
def _(x):
    response = ids(x["input_ids"])[:, x["prompt_len"] :]
    return {"logprobs": pt.response_log_probs(t(x["logits"]), response, x["temperature"])}


@faulty("LP01-shift-by-one", "logits at the token's own position")
def _(x):
    own = t(x["logits"])[:, x["prompt_len"] :].log_softmax(-1)
    return {"logprobs": own.gather(-1, ids(x["input_ids"])[:, x["prompt_len"] :].unsqueeze(-1)).squeeze(-1)}


@correct("LP02-value-alignment")
def _(x):
    values = t(x["values_full"])
    return {"values": pt.response_values(values, values.shape[1] - x["prompt_len"])}


@faulty("LP02-value-alignment", "values one late")
def _(x):
    return {"values": t(x["values_full"])[:, x["prompt_len"] :]}


def laid_over_next_tokens(x, shift):
    """Put the response's mask where `response_values` reads, moved by `shift`."""
    mask, length = t(x["response_token_mask"]), x["seq_len"]
    where = pt.response_values(torch.arange(length).unsqueeze(0), mask.shape[1]) + shift
    out = torch.zeros(1, length).double().scatter(1, where, mask)
    return {"next_token_mask": out[:, : length - 1]}


correct("LP03-next-token-mask-alignment")(lambda x: laid_over_next_tokens(x, 0))
faulty("LP03-next-token-mask-alignment", "mask one place too late")(lambda x: laid_over_next_tokens(x, 1))
faulty("LP03-next-token-mask-alignment", "mask one place too early")(lambda x: laid_over_next_tokens(x, -1))


def sampled_with_top_k(x):
    """The log-probability that sampling stores for the case's token, and that of the training pass."""
    logits = t(x["logits"]).expand(64, -1)
    tokens, stored = sample_tokens(logits, top_k=x["top_k"], generator=torch.Generator().manual_seed(0))
    assert set(tokens.tolist()) == {0, 1}, "only the two likeliest tokens may be drawn"
    again = pt.response_log_probs(t(x["logits"]).expand(1, 2, -1), ids([[x["token"]]]))
    return stored[tokens == x["token"]][:1], again[0]


@correct("LP05-topk-filtered-logprob")
def _(x):
    stored, again = sampled_with_top_k(x)
    return {"raw_logprob": stored[0], "ratio_same_weights": pt.probability_ratio(again, stored)[0]}


@faulty("LP05-topk-filtered-logprob", "filtered old, unfiltered new")
def _(x):
    stored, again = sampled_with_top_k(x)
    filtered = t(x["logits"]).topk(x["top_k"]).values.log_softmax(-1)[x["token"]]
    return {"raw_logprob": stored[0], "ratio_same_weights": (again[0] - filtered).exp()}


correct("LP06-position-ids")(lambda x: {"position_ids": position_ids(ids(x["attention_mask"]))})
faulty("LP06-position-ids", "plain arange")(lambda x: {"position_ids": torch.arange(5.0).expand(3, 5)})


def two_epochs(x, freeze):
    logits, old, ratios, losses = t(x["logits"]).requires_grad_(True), None, [], []
    for _ in range(x["epochs"]):
        new = pt.response_log_probs(logits.expand(1, 2, -1), ids([[x["action"]]]))
        old = new.detach() if old is None or not freeze else old
        loss = pt.clipped_policy_loss(new, old, t([[x["advantage"]]]), x["clip_eps"])
        ratios.append(pt.probability_ratio(new, old).item())
        losses.append(loss.item())
        (gradient,) = torch.autograd.grad(loss, logits)
        logits = (logits - x["lr"] * gradient).detach().requires_grad_(True)
    return {"ratio_per_epoch": ratios, "loss_per_epoch": losses, "final_logits": logits.detach()}


RA01 = "RA01-old-logprobs-fixed-across-epochs"
correct(RA01)(lambda x: two_epochs(x, freeze=True))
faulty(RA01, "old log-probs taken anew each epoch")(lambda x: two_epochs(x, freeze=False))


def first_minibatch(policy, value_head=None, padded=True):
    """Sample from the policy in train mode, then look at the first training pass before any step."""
    policy.train()
    prompts = ids([[0, 0, 3], [0, 5, 2], [6, 2, 4]] * 4)
    prompts = prompts if padded else prompts.clamp(min=1)
    prompt_mask = (prompts != 0) if padded else None
    rollout = pt.collect_rollout(
        policy,
        perturbed(policy, 0.3),
        prompts,
        lambda p, r: r.float().mean(1),
        5,
        eos_id=2,
        pad_id=0,
        prompt_mask=prompt_mask,
        value_head=value_head,
        generator=torch.Generator().manual_seed(3),
    )
    stops = (rollout.response_ids == 2).any(1)
    assert stops.any() and not stops.all(), "the batch must hold both kinds of response"
    assert policy.training
    models = [policy] if value_head is None else [policy, value_head]
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=1.0)
    config = pt.PPOConfig(num_minibatches=1)
    advantages, returns, _ = train.shaped_advantages(rollout, config, eos_id=2)
    seen = []

    def recording(new, old):
        seen.append(pt.probability_ratio(new, old))
        return seen[-1]

    with mock.patch.object(train, "probability_ratio", recording):
        metrics = next(ppo_epochs(policy, value_head, optimizer, rollout, advantages, returns, config))
    return {
        "max_abs_ratio_minus_1": (seen[0][rollout.mask] - 1).abs().max().detach(),
        "approx_kl": metrics["approx_kl"],
        "clip_frac": metrics["clip_fraction"],
    }


def worst(results):
    results = list(results)
    return {name: max(abs(float(result[name])) for result in results) for name in results[0]}


@correct("RA02-first-minibatch-ratio-one")
def _(x):
    cases = [
        first_minibatch(tiny_lm("shared")),
        first_minibatch(tiny_lm("separate")),
        first_minibatch(pt.MockLanguageModel(11, 16, seed=0), pt.MockValueHead(16)),
        first_minibatch(HuggingFaceStyle(dropout=0.5), pt.MockValueHead(16)),
        first_minibatch(ForeignActorCritic(seed=3), padded=False),
    ]
    return worst(cases)


@faulty("RA02-first-minibatch-ratio-one", "dropout on")
def _(x):
    nothing = lambda *modules: contextlib.nullcontext()
    with (
        mock.patch.object(train, "dropout_off", nothing),
        mock.patch.object(rollout_module, "dropout_off", nothing),
        torch.random.fork_rng(devices=[]),  # dropout draws from the global generator
    ):
        torch.manual_seed(0)
        return first_minibatch(ForeignActorCritic(seed=3), padded=False)


@faulty("RA02-first-minibatch-ratio-one", "positions that count the padding, in one of the passes")
def _(x):
    policy = tiny_lm()
    plain = lambda mask: torch.arange(mask.shape[1]).expand(mask.shape)
    real_freeze = rollout_module.freeze_rollout

    def freeze_with_other_positions(*args, **kwargs):
        with mock.patch("ppo_teach.models.position_ids", plain):
            return real_freeze(*args, **kwargs)

    with mock.patch.object(rollout_module, "freeze_rollout", freeze_with_other_positions):
        return first_minibatch(policy)


def scored_twice(score):
    model = HuggingFaceStyle(dropout=0.1).train()
    everything = ids([[3, 1, 4, 1, 5, 9]])
    first, second = (score(model, everything) for _ in range(2))
    assert model.training and model.block.dropout.training, "the modes are put back"
    return {"max_abs_diff": (first - second).abs().max().detach()}


@correct("RA03-no-dropout-in-logprobs")
def _(x):
    model = HuggingFaceStyle()
    ppo = pt.LanguageModelPPO(model, pt.make_reference(model), None, pt.PPOConfig())
    return scored_twice(
        lambda policy, everything: ppo.compute_log_probs(policy, everything, everything[:, 3:])
    )


@faulty("RA03-no-dropout-in-logprobs", "dropout on")
def _(x):
    return scored_twice(
        lambda policy, everything: pt.response_log_probs(policy(everything).logits, everything[:, 3:])
    )


def leak(x, forward):
    before = x["changed_position"]
    return (forward(ids(x["ids_a"])) - forward(ids(x["ids_b"])))[:, :before].abs().max().detach()


@correct("RA04-causality")
def _(x):
    mock_lm = pt.MockLanguageModel(10, 16, seed=0)
    models = [lambda i: tiny_lm()(i)[0], lambda i: tiny_lm("separate")(i)[1], mock_lm, mock_lm.eval()]
    models.append(lambda i: tiny_lm()(i, torch.tensor([[0, 0, 1, 1, 1]]))[0])
    return {"max_abs_logit_diff_before_change": max(leak(x, model) for model in models)}


@faulty("RA04-causality", "an encoder without a causal mask")
def _(x):
    model = pt.MockLanguageModel(10, 16, seed=0)
    return {
        "max_abs_logit_diff_before_change": leak(
            x, lambda i: model.lm_head(model.transformer(model.embedding(i)))
        )
    }


def placed(x, column):
    response, scores = ids(x["responses"]), t(x["scores"])
    mask = pt.response_mask(response, x["eos_id"], x["pad_id"])
    return {"mask": mask, "lengths": mask.sum(1), "token_rewards": column(scores, mask)}


def at(scores, mask, index):
    return torch.zeros(mask.shape).double().scatter(1, index.unsqueeze(1), scores.unsqueeze(1))


correct("SP01-score-on-eos")(lambda x: placed(x, pt.place_scores))
faulty("SP01-score-on-eos", "in the last column")(
    lambda x: placed(x, lambda s, m: at(s, m, torch.full((5,), 4)))
)
faulty("SP01-score-on-eos", "on the first pad")(
    lambda x: placed(x, lambda s, m: at(s, m, m.sum(1).clamp(max=4)))
)


@correct("SP03-missing-eos-penalty")
def _(x):
    return {"scores": pt.missing_eos_penalty(t(x["scores"]), ids(x["responses"]), x["eos_id"], x["penalty"])}


@faulty("SP03-missing-eos-penalty", "penalty instead of the score")
def _(x):
    stopped = (ids(x["responses"]) == x["eos_id"]).any(1)
    return {"scores": torch.where(stopped, t(x["scores"]), torch.tensor(-x["penalty"]).double())}


@faulty("SP03-missing-eos-penalty", "EOS searched in the prompt too")
def _(x):
    everything = torch.cat([ids(x["prompts"]), ids(x["responses"])], dim=1)
    return {"scores": pt.missing_eos_penalty(t(x["scores"]), everything, x["eos_id"], x["penalty"])}


class Scripted(nn.Module):
    """Writes the given tokens for certain; the last one is drawn from the given probabilities."""

    def __init__(self, tokens, last_probs):
        super().__init__()
        self.logits = torch.full((len(tokens) + 1, 7), -60.0)
        for position, token in enumerate(tokens[:-1]):
            self.logits[position, token] = 60.0
        known = {int(token): p for token, p in last_probs.items()}
        rest = (1 - sum(known.values())) / (7 - len(known))
        self.logits[len(tokens) - 1] = torch.tensor([known.get(token, rest) for token in range(7)]).log()

    def forward(self, input_ids):
        return self.logits[: input_ids.shape[1]].expand(len(input_ids), -1, -1)


def cut_off(x):
    """Ask the package for responses until one is the case's; its tokens and log-probabilities."""
    model = Scripted(x["sampled"], x["last_step_probs"])
    for seed in range(30):
        response, log_probs = pt.generate(
            model,
            ids([[0]]),
            3,
            eos_id=x["eos_id"],
            return_log_probs=True,
            generator=torch.Generator().manual_seed(seed),
        )
        if response[0, :2].tolist() == x["sampled"][:2] and response[0, 2] == x["sampled"][2]:
            assert pt.response_mask(response, x["eos_id"]).all()
            return model, response[0], log_probs[0, 2]
    raise AssertionError("a token of probability 1/2 was not drawn in 30 attempts")


@correct("SP04-no-forced-eos")
def _(x):
    _, response, log_prob = cut_off(x)
    return {"tokens": response, "truncated": bool((response != x["eos_id"]).all()), "last_logprob": log_prob}


@faulty("SP04-no-forced-eos", "EOS over the last token")
def _(x):
    model, response, _ = cut_off(x)
    response[-1] = x["eos_id"]
    log_prob = pt.response_log_probs(model(torch.zeros(1, 4)), response.unsqueeze(0))[0, -1]
    return {"tokens": response, "truncated": bool((response != x["eos_id"]).all()), "last_logprob": log_prob}


@correct("MM01-divide-by-valid-count")
def _(x):
    return {"mean": pt.masked_mean(t(x["values"]), t(x["mask"]))}


MM01 = "MM01-divide-by-valid-count"
faulty(MM01, "mean(values*mask)")(lambda x: {"mean": (t(x["values"]) * t(x["mask"])).mean()})
faulty(MM01, "mean over everything")(lambda x: {"mean": t(x["values"]).mean()})
faulty(MM01, "mean of row means")(
    lambda x: {"mean": pt.masked_mean(t(x["values"]), t(x["mask"]), dim=1).mean()}
)


@correct("MM03-empty-mask")
def _(x):
    mean, gradient = with_gradient(lambda v: pt.masked_mean(v, t(x["mask"])), t(x["values"]))
    assert (gradient == 0).all()
    return {"mean": mean}


@faulty("MM03-empty-mask", "0/0")
def _(x):
    return {"mean": (t(x["values"]) * t(x["mask"])).sum() / t(x["mask"]).sum()}


@correct("MW02-bessel")
def _(x):
    assert "population variance" in pt.masked_whiten.__doc__
    n = t(x["mask"]).sum()
    return {"whitened": pt.masked_whiten(t(x["values"]), t(x["mask"])) * ((n - 1) / n).sqrt()}


@faulty("MW02-bessel", "population variance")
def _(x):
    return {"whitened": pt.masked_whiten(t(x["values"]), t(x["mask"]))}


def whitened(x):
    return {"whitened": pt.masked_whiten(t(x["values"]), t(x["mask"]))}


CORRECT["MW04-constant"] = CORRECT["MW06-empty-mask"] = whitened


@faulty("MW04-constant", "statistics over the padding too")
def _(x):
    return {"whitened": pt.masked_whiten(t(x["values"])) * t(x["mask"])}


@faulty("MW04-constant", "nothing keeps the divisor from 0")
def _(x):
    centred = t(x["values"]) - t(x["values"])[0, 0]
    return {"whitened": centred / (centred * t(x["mask"])).std(unbiased=False)}


@faulty("MW06-empty-mask", "0/0")
def _(x):
    real = t(x["values"])[t(x["mask"]) != 0]
    return {"whitened": (t(x["values"]) - real.mean()) / (real**2).mean().sqrt()}


def three_estimates(log_probs, log_probs_ref):
    return {name: pt.kl_estimate(log_probs, log_probs_ref, name) for name in ("k1", "k2", "k3")}


@correct("KL02-k1-k2-k3")
def _(x):
    return three_estimates(t(x["logprobs"]), t(x["ref_logprobs"]))


@faulty("KL02-k1-k2-k3", "k3 of the inverse ratio")
def _(x):
    log_probs, log_probs_ref = t(x["logprobs"]), t(x["ref_logprobs"])
    return three_estimates(log_probs, log_probs_ref) | {"k3": pt.kl_estimate(log_probs_ref, log_probs, "k3")}


def expectations(x):
    p, q = (t(x[name]).log_softmax(-1) for name in ("policy_logits", "ref_logits"))
    mean = {f"E_{name}": (p.exp() * k).sum() for name, k in three_estimates(p, q).items()}
    return mean | {"kl_p_q": (p.exp() * (p - q)).sum()}, (q.exp() * (q - p)).sum()


correct("KL03-estimator-expectations")(lambda x: expectations(x)[0])


@faulty("KL03-estimator-expectations", "the other direction")
def _(x):
    mean, other = expectations(x)
    return mean | {"kl_p_q": other, "E_k1": other, "E_k3": other}


def controllers(x, make):
    """What each bad setting raises when the controller is made, and the coefficient after one good update."""
    raised = []
    for bad in x["bad"]:
        try:
            make(0.1, bad["target"], bad["horizon"])
            raised.append("nothing")
        except ValueError as error:
            named = "target" if bad["target"] <= 0 else "horizon"
            assert named in str(error)
            raised.append("ValueError")
    good = x["good"]
    controller = make(good["init"], good["target"], good["horizon"])
    controller.update(good["kl"], good["n_steps"])
    return {"bad_raises": raised, "good_coef": controller.value}


class Unchecked(pt.AdaptiveKLController):
    def __init__(self, init_kl_coef, target, horizon):
        self.value, self.target, self.horizon = init_kl_coef, target, horizon


class Unclipped(pt.AdaptiveKLController):
    def update(self, kl_per_response, n_steps):
        self.value *= 1 + (kl_per_response / self.target - 1) * n_steps / self.horizon


correct("AK02-invalid-parameters")(lambda x: controllers(x, pt.AdaptiveKLController))
faulty("AK02-invalid-parameters", "settings taken as they come")(lambda x: controllers(x, Unchecked))
faulty("AK02-invalid-parameters", "error not clipped")(lambda x: controllers(x, Unclipped))


def credit(x, **changed):
    x = {"mask": None} | x | changed
    mask = None if x["mask"] is None else t(x["mask"])
    advantages, returns = pt.gae(
        t(x["rewards"]), t(x["values"]), x["gamma"], x["lam"], mask, x.get("last_value")
    )
    return {"advantages": advantages, "returns": returns}


correct("GA01-basic")(credit)
faulty("GA01-basic", "the last value bootstraps itself")(
    lambda x: credit(x, last_value=t(x["values"])[:, -1])
)
faulty("GA01-basic", "lambda applied twice")(lambda x: credit(x, lam=x["lam"] ** 2))

correct("GA03-padding-kl-leak")(credit)


@faulty("GA03-padding-kl-leak", "pads included")
def _(x):
    return {name: value * t(x["mask"]) for name, value in credit(x, mask=None).items()}


@faulty("GA03-padding-kl-leak", "reward instead of return")
def _(x):
    only = t(x["rewards"]) * t(x["mask"])
    return {"advantages": only - t(x["values"]), "returns": only}


def credit_then_whiten(x, spoil):
    result = credit(x)
    white = pt.masked_whiten(result["advantages"], t(x["mask"]))
    return {"policy_advantages": white, "returns": white + t(x["values"]) if spoil else result["returns"]}


correct("GA07-returns-before-whitening")(lambda x: credit_then_whiten(x, spoil=False))
faulty("GA07-returns-before-whitening", "returns from whitened advantages")(
    lambda x: credit_then_whiten(x, spoil=True)
)


def policy_term(x, loss):
    value, gradient = with_gradient(
        lambda new: loss(new, t(x["old_logprobs"]), t(x["advantages"])), t(x["new_logprobs"])
    )
    new, old, mask = t(x["new_logprobs"]), t(x["old_logprobs"]), t(x["mask"])
    return {
        "loss": value,
        "grad_new_logprobs": gradient,
        "ratio_mean": pt.masked_mean(pt.probability_ratio(new, old), mask),
        "approx_kl_k1": pt.approx_kl(new, old, mask, "k1"),
        "approx_kl_k3": pt.approx_kl(new, old, mask, "k3"),
    }


def ratio_and_clipped(new, old, eps=0.2):
    ratio = (new - old).exp()
    return ratio, ratio.clamp(1 - eps, 1 + eps)


@correct("PL01-four-quadrants")
def _(x):
    return policy_term(
        x, lambda new, old, A: pt.clipped_policy_loss(new, old, A, x["clip_eps"], t(x["mask"]))
    )


def pl01(variant, formula):
    faulty("PL01-four-quadrants", variant)(
        lambda x: policy_term(x, lambda new, old, A: formula(*ratio_and_clipped(new, old), A).mean())
    )


pl01("min before multiplying", lambda r, c, A: -torch.min(r, c) * A)
pl01("max instead of min", lambda r, c, A: -torch.max(r * A, c * A))
pl01("no minus sign", lambda r, c, A: torch.min(r * A, c * A))
pl01("the clipped branch always", lambda r, c, A: -c * A)


@correct("PL04-normalise-before-both-terms")
def _(x):
    white = pt.masked_whiten(t(x["advantages"]), t(x["mask"]))
    loss = pt.clipped_policy_loss(
        t(x["new_logprobs"]), t(x["old_logprobs"]), white, x["clip_eps"], t(x["mask"])
    )
    ppo = pt.LanguageModelPPO(tiny_lm(), tiny_lm(seed=1), None, pt.PPOConfig(whiten_advantages="minibatch"))
    by_class = ppo.ppo_loss(t(x["new_logprobs"]), t(x["old_logprobs"]), t(x["advantages"]), t(x["mask"]))
    assert torch.equal(loss, by_class)
    return {"whitened": white, "loss": loss}


@faulty("PL04-normalise-before-both-terms", "whitened in one branch only")
def _(x):
    raw, white = t(x["advantages"]), pt.masked_whiten(t(x["advantages"]))
    ratio, clipped = ratio_and_clipped(t(x["new_logprobs"]), t(x["old_logprobs"]))
    return {"whitened": white, "loss": -torch.min(ratio * raw, clipped * white).mean()}


def accumulated(x, weigh):
    loss, mask = t(x["per_token_loss"]), t(x["mask"])
    weights = [weigh(mask[rows], mask) for rows in x["micro_batches"]]
    parts = [
        w * pt.masked_mean(loss[rows], mask[rows])
        for w, rows in zip(weights, x["micro_batches"], strict=True)
    ]
    return {
        "full_loss": pt.masked_mean(loss, mask),
        "accumulated_loss": sum(parts),
        "weights": [float(w) for w in weights],
    }


PL06 = "PL06-microbatch-weighting"
correct(PL06)(lambda x: accumulated(x, lambda part, whole: part.sum() / whole.sum()))
faulty(PL06, "equal weights")(lambda x: accumulated(x, lambda part, whole: 0.5))
faulty(PL06, "no weights")(lambda x: accumulated(x, lambda part, whole: 1.0))


def critic_term(x, loss):
    value, gradient = with_gradient(loss, t(x["values"]))
    real = t(x["mask"]) != 0
    blocked = (gradient == 0) & (t(x["values"]) != t(x["returns"])) & real
    return {"loss": value, "grad_values": gradient, "clip_frac": pt.masked_mean(blocked.double(), real)}


def half_value_loss(x):
    old, eps = t(x["old_values"]), x["clip_range"]
    return critic_term(x, lambda v: 0.5 * pt.value_loss(v, t(x["returns"]), t(x["mask"]), old, eps))


CORRECT["VL01-clip-max"] = CORRECT["VL03-mean-over-valid-and-one-half"] = half_value_loss


def vl01(variant, combine, half=0.5, reduce=torch.mean):
    def compute(x):
        old, G, eps = t(x["old_values"]), t(x["returns"]), x["clip_range"]
        near = lambda v: old + (v - old).clamp(-eps, eps)
        return critic_term(x, lambda v: half * reduce(combine((v - G) ** 2, (near(v) - G) ** 2)))

    faulty("VL01-clip-max", variant)(compute)


vl01("min", torch.min)
vl01("the clipped error always", lambda plain, near: near)
vl01("no half", torch.max, half=1.0)
vl01("sum instead of mean", torch.max, reduce=torch.sum)


@faulty("VL03-mean-over-valid-and-one-half", "pads counted")
def _(x):
    right, G = half_value_loss(x), t(x["returns"])
    return right | {"loss": 0.5 * ((t(x["values"]) - G) ** 2).mean()}


@faulty("VL03-mean-over-valid-and-one-half", "one half twice")
def _(x):
    right = half_value_loss(x)
    return right | {"loss": right["loss"] / 2, "grad_values": right["grad_values"] / 2}


def value_gradient(x, credit_assignment):
    values = t(x["values"]).requires_grad_(True)
    returns = credit_assignment(t(x["rewards"]), values)
    (gradient,) = torch.autograd.grad(((values - returns) ** 2).mean(), values)
    return {"returns": returns.detach(), "grad_values": gradient}


@correct("VL05-returns-detached")
def _(x):
    result = value_gradient(x, lambda r, v: pt.gae(r, v, x["gamma"], x["lam"])[1])
    values = t(x["values"]).requires_grad_(True)
    pt.value_loss(
        values, values * 1.0 + t(x["rewards"])
    ).backward()  # a target that was stored with its graph
    assert torch.allclose(values.grad, -t(x["rewards"]))
    return result


@faulty("VL05-returns-detached", "values attached in the target")
def _(x):
    def attached(r, v):
        gamma, lam = x["gamma"], x["lam"]
        last = r[:, 1] - v[:, 1]
        first = r[:, 0] + gamma * v[:, 1] - v[:, 0] + gamma * lam * last
        return torch.stack([first, last], dim=1) + v

    return value_gradient(x, attached)


def total_loss(x, entropy_coef, response_logits, mask=None, entropy=None):
    """What `minibatch_loss` adds up when the policy and value terms are the case's numbers."""
    length = response_logits.shape[1]
    logits = torch.cat([response_logits, response_logits[:, :1]], dim=1)
    batch = mock.Mock(
        response_ids=torch.zeros(1, length, dtype=torch.long), log_probs_old=torch.zeros(1, length)
    )
    batch.mask = torch.ones(1, length, dtype=torch.bool) if mask is None else mask != 0
    config = pt.PPOConfig(value_coef=x["vf_coef"], entropy_coef=entropy_coef)
    replaced = {
        "logits_and_values": (logits, torch.zeros(1, length + 1)),
        "clipped_policy_loss": torch.tensor(x["policy_loss"]).double(),
        "value_loss": torch.tensor(x["value_loss"]).double(),
    }
    if entropy is not None:
        replaced["entropy"] = torch.full((1, length), entropy).double()
    with contextlib.ExitStack() as stack:
        for name, result in replaced.items():
            stack.enter_context(mock.patch.object(train, name, return_value=result))
        zeros = torch.zeros(1, length)
        return minibatch_loss(None, None, batch, zeros, zeros, config)[0]


@correct("EN03-valid-tokens-only")
def _(x):
    logits, mask = t(x["logits"]), t(x["mask"])
    return {
        "mean_entropy": pt.masked_mean(pt.entropy(logits), mask),
        "total_loss": total_loss(x, x["ent_coef"], logits, mask),
    }


@faulty("EN03-valid-tokens-only", "pads counted")
def _(x):
    return {
        "mean_entropy": pt.entropy(t(x["logits"])).mean(),
        "total_loss": total_loss(x, x["ent_coef"], t(x["logits"])),
    }


@correct("EN04-entropy-sign")
def _(x):
    return {"total": total_loss(x, x["ent_coef"], torch.zeros(1, 2, 3), entropy=x["entropy"])}


@faulty("EN04-entropy-sign", "plus")
def _(x):
    return {"total": x["policy_loss"] + x["vf_coef"] * x["value_loss"] + x["ent_coef"] * x["entropy"]}


def refused(reference_of):
    """Whether every way in refuses the pair (policy, reference_of(policy))."""
    policy, world = tiny_lm(vocab_size=3), ProbeWorld(3, 2, lambda r: r.float().sum(1))
    reference, config, prompts = reference_of(policy), pt.PPOConfig(num_minibatches=1), ids([[0, 1]])
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    reward = lambda sequences: torch.zeros(len(sequences))
    step = lambda: pt.run_ppo_training_step(
        policy, reference, None, reward, prompts, prompts, optimizer, config
    )
    class_ = lambda: pt.LanguageModelPPO(policy, reference, None, config)
    run = lambda: pt.train_ppo(world, config, policy=policy, reference=reference, num_updates=1, batch_size=2)
    count = 0
    for way_in in (step, class_, run):
        try:
            way_in()
        except ValueError as error:
            assert "share" in str(error)
            count += 1
    return {"raises_or_warns": count == 3}


correct("RF01-reference-is-not-policy")(lambda x: refused(lambda policy: policy))
faulty("RF01-reference-is-not-policy", "a reference of its own")(lambda x: refused(pt.make_reference))


def first_value_loss(x, policy):
    returns = t(x["returns"])
    values = pt.response_values(policy(ids([[1, 2, 3, 4, 5]]))[1], 3).detach().double()
    return {"value_loss_half_mse": 0.5 * pt.value_loss(values, returns)}


@correct("RF03-value-head-start")
def _(x):
    hidden = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    assert (pt.MockValueHead(8)(hidden) == 0).all()
    assert torch.equal(t(x["values"]), torch.zeros(1, 3).double())
    results = [first_value_loss(x, pt.TinyLM(7, critic=critic)) for critic in ("shared", "separate")]
    assert results[0] == results[1]
    return results[0]


faulty("RF03-value-head-start", "a random head")(lambda x: first_value_loss(x, tiny_lm()))


# ---------------------------------------------------------------- the tests


def test_every_case_is_here_and_every_listed_mistake_is_made():
    assert len(CASES) == 33
    assert set(CORRECT) == set(CASES)
    assert {name for name, _ in FAULTY} == set(CASES)
    assert set(LISTED) <= set(FAULTY)


@pytest.mark.parametrize("name", CASES)
def test_the_package_gets_the_case_right(name):
    case = CASES[name]
    agree(CORRECT[name](case.get("inputs", {})), case)


@pytest.mark.parametrize(("name", "variant"), LISTED, ids=lambda part: part)
def test_the_listed_mistake_is_refused(name, variant):
    case = CASES[name]
    with pytest.raises(AssertionError):
        agree(case["expected"] | case["faulty"][variant], case)


@pytest.mark.parametrize(("name", "variant"), FAULTY, ids=lambda part: part)
def test_the_mistake_made_in_code_is_refused(name, variant):
    case = CASES[name]
    outputs = FAULTY[name, variant](case.get("inputs", {}))
    if variant in case.get("faulty", {}):  # it is that mistake: it gives the numbers listed
        listed = case["faulty"][variant]
        for output, wanted in listed.items():
            got = (
                outputs[output].double() if isinstance(outputs[output], torch.Tensor) else t(outputs[output])
            )
            assert torch.allclose(got, t(wanted).double(), atol=1e-5, equal_nan=True), output
    with pytest.raises(AssertionError):
        agree(outputs, case)
