"""The exercises of notebook 04: the optimal policy, the soft value, a KL budget (layer 6)."""

import functools
import math

import torch

from ..checker import Exercise, Mistake, Task, Verdict, check, random_log_probs, says, seeded
from ..exact import Candidates, find_candidates, optimal_policy, soft_values
from ..models import make_reference
from ..worlds import ChainWorld

WORDS = ("<eos>", "a", "b", "c", "d")


# ---------------------------------------------------------------- 4.1 the optimal policy

def _tilted(log_probs_ref, scores, beta):
    """log π*(y) over a list of responses: `optimal_policy` with the list as its candidates."""
    candidates = Candidates(None, None, scores, log_probs_ref, None)
    return optimal_policy(None, None, beta, candidates=candidates, min_ess=0).log_probs


def _normal(tilted):
    return tilted.log_softmax(-1)


def _optimal_cases():
    three = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()
    small = torch.tensor([[0.0, 1.0, 2.0]], dtype=torch.float64)
    large = torch.tensor([[900.0, 899.0, 880.0]], dtype=torch.float64)
    scores = torch.randn(2, 6, generator=seeded(1), dtype=torch.float64)
    return {
        "three answers": dict(log_probs_ref=three, scores=small, beta=0.5),
        "two prompts": dict(log_probs_ref=random_log_probs(2, 6, seed=2), scores=scores, beta=0.8),
        "three prompts": dict(log_probs_ref=random_log_probs(3, 4, seed=3), scores=scores.view(3, 4), beta=2.5),
        "scores of 900": dict(log_probs_ref=three, scores=large, beta=0.9),
    }


OPTIMAL_POLICY = Exercise(
    number="4.1", name="optimal_policy", solution=_tilted, cases=_optimal_cases, shapes="[N, M]",
    place=lambda case, n, m: f"at answer {m} of prompt {n}",
    mistakes={
        "not_normalised": Mistake(
            lambda ref, R, b: ref + R / b,
            "Your probabilities do not add up to 1: {place} you say log π* = {yours}.",
            "Which number, the same for every answer of a prompt, is still missing?"),
        "times_beta": Mistake(
            lambda ref, R, b: _normal(ref + R * b),
            "Your policy moves further when β grows; {place} you say {yours}.",
            "β is a price. Should a higher price make π* move more, or less?"),
        "beta_missing": Mistake(
            lambda ref, R, b: _normal(ref + R),
            "Your policy is the same for every β; {place} you say {yours}.",
            "Where does the price of KL come in?"),
        "sign": Mistake(
            lambda ref, R, b: _normal(ref - R / b),
            "The better the score, the less likely your answer: {place} you say {yours}.",
            "What should a high score do to log π*?"),
        "reference_forgotten": Mistake(
            lambda ref, R, b: _normal(R / b),
            "Your policy does not depend on the reference; {place} you say {yours}.",
            "With all scores equal, which policy is best? Does yours become that one?"),
        "reference_not_log": Mistake(
            lambda ref, R, b: _normal(ref.exp() + R / b),
            "A probability of the reference is added where its logarithm belongs; {place} you say {yours}.",
            "A product becomes a sum in log space. Of which two logarithms?"),
        "reference_only_in_sum": Mistake(
            lambda ref, R, b: R / b - (ref + R / b).logsumexp(-1, keepdim=True),
            "The reference is in your normaliser only; {place} you say {yours}.",
            "Z is the sum of which terms? Is yours one of them?"),
        "beta_on_both": Mistake(
            lambda ref, R, b: _normal((ref + R) / b),
            "β divides the reference as well: {place} you say {yours}.",
            "At a very high price of KL, which policy should come out?"),
        "wrong_axis": Mistake(
            lambda ref, R, b: (ref + R / b).log_softmax(0),
            "You normalise over the prompts: {place} you say {yours}.",
            "Which numbers are the probabilities of one prompt, a row or a column?"),
        "over_everything": Mistake(
            lambda ref, R, b: ref + R / b - (ref + R / b).flatten().logsumexp(0),
            "Your probabilities of *all* prompts together add up to 1: {place} you say {yours}.",
            "A response answers one prompt. How many distributions are in your table?"),
        "probabilities": Mistake(
            lambda ref, R, b: _normal(ref + R / b).exp(),
            "You return probabilities: {place} you say {yours}, and a log-probability is never above 0.",
            "What does the name of the result ask for?"),
        "z_not_log": Mistake(
            lambda ref, R, b: ref + R / b - (ref + R / b).exp().sum(-1, keepdim=True),
            "You subtract Z itself; {place} you say {yours}.",
            "Dividing by Z is subtracting which number in log space?"),
        "argmax": Mistake(
            lambda ref, R, b: torch.where(R == R.amax(-1, keepdim=True), 0.0, -torch.inf).to(R.dtype),
            "You give one answer all of the probability; {place} you say {yours}.",
            "For which β would that be right?"),
    },
    hints=(
        "Equation 4.2 is a product. Take its logarithm first: what becomes of the product, and of Z?",
        "log π* is log π_ref plus one term, minus log Z. Z is the same for all answers of one prompt.",
        "Add the two terms into `tilted`, [N, M]. `tilted.logsumexp(-1, keepdim=True)` is log Z, safely.",
    ),
    source=(optimal_policy,),
    done="It agrees with the package in all four cases, also where the scores are near 900.",
)  # fmt: skip


def check_optimal_policy(fn) -> Verdict:
    """Exercise 4.1: fn(log_probs_ref [N, M], scores [N, M], beta) -> log π* [N, M].

    Taught in: notebooks/04_how_far.ipynb
    """
    return check(OPTIMAL_POLICY, fn)


# ---------------------------------------------------------------- 4.2 one backward pass of the soft value

def _one_step(ref, Q, beta):
    """V*(s) = β log Σ π_ref exp(Q* / β), by the package: a tree of depth 1 for every state."""
    return soft_values([ref.unsqueeze(1)], Q, beta)[0][0][:, 0]


def _backward(step, *, future=1.0, ended=True, forward=False):
    """The pass over T steps with `step` for one of them: right with the defaults, else wrong in one way."""
    def run(log_probs_ref, rewards, num_steps, beta):
        V, values = torch.zeros_like(rewards[0]), []
        for _ in range(num_steps):
            V = step(log_probs_ref, rewards + future * V, beta)
            if ended:
                V = torch.cat([torch.zeros_like(V[:1]), V[1:]])  # after EOS nothing more is gained
            values.append(V)
        return torch.stack(values if forward else values[::-1])
    return run


def _soft_value_cases():
    ref, reward = torch.tensor([[[0.8, 0.2], [0.4, 0.6]], [[0.5, -0.4], [1.0, 0.3]]], dtype=torch.float64)
    two = dict(log_probs_ref=ref.log(), rewards=reward, num_steps=2, beta=0.5)
    world = ChainWorld()
    ref, reward = world.chain.double(), world.reward_table.double()
    chain = dict(log_probs_ref=ref.log(), rewards=reward, num_steps=6, beta=0.3)
    rewards = torch.randn(4, 4, generator=seeded(4), dtype=torch.float64)
    other = dict(log_probs_ref=random_log_probs(4, 4, seed=5), rewards=rewards, num_steps=3, beta=1.7)
    last = dict(log_probs_ref=random_log_probs(3, 3, seed=6), rewards=rewards[:3, :3], num_steps=1, beta=0.9)
    return {"one word, two steps": two, "ChainWorld": chain, "random": other, "a single step": last}


SOFT_VALUES = Exercise(
    number="4.2", name="soft_values", solution=_backward(_one_step), cases=_soft_value_cases,
    shapes="[num_steps, V]",
    place=lambda case, t, s: f"in row {t} after '{WORDS[s]}' (case '{case}')",
    mistakes={
        "ordinary_value": Mistake(
            _backward(lambda ref, Q, b: (ref.exp() * Q).sum(-1)),
            "Your values are plain averages of Q: {yours} {place}. That is what the *reference* gets.",
            "π* may leave the reference where it pays. Which kind of average lets a rare good word count?"),
        "max": Mistake(
            _backward(lambda ref, Q, b: Q.amax(-1)),
            "Your values are those of the single best word: {yours} {place}.",
            "The best word may be rare under the reference. Who pays for the KL?"),
        "beta_missing_inside": Mistake(
            _backward(lambda ref, Q, b: b * (ref + Q).logsumexp(-1)),
            "β stands in front of the logarithm only: {yours} {place}.",
            "If all Q of a state are equal to 1, what must V* be? What is yours?"),
        "beta_missing_outside": Mistake(
            _backward(lambda ref, Q, b: (ref + Q / b).logsumexp(-1)),
            "Your values are β times too large or too small: {yours} {place}.",
            "log Z has no unit. In which unit is a value?"),
        "beta_missing": Mistake(
            _backward(lambda ref, Q, b: (ref + Q).logsumexp(-1)),
            "Your values do not depend on β: {yours} {place}.",
            "What should happen to V* when KL becomes very dear?"),
        "times_beta": Mistake(
            _backward(lambda ref, Q, b: b * (ref + Q * b).logsumexp(-1)),
            "Inside the exponential you multiply by β: {yours} {place}.",
            "At a high price of KL, should a good Q weigh more or less?"),
        "reference_forgotten": Mistake(
            _backward(lambda ref, Q, b: b * (Q / b).logsumexp(-1)),
            "The reference does not enter your values: {yours} {place}.",
            "If all Q are 0, nothing can be gained. Is your V* 0 then?"),
        "reference_not_log": Mistake(
            _backward(lambda ref, Q, b: b * (ref.exp() + Q / b).logsumexp(-1)),
            "A probability stands where a log-probability belongs: {yours} {place}.",
            "π_ref · exp(Q / β) is the exponential of which sum?"),
        "sign": Mistake(
            _backward(lambda ref, Q, b: -b * (ref - Q / b).logsumexp(-1)),
            "Your values are those of an adversary: {yours} {place}, below the plain average of Q.",
            "Which sign does Q have in the exponential?"),
        "log_forgotten": Mistake(
            _backward(lambda ref, Q, b: b * (ref + Q / b).exp().sum(-1)),
            "Your values are β Z: {yours} {place}.",
            "If all Q are 0, Z is 1. What must V* be then?"),
        "mean_of_exp": Mistake(
            _backward(lambda ref, Q, b: b * ((Q / b).logsumexp(-1) - math.log(Q.shape[-1]))),
            "You average exp(Q / β) with equal weights: {yours} {place}.",
            "How likely is each word under the reference?"),
        "expectation_under_optimum": Mistake(
            _backward(lambda ref, Q, b: ((ref + Q / b).softmax(-1) * Q).sum(-1)),
            "Your values are the reward of π* without its bill: {yours} {place}.",
            "V* is reward minus β times something. Where is that?"),
        "forward": Mistake(
            _backward(_one_step, forward=True),
            "Your rows are in the wrong order: {yours} {place}. Your first row knows one step ahead only.",
            "Row 0 is *before the first word*. How many words may still come there?"),
        "terminal": Mistake(
            _backward(_one_step, ended=False),
            "After '<eos>' your response goes on collecting: {yours} {place}.",
            "What can still be gained once the response has ended?"),
        "future_forgotten": Mistake(
            _backward(_one_step, future=0.0),
            "Every row of yours is the same: {yours} {place}. It sees the next reward and nothing after it.",
            "Q* of a word is its reward plus what?"),
        "future_undivided": Mistake(
            lambda ref, r, T, b: _backward(_one_step, future=b)(ref, r, T, b),
            "What comes after a word enters the exponential without β: {yours} {place}.",
            "Reward and V* have the same unit. What turns each of them into nats?"),
        "ended_too_late": Mistake(
            lambda ref, r, T, b: _backward(_one_step, ended=False)(ref, r, T, b) * (torch.arange(len(r)) > 0),
            "Your column of '<eos>' is 0 at the end, but was not when the step before used it: {yours} {place}.",
            "At which moment of the pass is V* of an ended response needed?"),
        "one_step_short": Mistake(
            lambda ref, r, T, b: torch.cat([_backward(_one_step)(ref, r, T, b)[1:], torch.zeros_like(r[:1])]),
            "Your last row is 0, as if no word could be written any more: {yours} {place}.",
            "After num_steps - 1 words, how many may still come?"),
        "paid_at_the_end": Mistake(
            lambda ref, r, T, b: _backward(_one_step)(ref, r * (torch.arange(len(r)) == 0), T, b),
            "Only '<eos>' pays in your table: {yours} {place}.",
            "That was the tree. When does a step pay here?"),
        "future_subtracted": Mistake(
            _backward(_one_step, future=-1.0),
            "You subtract what comes after a word: {yours} {place}.",
            "Is a word worth more or less when something good can follow it?"),
        "wrong_axis": Mistake(
            _backward(lambda ref, Q, b: b * (ref + Q / b).logsumexp(0)),
            "You sum over the last word instead of the next one: {yours} {place}.",
            "Rows are the word just written, columns the one to come. Over which do you choose?"),
        "future_on_rows": Mistake(
            lambda ref, r, T, b: _rows_not_columns(ref, r, T, b),
            "The future is added to the word just written: {yours} {place}.",
            "V* of which word follows after you choose column a?"),
    },
    hints=(
        "Start at the end: in the last step nothing follows, so Q* is the reward alone. Then go back.",
        "One step: `Q = rewards + V`, where V is the value *after* each next word; then the soft value of Q.",
        "`(log_probs_ref + Q / beta).logsumexp(-1)` is log Z of every state. Set the value of <eos> to 0 "
        "before the next step uses it, and put each new row in front of the list.",
    ),
    source=(soft_values,),
    done="It agrees with the package in all four cases, ChainWorld among them.",
)  # fmt: skip


def _rows_not_columns(log_probs_ref, rewards, num_steps, beta):
    V, values = torch.zeros_like(rewards[0]), []
    for _ in range(num_steps):
        V = _one_step(log_probs_ref, rewards + V.unsqueeze(1), beta)
        V = torch.cat([torch.zeros_like(V[:1]), V[1:]])
        values.insert(0, V)
    return torch.stack(values)


def check_soft_values(fn) -> Verdict:
    """Exercise 4.2: fn(log_probs_ref [V, V], rewards [V, V], num_steps, beta) -> V* [num_steps, V].

    Both tables are indexed [last word, next word], word 0 is EOS, and V* of an ended response is 0.
    Taught in: notebooks/04_how_far.ipynb
    """
    return check(SOFT_VALUES, fn)


# ---------------------------------------------------------------- 4.3 reading the frontier

@functools.cache
def _chain_candidates():
    world = ChainWorld()
    return find_candidates(world, make_reference(world.policy()))


def check_kl_budget(beta, budget=2.0) -> Verdict:
    """Exercise 4.3: the β whose π* spends the budget, at most `budget` nats and at least 95% of it.

    Taught in: notebooks/04_how_far.ipynb
    """
    say = says("Exercise 4.3")

    def spent(price):
        return optimal_policy(None, None, price, candidates=_chain_candidates()).kl

    def fits(price):
        return 0.95 * budget <= spent(price) <= budget

    if beta is None or beta is ...:
        return say(None, attempted=False)
    if isinstance(beta, bool) or not isinstance(beta, (int, float)):
        return say("not_a_number", f"You gave a {type(beta).__name__}; one number is wanted.")
    if not 0 < beta < float("inf"):
        return say("not_positive", f"β = {beta:g} is no price: the slider's are all above 0.",
                   "What would a KL that costs nothing, or that is paid for, do to the policy?")  # fmt: skip
    seen = f"At β = {beta:g} the optimum spends {spent(beta):.2f} nats; you have {budget:g}."
    if fits(beta):
        return say(None, f"{seen} No policy that spends as little earns more.", ok=True)
    if 0.95 * budget <= beta <= budget:
        return say("budget_as_price", seen, f"Is {beta:g} the number of nats, or the price of one?")
    if fits(1 / beta):
        return say("inverse", seen, "Is β reward per nat, or nats per reward?")
    if spent(beta) > budget:
        return say("over_budget", seen, "The leash is too long. Which way must its price go?")
    unused = f"{budget - spent(beta):.2f} nats are not used"
    return say("under_budget", seen, f"Within the budget, but {unused}. What would they have bought?")


KL_BUDGET = Task(
    "kl_budget",
    hints=(
        "Move the slider of section 4.5 and watch the KL in the sentence below it.",
        "KL falls as β rises. Try a β, look at its KL, and halve the interval.",
        "`optimal_policy(world, reference, beta, candidates=candidates).kl` is it; look between 0.5 and 1.",
    ),
    source=(optimal_policy,),
)

EXERCISES = (OPTIMAL_POLICY, SOFT_VALUES, KL_BUDGET)
