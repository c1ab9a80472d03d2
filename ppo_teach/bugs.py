"""The bug clinic (layer 4): faults one line away from the right step, each trained for real, and what gives them away.

A patient runs on a private copy of the package's own source in which the one line is exchanged, so that the diff that
is shown is the diff that runs. The package itself is never touched: there is nothing to put back, also after an error.
"""

import inspect
import math
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from types import ModuleType

import torch

from .config import PPOConfig
from .losses import clip_fraction
from .tensor_ops import kl_from_log_ratio, masked_mean, response_log_probs, response_mask, response_values
from .worlds import ChainWorld, ReviewWorld

ORGANS = ("tensor_ops", "models", "advantages", "losses", "rewards", "rollout", "train")  # in the order of imports
CONFIG = dict(kl_coef=0.3)  # of every run in the clinic: a leash tight enough that its loss shows

ZERO, NEVER = (-1e-4, 1e-4), math.inf
# What is measured at every update beside the metrics of TrainingLog, by the sound package on what the patient's code
# makes: name -> (in words, the range in which a healthy run stays).
VITALS = {
    "parity": ("largest difference of a token's log-prob between sampling and training pass, nats", ZERO),
    "surprise": ("mean of -log p of the sampled tokens minus the policy's entropy", (-0.12, 0.12)),
    "first_kl": ("KL from old to new policy at the first minibatch, before any step, nats", ZERO),
    "eos_kept": ("share of the sampled EOS tokens that the mask keeps", (1.0, 1.0)),
    "reward_gap": ("distance of a response's summed rewards from R - β Σ k, mean", (0.0, 1e-3)),
    "kl_error": ("KL as the run reports it minus Σ (log p - log p_ref), nats per response", (-1e-3, 1e-3)),
    "advantage_mean": ("mean over the real tokens of the advantages in the loss", (-1e-3, 1e-3)),
    "last_return": ("distance of the return at EOS from the reward there, mean", (0.0, 1e-3)),
    "value_peek": ("how far a value moves when a later token is exchanged", ZERO),
    "ascent": ("cosine of the policy loss's push with that of mean A log p, at ratio 1", (0.99, 1.01)),
    "clipped_push": ("gradient at the output layer when all A > 0 and all ratios are e", ZERO),
    "idle_push": ("gradient at the output layer when every advantage is 0", ZERO),
    "value_push": ("gradient at the value head when each value has moved away from its target", (1e-3, NEVER)),
    "clip_error": ("clip fraction as reported minus that of the real tokens", ZERO),
    "clears": ("how often the gradients were set back, per optimiser step", (1.0, 1.0)),
    "steps_taken": ("optimiser steps that Adam counted, per step in the log", (1.0, 1.0)),
    "max_ratio": ("largest ratio of a token in an update", (1.001, NEVER)),
    "first_ratio": ("mean ratio of the real tokens at the first minibatch", (0.999, 1.001)),
    "kl_per_response": ("KL to the reference, nats per response", (0.02, NEVER)),
}


def private_modules(bug=None):
    """Fresh copies of the modules that make a training step, with the bug's line in one of them: dict name -> module.

    Raises: ValueError when the line to be exchanged does not stand there exactly once.
    Taught in: notebooks/10_bug_clinic.ipynb
    """
    copies = {}
    for name in ORGANS:
        copy = ModuleType(f"{__package__}.{name}")
        copy.__package__ = __package__
        lines = (bug.right, bug.wrong) if bug is not None and bug.module == name else None
        exec(_compiled(name, lines), vars(copy))
        for other in copies.values():  # what it imported from a module copied before comes from that copy
            vars(copy).update({key: thing for key, thing in vars(other).items() if key in vars(copy)
                               and getattr(thing, "__module__", None) == other.__name__})  # fmt: skip
        copies[name] = copy
    copies["train"].TrainingLog = import_module(".train", __package__).TrainingLog  # logs leave the clinic
    return copies


@cache
def _compiled(name, exchange):
    """A module's own source, with one line exchanged for another, as code."""
    source = inspect.getsource(import_module(f".{name}", __package__))
    if exchange is not None:
        (right, wrong), lines = exchange, source.splitlines()
        places = [i for i, line in enumerate(lines) if line.strip() == right]
        if len(places) != 1:
            raise ValueError(f"right must stand once in {name}.py, got {len(places)} times: {right!r}")
        (place,) = places
        lines[place] = lines[place].replace(right, wrong)
        source = "\n".join(lines)
    return compile(source, f"<{name}, one line exchanged>" if exchange else f"<{name}>", "exec")


class Patient:
    """A training run on a private copy of the step, with its vital signs taken at every update.

    Args: bug, a Bug or None (healthy); world, default ReviewWorld; num_updates, batch_size, seed: of the run; policy,
        a TinyLM to start from (copied), reference likewise; changes, fields of PPOConfig.
    Attributes: trainer, modules, log; heard, what passed through the step in the last update.
    Taught in: notebooks/10_bug_clinic.ipynb
    """

    def __init__(self, bug=None, world=None, *, num_updates=30, batch_size=64, seed=0, policy=None, reference=None,
                 **changes):  # fmt: skip
        self.world, self.modules, self.heard = world or ReviewWorld(), private_modules(bug), {}
        self.config = PPOConfig(**{**CONFIG, **(bug.config if bug else {}), **changes})
        train, rollout = self.modules["train"], self.modules["rollout"]
        policy = self._adopted(policy or self.world.policy())
        with torch.random.fork_rng(devices=[]):  # a fault may draw from the global generator
            self.trainer = train.PPOTrainer(
                self.world, self.config, policy=policy, num_updates=num_updates, batch_size=batch_size, seed=seed,
                reference=None if reference is None else train.make_reference(self._adopted(reference)),
            )  # fmt: skip
        self.random = torch.Generator().manual_seed(seed)
        self.log = train.TrainingLog(self.trainer.log.info)
        self.log.samples = self.trainer.log.samples
        # from here on these also write down what they see; they are the copy's own, so nobody else is overheard
        for name in ("shaped_advantages", "shape_rewards", "minibatch_loss", "clip_fraction", "value_loss"):
            self._listen(train, name)
        self._listen(self.trainer.optimizer, "zero_grad")
        self._listen(rollout, "generate", return_log_probs=True)

    def _listen(self, module, name, **more):
        """Keep what a function was given and what it returned: name -> list, one entry a call of this update."""
        spoken = getattr(module, name)

        def heard(*given, **options):
            result = spoken(*given, **options, **more)
            self.heard.setdefault(name, []).append((given, result))
            return result[0] if more else result

        setattr(module, name, heard)

    def _adopted(self, policy):
        """The same weights in a model of the private copy."""
        critic = "shared" if policy.critic is None else "separate"
        copy = self.modules["models"].TinyLM(
            policy.vocab_size, policy.lm_head.in_features, max_length=policy.max_length, critic=critic
        )  # fmt: skip
        copy.load_state_dict(policy.state_dict())
        return copy.to(policy.lm_head.weight.dtype)

    def step(self):
        """One update. Returns: its metrics, the vital signs among them."""
        self.heard = {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=self.random)))
            row = self.trainer.step()
            heard = self.heard  # what the examination itself calls is none of the run
            row = row | self._vitals(row)
            self.heard = heard
        self.log.append(row)
        return row

    def run(self):
        """All updates that are left; a run that explodes ends there. Returns: TrainingLog."""
        try:
            while len(self.log) < self.trainer.num_updates:
                self.step()
            self.log.stopped_by = "finished"
        except FloatingPointError as error:
            self.log.stopped_by = str(error)
        return self.log

    def evidence(self):
        """What `checkup` can be given of the last update: the rollout, its first and its last minibatch, as dicts."""
        heard, now, modules, length = self.heard, self.trainer.rollout, self.modules, len(self.heard["clip_fraction"])
        (advantages, returns, kl), losses = heard["shaped_advantages"][0][1], modules["losses"]
        (scores, _, _, kl_coef, *_), (rewards, _) = heard["shape_rewards"][0]  # a penalty taken off, an adapted β
        batches = [dict(
            responses=now.response_ids, mask=now.mask, eos_id=self.world.eos_id, log_probs_old=now.log_probs_old,
            log_probs_sampled=heard["generate"][0][1][1], log_probs_ref=now.log_probs_ref, entropy=now.entropy,
            values=now.values_old, scores=scores, rewards=rewards, kl=kl, kl_coef=kl_coef,
            advantages=advantages, returns=returns, updates_done=len(self.log) - 1,
            policy_loss=lambda new, old, A, mask: losses.clipped_policy_loss(new, old, A, 0.2, mask),
            value_loss=lambda new, G, old, mask: losses.value_loss(new, G, mask, old, 0.2),
        )]  # fmt: skip
        for place in (0, length - 1):
            (new, old, A, epsilon, mask), told = heard["clip_fraction"][place][0], heard["minibatch_loss"][place][1][1]
            values = heard["value_loss"][place][0][0] if "value_loss" in heard else None
            batches.append(dict(
                log_probs_new=new, log_probs_old=old, advantages=A, mask=mask, values_new=values, steps_done=place,
                clip_epsilon=epsilon, clip_fraction=told["clip_fraction"], mean_ratio=told["mean_ratio"],
            ))  # fmt: skip
        return batches

    def _vitals(self, row):
        heard, now, config, taken = self.heard, self.trainer.rollout, self.config, self.trainer.optimizer.state
        (advantages, returns, _), first = heard["shaped_advantages"][0][1], heard["minibatch_loss"][0][1][1]
        sampled, ((scores, *_), (rewards, _)) = heard["generate"][0][1][1], heard["shape_rewards"][0]
        real, rows = response_mask(now.response_ids, self.world.eos_id), [*self.log.rows, row]
        is_eos = (now.response_ids == self.world.eos_id) & real
        log_ratio = torch.where(real, now.log_probs_old - now.log_probs_ref, 0)
        paid = torch.where(real, rewards, 0)
        kl = kl_from_log_ratio(log_ratio, config.kl_estimator)
        steps = max(row["num_steps"], 1.0)
        self.heard = {}
        return {
            "parity": (sampled - now.log_probs_old)[real].abs().max().item(),
            "surprise": masked_mean(-now.log_probs_old - now.entropy, real).item(),
            "first_kl": first["approx_kl"],
            "first_ratio": first["mean_ratio"],
            "eos_kept": masked_mean(now.mask.float(), is_eos).item() if is_eos.any() else 1.0,
            "reward_gap": reward_gap(paid, scores, kl, row["kl_coef"], real).mean().item(),
            "kl_error": row["kl_per_response"] - log_ratio.sum(1).mean().item(),
            "advantage_mean": masked_mean(advantages, real).item(),
            "last_return": masked_mean((returns - paid).abs(), is_eos).item(),
            "clip_error": sum((told - clip_fraction(*given)).item() for given, told in heard["clip_fraction"]) / steps,
            "clears": len(heard.get("zero_grad", ())) / steps,
            "steps_taken": (float(taken[0]["step"]) if taken else 0.0) / sum(r["num_steps"] for r in rows),
        } | self._pushes(now.rows(slice(0, 16)), real[:16], advantages[:16])

    def _pushes(self, few, real, advantages):
        """What the two losses pull at, on a few responses, and whether a value can see what comes after it."""
        policy, reference = self.trainer.policy, self.trainer.reference
        minibatch_loss, freeze_rollout = self.modules["train"].minibatch_loss, self.modules["rollout"].freeze_rollout
        weights = policy.lm_head.weight, policy.value_head.weight
        with torch.enable_grad():
            logits, values = policy(few.input_ids)
            new = response_log_probs(logits, few.response_ids)
            values = response_values(values, real.shape[1]).detach()
            wanted = _gradient(masked_mean(advantages * new, real), weights)[0]

            def push(value_coef, advantages, shift=0.0):
                """At ratio e^shift, with values that have moved by 1, away from targets that are 2 away."""
                batch = replace(few, log_probs_old=new.detach() - shift, values_old=values - 1)
                config = replace(self.config, value_coef=value_coef)
                return _gradient(minibatch_loss(policy, None, batch, advantages, values - 2, config)[0], weights)

            policy_push, none = push(0.0, advantages)[0], torch.zeros_like(advantages)
            idle_push, value_push = push(1.0, none)
            clipped_push = push(0.0, none + 1, shift=1.0)[0]
        other = few.response_ids.clone()
        other[:, 1] = other[:, 1].roll(1)
        before, after = (freeze_rollout(policy, reference, few.prompt_ids, ids, few.scores).values_old
                         for ids in (few.response_ids, other))  # fmt: skip
        return {
            "value_peek": (before - after)[:, :2].abs().max().item(),
            "ascent": -torch.cosine_similarity(policy_push.flatten(), wanted.flatten(), dim=0).item(),
            "clipped_push": clipped_push.norm().item(), "idle_push": idle_push.norm().item(),
            "value_push": value_push.norm().item(),
        }  # fmt: skip


def reward_gap(rewards, scores, kl, kl_coef, mask):
    """How far each response's rewards are from adding up to what they should: |Σ_t r_t - (R - β Σ_t k_t)|.

    Args: rewards, kl, mask [B, T]; scores [B]; kl_coef β. Returns: [B], 0 for a healthy step.
    Taught in: notebooks/10_bug_clinic.ipynb
    """
    rewards, kl = torch.where(mask, rewards, 0), torch.where(mask, kl, 0)
    return (rewards.sum(1) - (scores - kl_coef * kl.sum(1))).abs()


def _gradient(loss, weights):
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for w, g in zip(weights, found)]


def examine(bug=None):
    """A Patient after one update in ChainWorld, from a policy that has left its reference and a critic with opinions.

    One update of 64 responses is enough for every invariant of the clinic; in float64, so that 0 is 0.
    Taught in: notebooks/10_bug_clinic.ipynb
    """
    world, generator = ChainWorld(), torch.Generator().manual_seed(0)
    policy, reference = world.policy().double(), world.policy().double()
    with torch.no_grad():
        for weight in (policy.lm_head.weight, policy.value_head.weight):
            weight += 0.3 * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    patient = Patient(bug, world, num_updates=1, batch_size=64, policy=policy, reference=reference)
    patient.step()
    return patient


@dataclass(frozen=True)
class Bug:
    """A fault, one line away from the right code.

    Fields: id; title, the fault in words; module, right, wrong: the file and the two lines; symptom, what is seen in a
    run; number, the one metric that exposes it, a key of VITALS; config, what the run needs so that the line matters.
    Taught in: notebooks/10_bug_clinic.ipynb
    """

    id: str
    title: str
    module: str
    right: str
    wrong: str
    symptom: str
    number: str
    config: dict = field(default_factory=dict)

    @property
    def diff(self):
        """The two lines, as a unified diff shows them."""
        return f"- {self.right}\n+ {self.wrong}"

    @property
    def healthy_range(self):
        """Where the number of a healthy run lies."""
        return VITALS[self.number][1]

    def invariant(self, bug=None):
        """The test that would have caught it: whether, on one examined batch, the number of `bug` (None = of the
        package as it is) lies in its healthy range."""
        return self.is_healthy(examine(bug).log.rows[0][self.number])

    def is_healthy(self, value):
        """Whether a value of the number lies in its healthy range."""
        low, high = self.healthy_range
        return low <= value <= high

    def train(self, world=None, num_updates=30, seed=0, **options):
        """A real run with the fault planted. Returns: TrainingLog, with VITALS; the same seed without it: `Patient`."""
        return Patient(self, world, num_updates=num_updates, seed=seed, **options).run()

    def reading(self, log):
        """The exposing number of a run: its mean over the last five updates."""
        return reading(log, self.number)


def reading(log, name):
    """Mean of a metric over the last five updates: log, a TrainingLog or its metrics, a dict name -> list."""
    last = getattr(log, "metrics", log)[name][-5:]
    return sum(last) / len(last)


_BUGS = (  # diff and number are exact; the symptom is what was seen in ReviewWorld, see figures/make_clinic.py
    Bug("no_causal_mask", "no causal mask", "models",
        "allowed = torch.ones(length, length, dtype=torch.bool, device=device).tril()",
        "allowed = torch.ones(length, length, dtype=torch.bool, device=device)",
        "Everything gets worse from the first update on: the log-probs describe a model that reads the future.",
        "parity"),
    Bug("logits_late", "logits read at the token's own position", "tensor_ops",
        "predicting = logits[:, -length - 1 : -1]", "predicting = logits[:, -length:]",
        "Learning is slow and the KL goes below 0, though every ratio starts at 1.",
        "parity"),
    Bug("temperature_sampling_only", "temperature only when sampling", "models",
        "log_probs = F.log_softmax(logits / temperature if temperature != 1.0 else logits, dim=-1)",
        "log_probs = F.log_softmax(logits / 0.7, dim=-1)",
        "The score is fine, and the samples are less varied than the entropy says.",
        "surprise"),
    Bug("filtered_log_probs", "top-k filtered log-probs", "models",
        "log_probs = F.log_softmax(logits / temperature if temperature != 1.0 else logits, dim=-1)",
        "log_probs = F.log_softmax(keep_top_k(logits, 3), dim=-1)",
        "The score is fine; some tokens are never tried, and sampler and training pass disagree.",
        "parity"),
    Bug("random_responses", "responses not sampled from the policy", "models",
        "tokens = torch.searchsorted(cumulative, draw, right=True)  # [B, 1]",
        "tokens = torch.randint(logits.shape[1], draw.shape, generator=generator)",
        "The score hardly moves, the KL is negative, the reviews are noise.",
        "surprise"),
    Bug("dropout_on", "dropout that no switch turns off", "models",
        "return x + self.mlp(self.norm_mlp(x))", "return x + F.dropout(self.mlp(self.norm_mlp(x)), 0.1)",
        "The score is fine; far more is clipped, because ratios differ from 1 before any step.",
        "first_kl"),
    Bug("old_recomputed", "old log-probs taken anew at every step", "train",
        "new, old, mask = response_log_probs(logits, batch.response_ids, config.temperature), batch.log_probs_old, "
        "batch.mask",
        "old = (new := response_log_probs(logits, batch.response_ids, config.temperature)).detach(); mask = batch.mask",
        "Nothing is ever clipped, whatever the learning rate.",
        "max_ratio"),
    Bug("detach_misplaced", "the detach on the wrong log-probs", "losses",
        "return torch.exp(log_probs_new - log_probs_old.detach())",
        "return torch.exp(log_probs_new.detach() - log_probs_old)",
        "The critic's gradient alone moves the shared weights: score and text fall apart.",
        "ascent"),
    Bug("kl_attached", "KL in the return not detached", "train",
        "value_term = value_loss(values, returns, mask, batch.values_old, config.value_clip_epsilon)",
        "value_term = masked_mean((values - returns + config.kl_coef * (new - old)) ** 2, mask)",
        "The score is fine; the policy is also trained to make its returns easy to hit.",
        "idle_push"),
    Bug("returns_attached", "returns made anew from values with gradient", "losses",
        "squared_error = (values - returns) ** 2", "squared_error = (values - (returns - values_old + values)) ** 2",
        "The critic never learns: explained variance stays 0, and the value loss does not fall.",
        "value_push"),
    Bug("values_late", "values read one token late", "tensor_ops",
        "return values[:, -response_length - 1 : -1]", "return values[:, -response_length:]",
        "The reviews grow too long and the KL is high; the critic looks better than it should.",
        "value_peek"),
    Bug("critic_detached", "the critic's values detached", "train",
        "values = response_values(values, length)", "values = response_values(values, length).detach()",
        "The critic never learns: explained variance stays 0, and the value loss does not fall.",
        "value_push"),
    Bug("mask_drops_eos", "the mask drops EOS", "tensor_ops",
        "seen_before = is_eos.long().cumsum(1) - is_eos.long()  # how many EOS stand strictly before this position",
        "seen_before = is_eos.long().cumsum(1)",
        "Here the score is fine; stopping is never trained, which hurts where reviews do not stop by themselves.",
        "eos_kept"),
    Bug("mean_over_pads", "the mean divides by all cells", "tensor_ops",
        "return (kept.sum(dim, dtype=wide) / mask.sum(dim).clamp(min=1)).to(x.dtype)",
        "return (kept.sum(dim, dtype=wide) / mask.numel()).to(x.dtype)",
        "The score is fine; every average is too small, the mean ratio first.",
        "first_ratio"),
    Bug("whitened_over_pads", "pads counted in whitening", "train",
        "advantages = masked_whiten(advantages, rollout.mask)", "advantages = masked_whiten(advantages)",
        "The score is fine; on average, every real token is pushed one way.",
        "advantage_mean"),
    Bug("mean_added_back", "advantages whitened, mean added back", "train",
        "advantages = masked_whiten(advantages, rollout.mask)",
        "advantages = masked_whiten(advantages, rollout.mask, keep_mean=True)",
        "The policy loss is not 0 at the start, and far from 0 later.",
        "advantage_mean"),
    Bug("returns_whitened", "returns made from whitened advantages", "train",
        "advantages = masked_whiten(advantages, rollout.mask)",
        "advantages = masked_whiten(advantages, rollout.mask); returns = advantages + rollout.values_old",
        "The score is fine; the critic's forecasts stay in units without meaning.",
        "last_return"),
    Bug("bootstraps_itself", "a finished response bootstraps from its own end", "train",
        "scores, last_value = rollout.scores, None", "scores, last_value = rollout.scores, rollout.last_value",
        "The critic feeds on itself: its forecasts run away and the reviews become very short.",
        "last_return"),
    Bug("score_on_pad", "the score in the last column, on a pad", "rewards",
        "is_last = real & (real_after == 0)", "is_last = torch.arange(real.shape[1]) == real.shape[1] - 1",
        "Learning is slow and the reviews become longer: only those that fill the last column are paid.",
        "reward_gap"),
    Bug("score_every_token", "the score on every token", "rewards",
        "is_last = real & (real_after == 0)", "is_last = real",
        "Score and KL are high, the reviews long: each further token is paid again.",
        "reward_gap"),
    Bug("kl_sign", "the sign of the KL", "rewards",
        "return place_scores(scores, mask).to(dtype) - kl_coef * kl, kl",
        "return place_scores(scores, mask).to(dtype) + kl_coef * kl, kl",
        "The KL runs away and the text falls apart: leaving the reference is paid for.",
        "reward_gap"),
    Bug("kl_clamped", "negative k1 cut to 0", "rewards",
        "kl = kl_estimate(log_probs, log_probs_ref, estimator)",
        "kl = kl_estimate(log_probs, log_probs_ref, estimator).clamp(min=0)",
        "The reported KL is too high, since only the tokens above 0 are counted.",
        "kl_error"),
    Bug("k3_upside_down", "k3 upside down", "tensor_ops",
        "return torch.expm1(-log_ratio) + log_ratio", "return torch.expm1(log_ratio) - log_ratio",
        "The reported KL explodes, and with it the rewards.",
        "reward_gap", {"kl_estimator": "k3"}),
    Bug("k1_as_loss", "the KL as a k1 loss", "train",
        "loss = policy_term + config.value_coef * value_term",
        "loss = policy_term + config.value_coef * value_term + 0.3 * masked_mean(new - batch.log_probs_ref, mask)",
        "Entropy falls to 0 and the KL rises: this term does not know where the reference is.",
        "idle_push", {"kl_coef": 0.0}),
    Bug("reference_is_policy", "the reference is the policy itself", "rollout",
        "logits_ref = logits_of(call_model(reference, input_ids, attention_mask, length + 1, values=False))",
        "logits_ref = logits_of(call_model(policy, input_ids, attention_mask, length + 1, values=False))",
        "The KL is exactly 0, and the score is better than it should be: nothing holds the policy.",
        "kl_per_response"),
    Bug("min_max_swapped", "max in place of min", "losses",
        "return -masked_mean(torch.min(ratio * advantages, clipped * advantages), mask)",
        "return -masked_mean(torch.max(ratio * advantages, clipped * advantages), mask)",
        "The score is nearly fine; ratios that ran too far still get their gradient.",
        "clipped_push"),
    Bug("loss_sign", "the sign of the policy loss", "losses",
        "return -masked_mean(torch.min(ratio * advantages, clipped * advantages), mask)",
        "return masked_mean(torch.min(ratio * advantages, clipped * advantages), mask)",
        "The score falls as far as it can.",
        "ascent"),
    Bug("value_clip_no_max", "value clip without the max", "losses",
        "squared_error = torch.max(squared_error, (near - returns) ** 2)", "squared_error = (near - returns) ** 2",
        "The score is fine; a value that went astray is left there.",
        "value_push", {"value_clip_epsilon": 0.2}),
    Bug("gradients_pile_up", "gradients never set back to 0", "train",
        "optimizer.zero_grad(set_to_none=True)", "pass  # optimizer.zero_grad(set_to_none=True)",
        "The score is fine; each step repeats the ones before.",
        "clears"),
    Bug("steps_dropped", "accumulation throws three of four gradients away", "train",
        "optimizer.step()", "optimizer.step() if epoch % 4 == 3 else None",
        "Everything is healthy and slow.",
        "steps_taken"),
    Bug("clip_fraction_over_pads", "clip fraction counted over pads", "losses",
        "return masked_mean((blocked_up | blocked_down).to(ratio.dtype), mask)",
        "return (blocked_up | blocked_down).to(ratio.dtype).mean()",
        "Every curve is fine; one of them reports too little.",
        "clip_error"),
)  # fmt: skip
BUGS = {bug.id: bug for bug in _BUGS}


def __getattr__(name):
    """`checkup` and `Finding` lie a layer higher, and are found from here too."""
    if name in ("checkup", "Finding"):
        return getattr(import_module(".checkup", __package__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
