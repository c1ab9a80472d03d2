"""One PPO step, then many (layer 4). The stages carry the same numbers in the figures and the notebooks:

1 sample   2 score   3 shaped rewards   4 advantages   5 ratio and losses   6 step   7 log
"""

import csv
import json
import math
import os
import sys
from dataclasses import asdict

import torch
from torch.optim.adam import adam

from .advantages import gae
from .config import PPOConfig
from .losses import (
    approx_kl,
    clip_fraction,
    clipped_policy_loss,
    explained_variance,
    probability_ratio,
    ratio_outside_fraction,
    value_loss,
)
from .models import check_separate, logits_and_values, make_reference, new_value_head
from .rewards import AdaptiveKLController, missing_eos_penalty, shape_rewards
from .rollout import collect_rollout, freeze_rollout
from .tensor_ops import (
    check_token_ids,
    dropout_off,
    entropy,
    masked_mean,
    masked_whiten,
    response_log_probs,
    response_mask,
    response_values,
    single_thread,
)


def shaped_advantages(rollout, config, kl_coef=None, eos_id=None):
    """Stages 3 and 4: from a rollout to everything the losses need, as constants.

    Returns: advantages (whitened per rollout if the config says so), returns, kl; each [B, T], 0 at padding.
    Taught in: notebooks/07_training_step.ipynb
    """
    scores, last_value = rollout.scores, None
    if eos_id is not None:
        if config.missing_eos_penalty > 0:
            scores = missing_eos_penalty(scores, rollout.response_ids, eos_id, config.missing_eos_penalty)
        if config.bootstrap_truncated:
            stopped = (rollout.response_ids == eos_id).any(dim=1)
            last_value = torch.where(stopped, torch.zeros_like(rollout.last_value), rollout.last_value)
    kl_coef = config.kl_coef if kl_coef is None else kl_coef
    rewards, kl = shape_rewards(
        scores, rollout.log_probs_old, rollout.log_probs_ref, kl_coef, rollout.mask, config.kl_estimator
    )
    advantages, returns = gae(rewards, rollout.values_old, config.gamma, config.lam, rollout.mask, last_value)
    if config.whiten_advantages == "batch":
        advantages = masked_whiten(advantages, rollout.mask)
    return advantages, returns, kl


def minibatch_loss(policy, value_head, batch, advantages, returns, config):
    """Stage 5 for one minibatch: forward pass, ratio, the three terms of the loss.

    L = L_policy + c₁ L_value - c₂ H

    Returns: loss (scalar with gradient), metrics (dict of floats). Source: Schulman et al. 2017, eq. 9.
    Taught in: notebooks/07_training_step.ipynb
    """
    length = batch.response_ids.shape[1]
    logits, values = logits_and_values(policy, batch.input_ids, value_head, batch.attention_mask, keep=length + 1)
    new, old, mask = response_log_probs(logits, batch.response_ids, config.temperature), batch.log_probs_old, batch.mask
    values = response_values(values, length)
    if config.whiten_advantages == "minibatch":
        advantages = masked_whiten(advantages, mask)
    policy_term = clipped_policy_loss(new, old, advantages, config.clip_epsilon, mask)
    value_term = value_loss(values, returns, mask, batch.values_old, config.value_clip_epsilon)
    loss = policy_term + config.value_coef * value_term
    if config.entropy_coef > 0:
        token_entropy = entropy(logits[:, -length - 1 : -1] / config.temperature)
        loss = loss - config.entropy_coef * masked_mean(token_entropy, mask)
    ratio = probability_ratio(new, old).detach()
    return loss, {
        "policy_loss": policy_term.item(),
        "value_loss": value_term.item(),
        "clip_fraction": clip_fraction(new, old, advantages, config.clip_epsilon, mask).item(),
        "ratio_outside_fraction": ratio_outside_fraction(new, old, config.clip_epsilon, mask).item(),
        "approx_kl": approx_kl(new, old, mask).item(),
        "mean_ratio": masked_mean(ratio, mask).item(),
        "max_ratio": torch.where(mask, ratio, torch.zeros_like(ratio)).max().item(),
    }


def _check_finite(name, number):
    if not math.isfinite(number):
        raise FloatingPointError(f"{name} became {number}: lower learning_rate or clip_epsilon")


def ppo_epochs(policy, value_head, optimizer, rollout, advantages, returns, config, generator=None, critic_only=False):
    """Stages 5 and 6: K epochs of minibatch steps on one frozen rollout. A generator: one dict of metrics a step.

    critic_only keeps the policy still (warm-up of the value function). Stops when `target_kl` is exceeded, *before*
    the step that would move further. A rollout of one response cannot be cut: it is one minibatch, whatever the config
    says. Taught in: notebooks/07_training_step.ipynb
    """
    num_minibatches = config.num_minibatches if len(rollout) > 1 else 1
    if num_minibatches > len(rollout):
        raise ValueError(
            f"num_minibatches must be at most the batch size {len(rollout)}, got {config.num_minibatches}"
        )
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(p.requires_grad for p in parameters):
        raise ValueError("policy must have a parameter to train, got all frozen (is it the reference?)")
    for epoch in range(config.num_epochs):
        order = torch.randperm(len(rollout), generator=generator)
        for index in order.tensor_split(num_minibatches):
            with torch.enable_grad(), dropout_off(policy, value_head):  # a step trains, also under an outer no_grad
                batch = rollout.rows(index)
                loss, metrics = minibatch_loss(policy, value_head, batch, advantages[index], returns[index], config)
            _check_finite("the loss", loss.item())
            if config.target_kl is not None and metrics["approx_kl"] > config.target_kl:
                return
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if critic_only:
                for name, parameter in policy.named_parameters():
                    if not name.startswith(("value_head", "critic", "values")):
                        parameter.grad = None
            limit = math.inf if config.max_grad_norm is None else config.max_grad_norm
            norm = torch.nn.utils.clip_grad_norm_(parameters, limit).item()
            _check_finite("the gradient's norm", norm)  # before the step: one NaN would reach every parameter
            optimizer.step()
            yield metrics | {"grad_norm": norm, "epoch": epoch}


def ppo_update(policy, value_head, optimizer, rollout, config, *, kl_coef=None, eos_id=None, generator=None,
               critic_only=False):  # fmt: skip
    """Stages 3 to 7 on one rollout. Returns: dict of metrics, one float each.

    Loss-like metrics are means over all minibatch steps; max_ratio is the largest seen; mean_reward, mean_kl (nats
    per token), kl_per_response (nats, summed), entropy and explained_variance belong to the rollout.
    Taught in: notebooks/07_training_step.ipynb
    """
    advantages, returns, kl = shaped_advantages(rollout, config, kl_coef, eos_id)
    with dropout_off(policy, value_head):
        steps = list(
            ppo_epochs(policy, value_head, optimizer, rollout, advantages, returns, config, generator, critic_only)
        )
    average = {
        name: sum(step[name] for step in steps) / len(steps) if steps else 0.0
        for name in ("policy_loss", "value_loss", "clip_fraction", "ratio_outside_fraction", "approx_kl", "grad_norm")
    }
    mask = rollout.mask
    return average | {
        "mean_ratio": sum(step["mean_ratio"] for step in steps) / len(steps) if steps else 1.0,
        "max_ratio": max((step["max_ratio"] for step in steps), default=1.0),
        "mean_reward": rollout.scores.mean().item(),
        "mean_kl": masked_mean(kl, mask).item(),
        "kl_per_response": kl.sum(1).mean().item(),
        "kl_coef": float(config.kl_coef if kl_coef is None else kl_coef),
        "entropy": masked_mean(rollout.entropy, mask).item(),
        "explained_variance": explained_variance(rollout.values_old, returns, mask).item(),
        "response_length": mask.sum(1).float().mean().item(),
        "num_steps": float(len(steps)),
    }


@torch.no_grad()
def _score(reward_model, input_ids):
    """Whole sequences [B, P+T] -> scores [B]; a Hugging Face head gives `.logits` of shape [B, 1]."""
    with dropout_off(reward_model):
        scores = reward_model(input_ids)
    scores = scores.logits if hasattr(scores, "logits") else scores
    return scores.squeeze(-1) if getattr(scores, "ndim", 0) == 2 else scores


def run_ppo_training_step(
    policy, ref_policy, value_head, reward_model, prompts, responses, optimizer, config, *, generator=None
):
    """One complete PPO step of the chapter: score, shape, assign credit, then num_epochs x num_minibatches updates.

    Args:
        policy, ref_policy: language models (tensor, `.logits` or (logits, values) outputs), sharing no weights.
        value_head: reads the policy's hidden states; None if the policy returns (logits, values) itself.
        reward_model: callable, full sequences [B, P+T] -> scores [B].
        prompts: [B, P], padded on the left with config.pad_id if at all.
        responses: [B, T], *sampled from the policy*; real through the first config.eos_id.
        optimizer: holds the parameters of policy and value head.
        config: PPOConfig. generator: shuffles the minibatches (default: a new one with seed 0).
    Returns: dict of floats: policy_loss, value_loss, mean_reward, mean_kl, mean_ratio and more, see `ppo_update`.
    Raises: ValueError naming the argument.
    Taught in: notebooks/07_training_step.ipynb
    """
    check_separate(policy, ref_policy)
    vocab_size = getattr(policy, "vocab_size", None)
    check_token_ids("prompts", prompts, vocab_size)
    check_token_ids("responses", responses, vocab_size)
    if len(prompts) != len(responses):
        raise ValueError(
            f"prompts of shape {tuple(prompts.shape)} and responses of shape {tuple(responses.shape)} must have the "
            "same batch size"
        )
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    mask = None if config.eos_id is None else response_mask(responses, config.eos_id, config.pad_id)
    prompt_mask = None
    if config.pad_id is not None:  # padding in front only: after the first real token every id is a token
        prompt_mask = (prompts != config.pad_id).long().cumsum(1) > 0
    with single_thread():
        scores = _score(reward_model, torch.cat([prompts, responses], dim=1))
        rollout = freeze_rollout(
            policy, ref_policy, prompts, responses, scores, mask=mask, prompt_mask=prompt_mask,
            value_head=value_head, temperature=config.temperature,
        )  # fmt: skip
        return ppo_update(
            policy, value_head, optimizer, rollout, config, eos_id=config.eos_id, generator=generator
        )


class TrainingLog:
    """What a training run measured: `metrics` (name -> list, one entry an update) and `samples`.

    Rows are appended whole, so an interrupt never leaves one list longer than another.
    Taught in: notebooks/08_training_run.ipynb
    """

    GLOSSARY = {
        "mean_reward": "score of the sampled responses, as the reward in use gives it",
        "true_score": "score of the same responses by the world's own true reward",
        "mean_kl": "KL to the reference, by config.kl_estimator (k1), nats per token",
        "kl_per_response": "the same, summed over a response, nats",
        "kl_coef": "price of one nat of KL in this update",
        "policy_loss": "clipped policy loss, mean over the update's steps (0 at the first: not a progress bar)",
        "value_loss": "mean squared error of the critic, no 1/2",
        "explained_variance": "1 = the critic forecast the returns perfectly, 0 = no better than a constant",
        "entropy": "mean entropy of the next-token distribution, nats",
        "clip_fraction": "share of tokens whose gradient the clip blocked",
        "ratio_outside_fraction": "share of tokens whose ratio left the band, blocked or not",
        "approx_kl": "KL between the policy at rollout and now, k3 estimate, nats per token",
        "mean_ratio": "mean ratio new/old; near 1 with or without the clip",
        "max_ratio": "largest ratio of a token in this update",
        "grad_norm": "norm of the gradient before it is cut",
        "response_length": "real tokens per response, EOS included",
        "stopped": "share of responses that ended in EOS",
        "num_steps": "optimizer steps in this update (fewer than epochs x minibatches after target_kl)",
        "learning_rate": "Adam's step size in this update",
    }

    def __init__(self, info=None):
        self.info = dict(info or {})  # world, config, reward, seed, batch_size
        self.rows = []
        self.samples = []  # dicts: update, prompt, response, score
        self.stopped_by = None  # None = still running; "finished", "should_stop" or "interrupt"

    @property
    def metrics(self):
        """dict name -> list, one entry an update."""
        return {name: [row[name] for row in self.rows] for name in (self.rows[0] if self.rows else {})}

    def append(self, row, samples=()):
        """Add one update's metrics (all at once) and, on some updates, decoded samples."""
        if self.rows and row.keys() != self.rows[0].keys():
            raise ValueError(f"row must have the metrics {sorted(self.rows[0])}, got {sorted(row)}")
        self.rows.append(dict(row))
        self.samples.extend(samples)

    def __len__(self):
        return len(self.rows)

    def __repr__(self):
        return f"TrainingLog({len(self)} updates, {len(self.samples)} samples)"

    def to_json(self):
        """The whole log as a JSON string."""
        return json.dumps(
            {"info": self.info, "stopped_by": self.stopped_by, "metrics": self.metrics, "samples": self.samples},
            indent=1,
        )

    @classmethod
    def from_json(cls, text):
        """Rebuild a log. Raises ValueError when the text is not one."""
        try:
            data = json.loads(text)
            log = cls(data["info"])
            columns = data["metrics"]
            log.rows = [dict(zip(columns, values)) for values in zip(*columns.values(), strict=True)]
            log.samples, log.stopped_by = list(data["samples"]), data["stopped_by"]
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"text must be a TrainingLog saved as JSON, got {text[:40]!r}... ({error})") from error
        return log

    def save(self, path):
        """Write JSON. The file is replaced in one move, so an interrupt never leaves half of it."""
        _write_whole(path, self.to_json() + "\n")

    @classmethod
    def load(cls, path):
        """Read what `save` wrote."""
        with open(path, encoding="utf-8") as file:
            return cls.from_json(file.read())

    def to_csv(self, path):
        """Write the metrics as CSV: one line an update, first column `update`."""
        partial = f"{path}.partial"
        with open(partial, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["update", *self.metrics])
            writer.writerows([i, *row.values()] for i, row in enumerate(self.rows))
        os.replace(partial, path)


def _write_whole(path, text):
    partial = f"{path}.partial"
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(partial, path)


def reward_function(world, reward, seed):
    """Turn the `reward` argument of `train_ppo` into a callable (prompt_ids, response_ids) -> [B]."""
    if reward == "true":
        return world.true_score
    if reward == "learned":
        with torch.random.fork_rng(devices=[]):  # building a network must not move the user's global generator
            return world.train_reward_model(seed=seed)
    if callable(reward):
        return reward
    raise ValueError(f"reward must be 'true', 'learned' or a callable (prompt_ids, response_ids) -> [B], got {reward!r}")


class Adam:
    """`torch.optim.Adam` without its class: the arithmetic is PyTorch's own, with its defaults for the two means.

    The first object of a class in torch.optim imports PyTorch's compiler, which takes as long as `import torch` did.
    A parameter without a gradient stays where it is. The state has the form of torch.optim.Adam's.
    Source: Kingma & Ba 2015, algorithm 1.
    """

    def __init__(self, parameters, lr, eps):
        self.param_groups = [{"params": list(parameters), "lr": lr, "eps": eps}]
        self.state = {}  # number of the parameter -> step, exp_avg, exp_avg_sq

    def zero_grad(self, set_to_none=True):
        """Drop all gradients."""
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    @torch.no_grad()
    def step(self):
        """Move every parameter that has a gradient."""
        group = self.param_groups[0]
        moving = {i: p for i, p in enumerate(group["params"]) if p.grad is not None}
        for i, p in moving.items():
            if i not in self.state:
                mean, square = torch.zeros_like(p), torch.zeros_like(p)
                self.state[i] = {"step": torch.zeros(()), "exp_avg": mean, "exp_avg_sq": square}
        steps, means, squares = ([self.state[i][name] for i in moving] for name in ("step", "exp_avg", "exp_avg_sq"))
        adam(
            list(moving.values()), [p.grad for p in moving.values()], means, squares, [], steps, fused=True,
            amsgrad=False, maximize=False, beta1=0.9, beta2=0.999, weight_decay=0.0, lr=group["lr"], eps=group["eps"],
        )  # fmt: skip

    def state_dict(self):
        """Rates and moments, by the number of the parameter."""
        group = self.param_groups[0]
        return {"state": self.state, "param_groups": [group | {"params": list(range(len(group["params"])))}]}

    def load_state_dict(self, state):
        """Go on from what `state_dict` gave; the moments are taken over, not copied."""
        self.param_groups[0].update(lr=state["param_groups"][0]["lr"], eps=state["param_groups"][0]["eps"])
        self.state = dict(state["state"])


class PPOTrainer:
    """The state of a training run, advanced one update at a time; `config` may be replaced between updates.

    Args: as `train_ppo`. `reference` defaults to a frozen copy of the policy as it comes in.
    Taught in: notebooks/08_training_run.ipynb
    """

    SAMPLES = 4  # decoded reviews kept each time

    def __init__(
        self, world, config, *, policy=None, reference=None, reward="true", num_updates=60, batch_size=128, seed=0
    ):
        for name, value in (("num_updates", num_updates), ("batch_size", batch_size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer >= 1, got {value!r}")
        if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
            raise ValueError(f"seed must be an integer of 64 bits, got {seed!r}")
        if not isinstance(config, PPOConfig):
            raise ValueError(f"config must be a PPOConfig, got {type(config).__name__}")
        if config.num_minibatches > batch_size > 1:
            raise ValueError(f"num_minibatches must be at most batch_size = {batch_size}, got {config.num_minibatches}")
        self.world, self.config, self.num_updates, self.batch_size = world, config, num_updates, batch_size
        self.policy = policy if policy is not None else world.policy()
        self.reference = reference if reference is not None else make_reference(self.policy)
        check_separate(self.policy, self.reference)
        self.score = reward_function(world, reward, seed)
        self.generator = torch.Generator().manual_seed(seed)
        first_prompt = world.sample_prompts(1, torch.Generator().manual_seed(seed))
        self.value_head = new_value_head(self.policy, first_prompt)
        parameters = [p for model in (self.policy, self.value_head) if model is not None for p in model.parameters()]
        self.optimizer = Adam(parameters, lr=config.learning_rate, eps=config.adam_eps)
        self.controller = None
        if config.kl_target is not None:
            self.controller = AdaptiveKLController(config.kl_coef, config.kl_target, config.kl_horizon)
        described = reward if isinstance(reward, str) else getattr(reward, "__name__", type(reward).__name__)
        self.log = TrainingLog(
            dict(world=world.name, reward=described, seed=seed, batch_size=batch_size, config=asdict(config))
        )

    def sample(self):
        """Stages 1 and 2: prompts, responses, scores, frozen."""
        world = self.world
        prompt_ids = world.sample_prompts(self.batch_size, self.generator)
        return collect_rollout(
            self.policy, self.reference, prompt_ids, self.score, world.max_new_tokens, eos_id=world.eos_id,
            pad_id=world.pad_id, temperature=self.config.temperature, value_head=self.value_head,
            generator=self.generator,
        )  # fmt: skip

    def step(self):
        """One update; its metrics are appended to `log` and returned."""
        config, done = self.config, len(self.log)
        rate = config.learning_rate
        if config.lr_schedule == "linear":
            rate *= max(1.0 - done / self.num_updates, 0.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with single_thread():
            rollout = self.rollout = self.sample()
            kl_coef = config.kl_coef if self.controller is None else self.controller.value
            row = ppo_update(
                self.policy, self.value_head, self.optimizer, rollout, config, kl_coef=kl_coef,
                eos_id=self.world.eos_id, generator=self.generator, critic_only=done < config.value_warmup,
            )  # fmt: skip
            row["true_score"] = self.world.true_score(rollout.prompt_ids, rollout.response_ids).mean().item()
        if self.controller is not None:
            self.controller.update(row["kl_per_response"], self.batch_size)
        ends = rollout.response_ids == (-1 if self.world.eos_id is None else self.world.eos_id)
        row["stopped"] = ends.any(1).float().mean().item()
        row["learning_rate"] = rate
        every = max(1, self.num_updates // 10)
        wanted = done % every == 0 or done == self.num_updates - 1
        self.log.append(row, self._decoded(rollout, done) if wanted else ())
        return row

    def _decoded(self, rollout, update):
        return [
            dict(
                update=update,
                prompt=self.world.decode(rollout.prompt_ids[i]),
                response=self.world.decode(rollout.response_ids[i]),
                score=round(rollout.scores[i].item(), 4),
            )
            for i in range(min(self.SAMPLES, len(rollout)))
        ]

    def state_dict(self):
        """Everything needed to go on later, as tensors, numbers and strings (loads with weights_only=True)."""
        return {
            "policy": _copied(self.policy.state_dict()),
            "value_head": None if self.value_head is None else _copied(self.value_head.state_dict()),
            "optimizer": _copied(self.optimizer.state_dict()),
            "reference": _copied(self.reference.state_dict()),
            "generator": self.generator.get_state(),
            "kl_coef": None if self.controller is None else self.controller.value,
            "log": self.log.to_json(),
        }

    def load_state_dict(self, state):
        """Go back to where `state_dict` was taken. Raises ValueError when that was another kind of run."""
        log = TrainingLog.from_json(state["log"])
        for name, value in self.log.info.items():
            if name != "config" and log.info.get(name) != value:
                raise ValueError(f"{name} of the saved run must be {value!r}, as in this run, got {log.info.get(name)!r}")
        self.policy.load_state_dict(state["policy"])
        self.reference.load_state_dict(state["reference"])
        if self.value_head is not None:
            self.value_head.load_state_dict(state["value_head"])
        self.optimizer.load_state_dict(_copied(state["optimizer"]))  # Adam would go on in the saved moments
        self.generator.set_state(state["generator"])
        if self.controller is not None and state["kl_coef"] is not None:
            self.controller.value = state["kl_coef"]
        self.log.rows, self.log.samples, self.log.stopped_by = log.rows, log.samples, log.stopped_by


def _copied(state):
    """A nested dict with a copy of every tensor in it."""
    if isinstance(state, dict):
        return {name: _copied(value) for name, value in state.items()}
    return state.detach().clone() if isinstance(state, torch.Tensor) else state


def _progress_bar(total, done, show):
    """A tqdm bar in a terminal or a notebook; nothing where nobody watches."""
    if show is None:
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        in_notebook = hasattr(shell, "kernel")  # that ipykernel was imported is no sign: pytest plugins do so too
        show = in_notebook or (sys.stderr is not None and sys.stderr.isatty())
    if not show:
        return None
    from tqdm.auto import tqdm

    return tqdm(total=total, initial=done, desc="PPO updates", leave=True)


def train_ppo(
    world, config=PPOConfig(), *, policy=None, reward="true", num_updates=60, batch_size=128, seed=0, callback=None,
    should_stop=None, reference=None, checkpoint=None, progress=None,
):  # fmt: skip
    """Train a language model by PPO, for real, in seconds.

    Args:
        world: ReviewWorld, ChainWorld, or anything with their methods.
        config: PPOConfig.
        policy: a language model, trained in place; default: a fresh copy of the world's pretrained one. One that
            returns logits only gets a value head of its own, on what its lm_head reads.
        reward: "true", "learned" (a reward model trained on noisy comparisons) or a callable
            (prompt_ids [B, P], response_ids [B, T]) -> [B].
        num_updates, batch_size, seed: length of the run, responses per update, the only source of randomness.
        callback: called after each update as callback(update, metrics).
        should_stop: called before each update; True ends the run cleanly.
        reference: default: a frozen copy of the policy as it comes in.
        checkpoint: path; if the file exists the run goes on from it; it is written when the run ends or is stopped.
        progress: True/False; default: a bar in terminals and notebooks only.
    Returns: policy, TrainingLog. An interrupt (Ctrl-C, the stop button) also returns both, as they were after the
        last complete update, with log.stopped_by = "interrupt".
    Raises: ValueError naming the argument, FloatingPointError if the loss stops being finite.
    Taught in: notebooks/08_training_run.ipynb
    """
    trainer = PPOTrainer(
        world, config, policy=policy, reference=reference, reward=reward, num_updates=num_updates,
        batch_size=batch_size, seed=seed,
    )  # fmt: skip
    if checkpoint is not None and os.path.exists(checkpoint):
        trainer.load_state_dict(torch.load(checkpoint, weights_only=True))
    log, bar = trainer.log, _progress_bar(num_updates, len(trainer.log), progress)
    log.stopped_by = None
    state = trainer.state_dict()
    try:
        while len(log) < num_updates:
            if should_stop is not None and should_stop():
                log.stopped_by = "should_stop"
                break
            metrics = trainer.step()
            state = trainer.state_dict()
            if bar is not None:
                bar.update(1)
            if callback is not None:
                callback(len(log) - 1, metrics)
        else:
            log.stopped_by = "finished"
    except KeyboardInterrupt:
        trainer.load_state_dict(state)  # half an update is thrown away, so policy and log belong together
        log.stopped_by = "interrupt"
    except Exception as error:
        error.log = log  # what was measured before the failure stays within reach
        raise
    finally:
        if bar is not None:
            bar.close()
        if checkpoint is not None:
            torch.save(state, f"{checkpoint}.partial")
            os.replace(f"{checkpoint}.partial", checkpoint)
    return trainer.policy, log
