"""The exercises of notebook 05: TD errors, GAE with a mask, whitening (layer 6)."""

import torch

from ..advantages import gae, td_errors
from ..checker import Exercise, Mistake, Verdict, check, seeded
from ..tensor_ops import masked_mean, masked_whiten


def _batch(lengths, T, seed):
    """Random rewards and values [B, T] in float64 and the mask of these lengths; padding holds numbers too."""
    rewards, values = torch.randn(2, len(lengths), T, generator=seeded(seed), dtype=torch.float64)
    return rewards, values, torch.arange(T) < torch.tensor(lengths).unsqueeze(1)


def _at(case, b, t):
    return f"at token {t} of response {b} (case '{case}')"


# ---------------------------------------------------------------- 5.1 TD errors

def _td_cases():
    rewards, values = torch.tensor([[[0.0, 0.0, 1.0]], [[0.2, 0.5, 0.4]]], dtype=torch.float64)
    cases = {"three tokens": dict(rewards=rewards, values=values, gamma=1.0)}
    for name, lengths, gamma in (("gamma 0.9", (4, 4, 4), 0.9), ("one token", (1,), 0.5)):
        rewards, values, _ = _batch(lengths, lengths[0], seed=1)
        cases[name] = dict(rewards=rewards, values=values, gamma=gamma)
    return cases


def _next(V, last=None):
    """V one place on; behind the end 0, or `last` [B, 1]."""
    return torch.cat([V[:, 1:], torch.zeros_like(V[:, :1]) if last is None else last], dim=1)


TD_ERRORS = Exercise(
    number="5.1", name="td_errors", solution=td_errors, cases=_td_cases, shapes="[B, T]", place=_at,
    mistakes={
        "own_value_behind": Mistake(lambda r, V, g: r + g * _next(V, V[:, -1:]) - V,
            "Your last token is followed by its own value: you have {yours} {place}.",
            "The response is over there. What is still to come, then?"),
        "last_left_out": Mistake(lambda r, V, g: (r + g * _next(V) - V) * _next(torch.ones_like(V)),
            "Your last token has no δ: {yours} {place}.",
            "Nothing follows it, but something comes with it. Where does the score stand?"),
        "first_value_behind": Mistake(lambda r, V, g: r + g * V.roll(-1, 1) - V,
            "Behind the last token your code goes on with the first one: {yours} {place}.",
            "What does `roll` put into the gap, and what belongs there?"),
        "gamma_missing": Mistake(lambda r, V, g: r + _next(V) - V,
            "Your result does not change with γ: {yours} {place}.",
            "How much is a value one step later worth now?"),
        "gamma_on_everything": Mistake(lambda r, V, g: g * (r + _next(V)) - V,
            "γ shrinks the reward too: {yours} {place}.",
            "The reward r_t comes with token t itself. How long does it wait?"),
        "minus_missing": Mistake(lambda r, V, g: r + g * _next(V),
            "You return what is expected after the token: {yours} {place}.",
            "A surprise is a difference. From what?"),
        "sign": Mistake(lambda r, V, g: V - r - g * _next(V),
            "Your signs are turned around: {yours} {place}.",
            "Should a token that is better than expected get a positive δ?"),
        "previous_value": Mistake(lambda r, V, g: r + g * _next(V.flip(1)).flip(1) - V,
            "Your code looks one token back: {yours} {place}.",
            "Is the state after the token at index t - 1 or at t + 1?"),
        "one_late": Mistake(lambda r, V, g: r + g * _next(_next(V)) - _next(V),
            "Both values are read one token late: {yours} {place}.",
            "Had token t been chosen already in the state whose value you subtract?"),
        "reward_missing": Mistake(lambda r, V, g: g * _next(V) - V,
            "The rewards do not enter: {yours} {place}.",
            "What does the last token of a response bring, where no value follows?"),
        "monte_carlo": Mistake(lambda r, V, g: gae(r, V, g, 1.0)[0],
            "Your number hears of everything up to the end: {yours} {place}.",
            "How many steps does one TD error look ahead?"),
    },
    hints=(
        "Three terms: the reward of the token, what is expected after it, what was expected before it.",
        "`values[:, 1:]` are the values after each token but the last one. What is expected after that one?",
        "Join `values[:, 1:]` and one column of zeros with `torch.cat(..., dim=1)`: that is V(s_{t+1}).",
    ),
    source=(td_errors,),
    done="It agrees with the package in all three cases, also for a response of one token.",
)  # fmt: skip


def check_td_errors(fn) -> Verdict:
    """Exercise 5.1: fn(rewards [B, T], values [B, T], gamma) -> TD errors [B, T], every token real.

    Taught in: notebooks/05_gae.ipynb
    """
    return check(TD_ERRORS, fn)


# ---------------------------------------------------------------- 5.2 GAE with a mask

def _gae_cases():
    rewards, values = torch.tensor([[[0.0, 0.0, 1.0]], [[0.2, 0.5, 0.4]]], dtype=torch.float64)
    every = torch.ones(1, 3, dtype=torch.bool)

    def ragged(lengths, gamma, lam, seed):
        rewards, values, mask = _batch(lengths, max(lengths), seed)
        return dict(rewards=rewards, values=values, gamma=gamma, lam=lam, mask=mask)

    return {"three tokens": dict(rewards=rewards, values=values, gamma=1.0, lam=0.95, mask=every),
            "padding": ragged((5, 2, 4), 0.9, 0.7, seed=3),
            "one real token": ragged((1, 3), 0.8, 0.5, seed=4)}  # fmt: skip


def _pair(rewards, values, gamma, lam, mask):
    return torch.stack(gae(rewards, values, gamma, lam, mask))


def _recursion(*, values_at=None, behind=None, first=None, second=None, masked=True, clean=True, forward=False,
               returns=None, minus=1.0):
    """GAE with one thing wrong; right with the defaults.

    values_at: how the values are read; behind: what follows the last real token; first, second: functions of
    (γ, λ) that weigh V(s_{t+1}) and Â_{t+1}; returns: what is given as G.
    """
    def run(r, V, g, lam, mask):
        keep = mask if masked else torch.ones_like(mask)
        raw, r, V = V, r * keep, V * keep
        read = V if values_at is None else values_at(V)
        ends = keep & ~_next(keep)
        after = torch.where(ends, 0.0 if behind is None else behind(read, raw), _next(read))
        delta = (r + (g if first is None else first(g, lam)) * after - minus * read) * keep
        weight, A, rows = g * lam if second is None else second(g, lam), torch.zeros_like(r[:, 0]), []
        for t in range(r.shape[1]) if forward else reversed(range(r.shape[1])):
            A = torch.where(keep[:, t], delta[:, t] + weight * A, A)
            rows.append(A)
        A = torch.stack(rows if forward else rows[::-1], dim=1)
        A = A * mask if clean else A
        G = A + read if returns is None else returns(A, V, r, g, mask)
        return torch.stack([A, G * mask if clean else G])
    return run


def _gae_place(case, which, b, t):
    return f"in the {('advantages', 'returns')[which]}, token {t} of response {b} (case '{case}')"


GAE = Exercise(
    number="5.2", name="gae", solution=_pair, cases=_gae_cases, shapes="(advantages, returns), each [B, T],",
    place=_gae_place,
    mistakes={
        "forward": Mistake(_recursion(forward=True),
            "Your loop runs from the first token to the last: {yours} {place}.",
            "Â_t needs Â_{t+1}. Which token can be computed first?"),
        "own_value_behind": Mistake(_recursion(behind=lambda V, raw: V),
            "Behind the last real token you go on with its own value: {yours} {place}.",
            "The response has ended there. What can still be expected?"),
        "mask_forgotten": Mistake(_recursion(masked=False, clean=False),
            "The padding takes part: {yours} {place}.",
            "Which tokens of a short response did the policy choose?"),
        "padding_summed": Mistake(_recursion(masked=False),
            "Padding is cut off at the end only, after it has entered the sums: {yours} {place}.",
            "What follows the last *real* token in your recursion?"),
        "mask_shifted": Mistake(lambda r, V, g, lam, m: _recursion()(r, V, g, lam, _next(m)),
            "Your mask is shifted by one token: {yours} {place}.",
            "Is the token that ends a response real, or padding?"),
        "padded_value_behind": Mistake(_recursion(behind=lambda V, raw: _next(raw)),
            "Behind the last real token you read the value of a padded cell: {yours} {place}.",
            "What is V when the response is over, whatever the cell holds?"),
        "gamma_missing_in_delta": Mistake(_recursion(first=lambda g, lam: 1.0),
            "In your δ the next value is not discounted: {yours} {place}.",
            "γ stands in two places of equations 5.3 and 5.4. Do you have both?"),
        "gamma_missing_in_sum": Mistake(_recursion(second=lambda g, lam: lam),
            "In your recursion Â_{{t+1}} is weighed by λ alone: {yours} {place}.",
            "γ stands in two places of equations 5.3 and 5.4. Do you have both?"),
        "lambda_missing": Mistake(_recursion(second=lambda g, lam: g),
            "Your result does not depend on λ: {yours} {place}.",
            "Which λ would give the result that you have?"),
        "lambda_as_gamma": Mistake(_recursion(first=lambda g, lam: lam),
            "λ discounts the next value inside your δ: {yours} {place}.",
            "Which of γ and λ belongs to the reward, and which to the trust in the critic?"),
        "lambda_twice": Mistake(_recursion(second=lambda g, lam: g * lam**2),
            "λ is applied twice for each step: {yours} {place}.",
            "By how much does the weight fall from Â_{t+1} to Â_t?"),
        "recursion_missing": Mistake(_recursion(second=lambda g, lam: 0.0),
            "Your advantages are the TD errors alone: {yours} {place}.", "For which λ would that be right?"),
        "minus_missing": Mistake(_recursion(minus=0.0),
            "V(s_t) is not subtracted in your δ: {yours} {place}.", "Better or worse than what?"),
        "one_late": Mistake(_recursion(values_at=_next),
            "Your values are read one token late: {yours} {place}.",
            "May the critic see the token it is asked to judge?"),
        "rewards_to_go": Mistake(
            _recursion(returns=lambda A, V, r, g, m: gae(r, torch.zeros_like(V), g, 1.0, m)[1]),
            "Your returns are the rewards to come and leave out the critic: {yours} {place}.",
            "For which λ is Â + V the same as the rewards to come?"),
        "returns_without_value": Mistake(_recursion(returns=lambda A, V, r, g, m: A),
            "Your returns are the advantages themselves: {yours} {place}.",
            "If the critic is perfect, which target should it get: its value, or 0?"),
        "returns_from_whitened": Mistake(_recursion(returns=lambda A, V, r, g, m: masked_whiten(A, m) + V),
            "Your returns are made from whitened advantages: {yours} {place}.",
            "In which units does the critic predict?"),
        "padding_not_zero": Mistake(
            lambda r, V, g, lam, m: torch.stack([_pair(r, V, g, lam, m)[0], _pair(r, V, g, lam, m)[0] + V]),
            "The padded cells of your returns are not 0: {yours} {place}.",
            "What should a sum over the whole row not have to know?"),
    },
    hints=(
        "Go backwards over t. Keep two things: the value of the state after t, and the advantage after t.",
        "Both are 0 at first, and stay as they are while t is padding: `torch.where(mask[:, t], new, old)`.",
        "One step: `delta = rewards[:, t] + gamma * next_value - values[:, t]`, then "
        "`delta + gamma * lam * next_advantage`. The returns are advantages + values. Set padding to 0 last.",
    ),
    source=(gae,),
    done="Advantages and returns agree with the package in all three cases, with and without padding.",
)  # fmt: skip


def check_gae(fn) -> Verdict:
    """Exercise 5.2: fn(rewards, values, gamma, lam, mask) -> (advantages, returns), all [B, T], 0 at padding.

    Taught in: notebooks/05_gae.ipynb
    """
    return check(GAE, fn)


# ---------------------------------------------------------------- 5.3 whitening

def _whiten_cases():
    x, _, mask = _batch((4, 2, 3), 4, seed=5)
    single = torch.tensor([[0.7, -1.0, 3.0]], dtype=torch.float64)
    three = torch.tensor([[1.0, 2.0, 6.0]], dtype=torch.float64)
    return {"three tokens": dict(x=three, mask=torch.ones(1, 3, dtype=torch.bool)),
            "padding": dict(x=3 * x + 2, mask=mask),
            "one real token": dict(x=single, mask=torch.tensor([[True, False, False]]))}  # fmt: skip


def _whitened(*, center=True, scale=True, over_all=False, unbiased=False, add=0.0, rows=False, clean=True,
              root=True):
    """Whitening with one thing wrong; right with the defaults."""
    def run(x, mask):
        keep = torch.ones_like(mask) if over_all else mask
        dim = {"dim": 1} if rows else {}
        mean = masked_mean(x, keep, **dim)
        mean = mean.unsqueeze(1) if rows else mean
        variance = masked_mean((x - mean) ** 2, keep, **dim)
        variance = variance.unsqueeze(1) if rows else variance
        n = keep.sum()
        variance = variance * n / (n - 1) if unbiased else variance
        divisor = torch.sqrt(variance + 1e-8) if root else variance + 1e-8
        whitened = (x - mean if center else x) / (divisor if scale else 1.0) + add * mean
        return whitened * mask if clean else whitened
    return run


WHITEN = Exercise(
    number="5.3", name="masked_whiten", solution=masked_whiten, cases=_whiten_cases, shapes="[B, T]", place=_at,
    mistakes={
        "mean_over_padding": Mistake(_whitened(over_all=True),
            "Mean and spread are taken over the padding too: {yours} {place}.",
            "Over how many tokens should you average?"),
        "mean_added_back": Mistake(_whitened(add=1.0),
            "The mean is back in your result: {yours} {place}.",
            "What should the mean of whitened advantages be?"),
        "unbiased": Mistake(_whitened(unbiased=True),
            "You divide by n − 1, as `std()` does unless told otherwise: {yours} {place}.",
            "With one real token, what is n − 1?"),
        "scale_missing": Mistake(_whitened(scale=False),
            "Your result has mean 0 but its old spread: {yours} {place}.",
            "Which second number should be the same in every batch?"),
        "mean_missing": Mistake(_whitened(center=False),
            "Your result is scaled but not centred: {yours} {place}.",
            "Should a batch in which every token did well push all of them up?"),
        "variance": Mistake(_whitened(root=False),
            "You divide by the variance: {yours} {place}.",
            "Double all inputs. Should the whitened numbers change?"),
        "by_row": Mistake(_whitened(rows=True),
            "Each response is whitened by itself: {yours} {place}.",
            "Can a response that is good throughout still stand out?"),
        "padding_not_zero": Mistake(_whitened(clean=False),
            "The padded cells are not 0: {yours} {place}.",
            "What do the padded cells of every per-token output hold in this course?"),
        "zeros_in_mean": Mistake(lambda x, m: _whitened(over_all=True)(x * m, m),
            "The padding is set to 0 but still counted: {yours} {place}.",
            "By how many tokens do you divide the sum?"),
        "sign": Mistake(lambda x, m: -_whitened()(x, m),
            "Good and bad are swapped: {yours} {place}.", "Which is subtracted from which?"),
    },
    hints=(
        "Three steps: the mean over the real tokens, the variance over them, then shift and scale.",
        "Count the real tokens once: `n = mask.sum()`. Mean and variance are sums over real tokens divided by n.",
        "The variance is the sum of `((x - mean) ** 2) * mask` over n. Divide by `(variance + 1e-8).sqrt()`, "
        "and multiply the result by the mask.",
    ),
    source=(masked_whiten,),
    done="It agrees with the package in all three cases; one real token gives 0, not NaN.",
)  # fmt: skip


def check_masked_whiten(fn) -> Verdict:
    """Exercise 5.3: fn(x [B, T], mask [B, T]) -> x with mean 0 and variance 1 over real tokens, 0 at padding.

    Taught in: notebooks/05_gae.ipynb
    """
    return check(WHITEN, fn)


EXERCISES = (TD_ERRORS, GAE, WHITEN)
