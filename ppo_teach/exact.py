"""The oracle (layer 2): what a policy is worth, and what the best one would be, without sampling error.

ChainWorld is a tree. A state is a prompt and the words written so far: K^t states at depth t, alphabetically.
A *tree* below is a list over the depth t: [B, K^t], a number per state, or [B, K^t, V], a number per action
(EOS, then the K words); [B, M] is a number per response, in the order of `world.responses()`. All float64.
Nothing carries gradient except in `exact_policy_gradient`.

B prompts (any, also repeated), N prompts of a world, P prompt tokens, T response tokens, M responses each.
`policy`, `reference`: a model, or on ChainWorld also a tree of log-probabilities, such as that of π*.
`reward`: None = world.true_score, or any callable (prompt_ids [n, P], response_ids [n, T]) -> [n].
`prompts`: None = all prompts of the world, equally likely, which is how both worlds sample them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from .models import call_model, logits_of
from .tensor_ops import (
    check_number,
    check_token_ids,
    dropout_off,
    response_log_probs,
    response_mask,
    single_thread,
)

CHUNK = 4096  # rows of one forward pass: enough to be fast, few enough for any laptop


def next_token_log_probs(policy, prompt_ids, world, *, keep_graph=False):
    """log π(a | s) in every state: [B, P] -> tree [B, K^t, V].

    One forward pass over the longest states is enough: causal logits depend on nothing that follows.
    keep_graph=True for autograd. Raises: ValueError if the world cannot be listed.
    """
    distinct, row = _distinct_prompts(prompt_ids, world)
    if isinstance(policy, list):
        if len(policy[0]) != len(prompt_ids):
            raise ValueError(f"policy is a tree of {len(policy[0])} prompts, prompts are {len(prompt_ids)}")
        return policy
    K, T = world.vocab_size - 1, world.max_new_tokens
    longest = world.responses()[0][-(K**T) :: K, : T - 1]  # [K^(T-1), T-1]
    ids = torch.cat([distinct.repeat_interleave(len(longest), 0), longest.repeat(len(distinct), 1)], dim=1)
    with dropout_off(policy), single_thread(), torch.set_grad_enabled(keep_graph):
        logits = torch.cat([logits_of(call_model(policy, part))[:, -T:] for part in ids.split(CHUNK)])
        log_probs = logits.double().log_softmax(-1).view(len(distinct), len(longest), T, K + 1)
    return [log_probs[:, :: K ** (T - 1 - t), t][row] for t in range(T)]


def sequence_log_probs(next_log_probs):
    """log π(y | x) = Σ_t log π(a_t | s_t) of every response: tree [B, K^t, V] -> [B, M]."""
    reached, stopped = torch.zeros_like(next_log_probs[0][..., 0]), []
    for log_probs in next_log_probs:
        step = reached.unsqueeze(-1) + log_probs
        stopped.append(step[..., 0])
        reached = step[..., 1:].flatten(1)
    return torch.cat([*stopped, reached], dim=1)


@torch.no_grad()
def all_scores(world, prompt_ids, reward=None):
    """R(x, y) of every response to each prompt: [B, P] -> [B, M]. Raises: ValueError for NaN or infinity."""
    distinct, row = _distinct_prompts(prompt_ids, world)
    return _score(world, distinct, world.responses()[0].expand(len(distinct), -1, -1), reward)[row]


def kl_divergence(log_probs, log_probs_ref):
    """KL(p, q) = Σ_y p(y) [log p(y) - log q(y)] in nats, over the last axis."""
    return _expectation(log_probs, log_probs - log_probs_ref)


@torch.no_grad()
def exact_kl(policy, reference, prompt_ids, world):
    """KL(π(·|x), π_ref(·|x)) over whole responses, in nats, for each prompt: [B, P] -> [B].

    Taught in: notebooks/03_kl_leash.ipynb
    """
    trees = [next_token_log_probs(model, prompt_ids, world) for model in (policy, reference)]
    return kl_divergence(*map(sequence_log_probs, trees))


@torch.no_grad()
def exact_expected_reward(policy, prompt_ids, world, reward=None):
    """E R(x, y) over y ~ π(·|x), for each prompt: [B, P] -> [B].

    Taught in: notebooks/04_how_far.ipynb
    """
    log_probs = sequence_log_probs(next_token_log_probs(policy, prompt_ids, world))
    return _expectation(log_probs, all_scores(world, prompt_ids, reward))


def evaluate_policy(
    policy, prompt_ids, world, *, reference=None, kl_coef=0.0, gamma=1.0, reward=None, keep_graph=False
):  # fmt: skip
    """V and Q of a policy in every state, by one backward pass over the tree.

    V(s)    = Σ_a π(a|s) Q(s, a)
    Q(s, a) = -β [log π(a|s) - log π_ref(a|s)] + R where the response ends, else + γ V(s')

    These are the rewards of `shape_rewards` with estimator k1; kl_coef 0 leaves the plain score.

    Args: prompt_ids [B, P]; reference, needed when kl_coef > 0; gamma in [0, 1].
    Returns: values, tree [B, K^t]; action_values, tree [B, K^t, V].
    Taught in: notebooks/05_gae.ipynb
    """
    check_number("kl_coef", kl_coef, low=0.0)
    check_number("gamma", gamma, low=0.0, high=1.0)
    if kl_coef > 0 and reference is None:
        raise ValueError(f"reference must be given when kl_coef > 0, got kl_coef = {kl_coef} and None")
    log_probs = next_token_log_probs(policy, prompt_ids, world, keep_graph=keep_graph)
    log_probs_ref = next_token_log_probs(reference, prompt_ids, world) if kl_coef > 0 else log_probs
    T, K = world.max_new_tokens, world.vocab_size - 1
    *stopped, V = all_scores(world, prompt_ids, reward).split([K**t for t in range(T + 1)], dim=1)
    values, action_values = [], []
    for t in reversed(range(T)):
        future = gamma * V if t < T - 1 else V  # after T words V is the score, paid with the last word
        Q = torch.cat([stopped[t].unsqueeze(-1), future.unflatten(1, (K**t, K))], dim=-1)
        Q = Q - kl_coef * (log_probs[t] - log_probs_ref[t]) if kl_coef > 0 else Q
        V = _expectation(log_probs[t], Q)
        values.insert(0, V)
        action_values.insert(0, Q)
    return values, action_values


@torch.no_grad()
def exact_values(policy, prompt_ids, world, *, response_ids=None, **objective):
    """V(s), what the policy can expect from state s on, before it chooses.

    Args: response_ids [B, T] or None; objective: reference, kl_coef, gamma, reward as in `evaluate_policy`.
    Returns: [B, T], V before each token of the given responses, 0 at padding; without response_ids the tree.
    Taught in: notebooks/05_gae.ipynb
    """
    prompt_ids, row = (prompt_ids, None) if response_ids is None else _rows(policy, prompt_ids, world)
    values, _ = evaluate_policy(policy, prompt_ids, world, **objective)
    return values if response_ids is None else _along(values, row, response_ids, world)


@torch.no_grad()
def exact_advantages(policy, prompt_ids, world, *, response_ids=None, **objective):
    """A(s, a) = Q(s, a) - V(s): how much better than its own average the policy does by choosing a.

    Σ_a π(a|s) A(s, a) = 0 in every state. Arguments as `exact_values`.
    Returns: [B, T], of each token of the given responses; without response_ids the tree [B, K^t, V].
    Taught in: notebooks/05_gae.ipynb
    """
    prompt_ids, row = (prompt_ids, None) if response_ids is None else _rows(policy, prompt_ids, world)
    values, action_values = evaluate_policy(policy, prompt_ids, world, **objective)
    advantages = [Q - V.unsqueeze(-1) for Q, V in zip(action_values, values, strict=True)]
    return advantages if response_ids is None else _along(advantages, row, response_ids, world)


@torch.no_grad()
def bias_and_spread(estimates, truth, probabilities, prompt_ids, response_ids, world):
    """How far advantage estimates are from the truth on average, and how much they scatter; no sampling error.

    e = Â - A;  bias² = mean of (E[e|s,a] - E[e|s])²;  spread² = mean of e² - bias²

    E[e|s] shifts all tokens of a state alike, which prefers none of them: it is noise, not bias.

    Args: every response there is, with its probability [B] and its estimates and exact advantages [B, T]; the
        means are over real tokens. Returns: bias, spread (floats, in units of the reward).
    Taught in: notebooks/05_gae.ipynb
    """
    error, mask = (estimates - truth).double(), response_mask(response_ids, world.eos_id)
    weights, V = probabilities.double().unsqueeze(1) * mask, world.vocab_size

    def mean_over(state, t):  # of the error, over all responses that go through a state
        total, weighed = (torch.bincount(state, w) for w in (weights[:, t], weights[:, t] * error[:, t]))
        return (weighed / total.clamp(min=1e-300))[state]

    state, bias, every = prompt_ids[:, -1], 0.0, (weights * error**2).sum()
    for t in range(response_ids.shape[1]):
        after = V * state + response_ids[:, t]  # numbers each prompt with the words so far
        bias = bias + (weights[:, t] * (mean_over(after, t) - mean_over(state, t)) ** 2).sum()
        state = after
    return float((bias / weights.sum()).sqrt()), float(((every - bias).clamp(min=0) / weights.sum()).sqrt())


def exact_policy_gradient(policy, prompt_ids, world, **objective):
    """∇_θ J by autograd through the whole tree; J = mean over the prompts of V(s₀), with γ = 1 E R - β KL.

    Returns: dict, parameter name -> gradient; parameters without influence (the critic's) are left out.
    Taught in: notebooks/07_training_step.ipynb
    """
    named = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        values, _ = evaluate_policy(policy, prompt_ids, world, **objective, keep_graph=True)
        gradients = torch.autograd.grad(values[0].mean(), list(named.values()), allow_unused=True)
    return {name: g for name, g in zip(named, gradients, strict=True) if g is not None}


@torch.no_grad()
def soft_values(next_log_probs_ref, scores, beta):
    """The best policy under a price on KL, by one backward pass of the soft value.

    Q*(s, a) = R where the response ends, else V*(s')
    V*(s)    = β log Σ_a π_ref(a|s) exp(Q*(s, a) / β)
    π*(a|s)  = π_ref(a|s) exp((Q*(s, a) - V*(s)) / β)

    Args: next_log_probs_ref, tree [B, K^t, V]; scores [B, M] of every response; beta > 0.
    Returns: values, tree [B, K^t]; next_log_probs of π*, tree [B, K^t, V].
    Source: Todorov 2009 (linearly solvable control); Ziebart 2010 (soft value).
    Taught in: notebooks/04_how_far.ipynb
    """
    check_number("beta", beta, low=0.0, low_open=True)
    T, K = len(next_log_probs_ref), next_log_probs_ref[0].shape[-1] - 1
    # stopped[t]: the scores of stopping after t words; V: of being cut off after T words
    *stopped, V = scores.split([K**t for t in range(T + 1)], dim=1)
    values, next_log_probs = [], []
    for t in reversed(range(T)):
        Q = torch.cat([stopped[t].unsqueeze(-1), V.unflatten(1, (K**t, K))], dim=-1)
        tilted = next_log_probs_ref[t] + Q / beta
        log_z = tilted.logsumexp(-1)
        V = beta * log_z
        values.insert(0, V)
        next_log_probs.insert(0, tilted - log_z.unsqueeze(-1))
    return values, next_log_probs


@dataclass
class Candidates:
    """The responses among which the optimum is sought: all of them, or a sample, and what each stands for."""

    prompt_ids: torch.Tensor  # [N, P]
    response_ids: torch.Tensor  # [N, M, T]
    scores: torch.Tensor  # [N, M]
    log_weights: torch.Tensor  # [N, M] log of the reference probability each stands for; a row's sum is 1
    reward: Callable | None  # what gave the scores; None = world.true_score
    next_log_probs: list | None = field(default=None, repr=False)  # the reference's tree; None = a sample


@torch.no_grad()
def find_candidates(
    world, reference, *, prompts=None, reward=None, exact=None, num_samples=10_000, proposal=None,
    generator=None,
):  # fmt: skip
    """List every response with its probability where that is possible, else sample from the reference.

    The slow part of everything below: do it once, and pass the result on as `candidates`.

    Args: exact, None = list where possible, False = sample all the same. For sampling: num_samples a prompt;
        proposal, a policy that finds high scores more often: half of the samples are then its own, and each
        weighs π_ref / (π_ref + π_proposal) (the balance heuristic, Veach and Guibas 1995).
    """
    if prompts is None:
        prompts = world.prompts() if callable(world.prompts) else world.prompts
    if exact or (exact is None and hasattr(world, "responses")):
        tree, scores = next_token_log_probs(reference, prompts, world), all_scores(world, prompts, reward)
        every = world.responses()[0].expand(len(prompts), -1, -1)
        return Candidates(prompts, every, scores, sequence_log_probs(tree), reward, tree)
    if proposal is None:
        y, log_ref = _sample(reference, prompts, num_samples, world, generator)
        log_weights = torch.zeros_like(log_ref)
    else:
        both = (reference, proposal)
        y = torch.cat([_sample(model, prompts, num_samples // 2, world, generator)[0] for model in both], 1)
        log_ref, log_own = (_log_probs_of(model, prompts, y, world) for model in both)
        log_weights = log_ref - torch.logaddexp(log_ref, log_own)
    return Candidates(prompts, y, _score(world, prompts, y, reward), log_weights.log_softmax(1), reward)


@dataclass
class Optimum:
    """The KL-regularised optimum at one β: means over the prompts, per prompt, and per candidate."""

    beta: float
    reward: float  # E*[R]
    kl: float  # KL(π*, π_ref), nats per response
    objective: float  # reward - β kl = β log Z
    log_probs: torch.Tensor = field(repr=False)  # [N, M] log π*(y|x); of a sample, its normalised log-weights
    per_prompt: dict = field(repr=False)  # reward, kl, objective: [N] each
    candidates: Candidates = field(repr=False)
    stderr: dict | None = None  # of reward, kl and objective, where sampled
    ess: float | None = None  # least effective sample size of a prompt, where sampled
    soft_values: list | None = field(default=None, repr=False)  # tree [N, K^t], where exact
    next_log_probs: list | None = field(default=None, repr=False)  # of π*, tree [N, K^t, V], where exact


@torch.no_grad()
def optimal_policy(world, reference, beta, *, candidates=None, min_ess=100, **how):
    """The policy with the largest E R - β KL(π, π_ref): π*(y|x) = π_ref(y|x) exp(R(x, y) / β) / Z(x).

    Its objective is β log Z(x), Z(x) = Σ_y π_ref(y|x) exp(R(x, y) / β). Exact on ChainWorld; elsewhere from
    samples of the reference (self-normalised importance weights ∝ exp(R / β)), with delta-method errors.
    A sample knows nothing of scores it has not met: where few responses carry the answer, it is refused.

    Args: beta > 0; candidates, or how to find them (arguments of `find_candidates`); min_ess.
    Returns: Optimum. Raises: ValueError naming beta, the effective sample size and the least allowed.
    Source: Ziegler et al. 2019 and Korbak et al. 2022 for π*; Owen 2013, chapter 9, for the weights.
    Taught in: notebooks/04_how_far.ipynb
    """
    check_number("beta", beta, low=0.0, low_open=True)
    found = candidates or find_candidates(world, reference, **how)
    tilted = found.log_weights + found.scores / beta
    log_z = tilted.logsumexp(1)
    log_probs = tilted - log_z.unsqueeze(1)
    kl = kl_divergence(log_probs, found.log_weights)
    per_prompt = dict(reward=_expectation(log_probs, found.scores), kl=kl, objective=beta * log_z)
    means = {name: float(number.mean()) for name, number in per_prompt.items()}
    best = Optimum(beta, **means, log_probs=log_probs, per_prompt=per_prompt, candidates=found)
    if found.next_log_probs is not None:
        best.soft_values, best.next_log_probs = soft_values(found.next_log_probs, found.scores, beta)
        return best
    best.stderr, best.ess = _sampling_error(best)
    if best.ess < min_ess:
        raise ValueError(
            f"beta = {beta:g} is too small for {found.scores.shape[1]} samples: effective sample size "
            f"{best.ess:.1f}, at least {min_ess:g} is needed; raise beta or num_samples, or give a proposal"
        )
    return best


def _sampling_error(best):
    """Standard errors of reward, kl, objective (means over the prompts), and the least effective sample size.

    Delta method: from each sample's influence on the estimates; w weighs it under π*, w_ref under π_ref.
    """
    w, w_ref = best.log_probs.exp(), best.candidates.log_weights.exp()
    on_reward = w * (best.candidates.scores - best.per_prompt["reward"].unsqueeze(1))
    on_log_z = w - w_ref
    influence = dict(reward=on_reward, kl=on_reward / best.beta - on_log_z, objective=best.beta * on_log_z)
    return {name: _root_sum(x) for name, x in influence.items()}, float((1 / (w**2).sum(1)).min())


@torch.no_grad()
def reward_kl_frontier(world, reference, betas, *, candidates=None, min_ess=100, **how):
    """The best reward for every amount of KL: one point per β, all from one list or sample of responses.

    Returns: dict of arrays beta, reward, kl, objective; where sampled also stderr (of reward), kl_stderr,
        objective_stderr and ess. What `optimal_policy` would refuse is NaN here, beside its ess.
    Taught in: notebooks/04_how_far.ipynb
    """
    found = candidates or find_candidates(world, reference, **how)
    points = [optimal_policy(world, reference, float(beta), candidates=found, min_ess=0) for beta in betas]
    if not points:
        raise ValueError("betas must hold at least one number > 0, got none")
    names = ("reward", "kl", "objective")
    curve = {name: np.array([getattr(point, name) for point in points]) for name in names}
    if found.next_log_probs is None:
        ess = np.array([point.ess for point in points])
        for name, key in zip(names, ("stderr", "kl_stderr", "objective_stderr"), strict=True):
            curve[key] = np.array([point.stderr[name] for point in points])
        curve = {name: np.where(ess >= min_ess, x, np.nan) for name, x in curve.items()} | {"ess": ess}
    return {"beta": np.array([point.beta for point in points]), **curve}


@dataclass
class Gain:
    """What a policy has reached of what can be reached at one β."""

    share: float  # (objective - start) / (best - start): 0 = the reference, 1 = the optimum
    stderr: float  # of the share; 0 where exact
    objective: float  # reward - β kl of the policy
    reward: float
    kl: float  # nats per response
    start: float  # mean score of the reference
    best: float  # objective of the optimum, β log Z


@torch.no_grad()
def share_of_gain(
    policy, reference, world, beta, *, candidates=None, num_samples=1000, generator=None, min_ess=100, **how
):  # fmt: skip
    """How much of the possible gain in E R - β KL over the reference a policy has reached.

    Exact on ChainWorld. Elsewhere the policy is judged by num_samples of its own responses a prompt (score
    minus β times the summed log-ratio), reference and optimum by the candidates; the error bar joins all.

    Returns: Gain. Raises: ValueError as `optimal_policy`, and where nothing can be gained.
    Taught in: notebooks/04_how_far.ipynb
    """
    found = candidates or find_candidates(world, reference, generator=generator, **how)
    optimum = optimal_policy(world, reference, beta, candidates=found, min_ess=min_ess)
    x, w_ref, error = found.prompt_ids, found.log_weights.exp(), 0.0
    start = (w_ref * found.scores).sum(1)
    possible = optimum.objective - float(start.mean())
    if possible < 1e-9:
        raise ValueError(f"beta = {beta:g}: the optimum is no better than the reference ({possible:.1e})")
    if found.next_log_probs is not None:
        log_probs = sequence_log_probs(next_token_log_probs(policy, x, world))
        scores, kl = _expectation(log_probs, found.scores), kl_divergence(log_probs, found.log_weights)
    else:
        y, log_probs = _sample(policy, x, num_samples, world, generator)
        scores, kl = _score(world, x, y, found.reward), log_probs - _log_probs_of(reference, x, y, world)
        net = scores - beta * kl
        error = _root_sum((net - net.mean(1, keepdim=True)) / num_samples)
    objective = float((scores - beta * kl).mean())
    share = (objective - float(start.mean())) / possible
    if optimum.stderr:  # start and optimum come from one sample: their errors are added, not their squares
        of_start = _root_sum(w_ref * (found.scores - start.unsqueeze(1)))
        error = math.hypot(error, abs(share) * optimum.stderr["objective"] + abs(1 - share) * of_start)
    parts = (float(number.mean()) for number in (scores, kl, start))
    return Gain(share, error / possible, objective, *parts, optimum.objective)


def best_of_n_kl_bound(n):
    """log n - (n - 1) / n, in nats: the most KL that choosing the best of n samples can cost.

    Source: Stiennon et al. 2020, Beirami et al. 2024. Taught in: notebooks/11_onward.ipynb
    """
    check_number("n", n, low=1)
    return math.log(n) - (n - 1) / n


def best_of_n_log_probs(log_probs, scores, n):
    """log-probability that y is the best of n samples, exactly; ties by a fair draw: two [B, M] -> [B, M].

    P(y) = p(y) [P(score ≤ R(y))^n - P(score < R(y))^n] / P(score = R(y))

    Taught in: notebooks/11_onward.ipynb
    """
    check_number("n", n, low=1)
    best = []
    for p, score in zip(log_probs.exp(), scores, strict=True):
        _, level = score.unique(return_inverse=True)
        mass = torch.zeros(int(level.max()) + 1, dtype=p.dtype).index_add(0, level, p)
        up_to = mass.cumsum(0)
        below = (up_to - mass).clamp(min=0)
        best.append(p * ((up_to**n - below**n) / mass.clamp(min=1e-300))[level])
    return torch.stack(best).log()


def _rows(policy, prompt_ids, world):
    """Each prompt once, and where each row's stands; a policy given as a tree has its own rows."""
    if isinstance(policy, list):
        return prompt_ids, torch.arange(len(prompt_ids))
    return _distinct_prompts(prompt_ids, world)


def _along(tree, row, response_ids, world):
    """A tree read along one response per row: [B, T]; with actions, the entry of the token chosen."""
    check_token_ids("response_ids", response_ids, world.vocab_size)
    flat, (B, T) = torch.cat(tree, dim=1), response_ids.shape
    if B != len(row) or T > world.max_new_tokens:
        expected = f"[{len(row)}, at most {world.max_new_tokens}]"
        raise ValueError(f"response_ids must have shape {expected}, got {(B, T)}")
    states = [torch.zeros(B, dtype=torch.long)]  # numbered depth by depth: word w leads from i to K i + w
    for token in response_ids[:, :-1].T:
        states.append(((world.vocab_size - 1) * states[-1] + token).clamp(max=flat.shape[1] - 1))
    read = flat[row.unsqueeze(1), torch.stack(states, dim=1)]
    if read.dim() == 3:
        read = read.gather(-1, response_ids.unsqueeze(-1)).squeeze(-1)
    return read.masked_fill(~response_mask(response_ids, world.eos_id), 0.0)


def _expectation(log_probs, x):
    """Σ p x over the last axis; where p = 0, x may be anything, also infinite."""
    return torch.where(log_probs > -math.inf, log_probs.exp() * x, 0.0).sum(-1)


def _root_sum(influence):
    """Standard error of a mean over prompts from each sample's influence [N, M] on its prompt's estimate."""
    return float((influence**2).sum().sqrt() / len(influence))


def _distinct_prompts(prompt_ids, world):
    """Each prompt once, and where each row's stands. Raises: ValueError if the world cannot be listed."""
    if not hasattr(world, "responses"):
        raise ValueError(f"world must list its responses, as ChainWorld does; got {type(world).__name__}")
    check_token_ids("prompt_ids", prompt_ids, world.vocab_size)
    if prompt_ids.shape[1] != world.prompt_length:
        raise ValueError(f"prompt_ids must be [B, {world.prompt_length}], got {tuple(prompt_ids.shape)}")
    return prompt_ids.unique(dim=0, return_inverse=True)


def _sample(policy, prompts, num_samples, world, generator):
    """num_samples responses of a policy to each prompt: ids [N, M, T] and their log-probabilities [N, M]."""
    if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 2:
        raise ValueError(f"num_samples must be an integer >= 2, got {num_samples!r}")
    if not hasattr(policy, "generate"):
        raise ValueError(f"sampling needs a policy that can generate, as TinyLM; got {type(policy).__name__}")
    options = dict(eos_id=world.eos_id, pad_id=world.pad_id, generator=generator, return_log_probs=True)
    parts = prompts.repeat_interleave(num_samples, 0).split(CHUNK)
    ids, log_probs = zip(*(policy.generate(x, world.max_new_tokens, **options) for x in parts), strict=True)
    shape = (len(prompts), num_samples)
    return torch.cat(ids).view(*shape, -1), torch.cat(log_probs).double().sum(1).view(shape)


def _log_probs_of(policy, prompts, response_ids, world):
    """log π(y | x) of given responses: [N, M, T] -> [N, M]."""
    found = []
    with dropout_off(policy), single_thread():
        for x, y in _pairs(prompts, response_ids):
            logits = logits_of(call_model(policy, torch.cat([x, y], dim=1)))
            mask = response_mask(y, world.eos_id, world.pad_id)
            found.append((response_log_probs(logits.double(), y) * mask).sum(1))
    return torch.cat(found).view(response_ids.shape[:2])


def _score(world, prompts, response_ids, reward=None):
    """R(x, y) of given responses: [N, M, T] -> [N, M]."""
    reward = world.true_score if reward is None else reward
    scores = torch.cat([reward(x, y) for x, y in _pairs(prompts, response_ids)]).double()
    if not bool(scores.isfinite().all()):
        raise ValueError("reward must give a finite score for every response, got NaN or infinity")
    return scores.view(response_ids.shape[:2])


def _pairs(prompts, response_ids):
    """Prompts and responses row by row, in chunks."""
    rows = prompts.repeat_interleave(response_ids.shape[1], 0), response_ids.flatten(0, 1)
    return zip(*(part.split(CHUNK) for part in rows), strict=True)
