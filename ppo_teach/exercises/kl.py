"""The exercises of notebook 03: the KL estimators, the shaped reward, the adaptive price (layer 6)."""

import torch

from ..checker import Exercise, Mistake, Verdict, check, random_log_probs, seeded
from ..rewards import AdaptiveKLController, kl_estimate, place_scores, shape_rewards
from ..tensor_ops import masked_mean


def _of_tokens(*shape, seed):
    """Log-probabilities of one token each: those of the first of four words."""
    return random_log_probs(*shape, 4, seed=seed)[..., 0]


# ---------------------------------------------------------------- 3.1 three estimates

def _estimator_cases():
    three = torch.tensor([[-2.0, -0.5, -1.0]], dtype=torch.float64)
    three_ref = torch.tensor([[-1.0, -0.6, -1.0]], dtype=torch.float64)
    pairs = [(three, three_ref), (_of_tokens(2, 5, seed=1), _of_tokens(2, 5, seed=2))]
    return {f"{name}, {k}": dict(log_probs=pair[0], log_probs_ref=pair[1], estimator=k)
            for name, pair in zip(("three tokens", "random"), pairs) for k in ("k1", "k2", "k3")}


def _instead(**changed):
    """The right estimates, with some of them replaced: name -> function of l."""
    def run(lp, ref, k):
        return changed[k](lp - ref) if k in changed else kl_estimate(lp, ref, k)
    return run


KL_ESTIMATE = Exercise(
    number="3.1", name="kl_estimate", solution=kl_estimate, cases=_estimator_cases, shapes="[B, T]",
    place=lambda case, b, t: f"at token {t} of response {b}",
    mistakes={
        "swapped": Mistake(lambda lp, ref, k: kl_estimate(ref, lp, k),
            "Policy and reference have changed places: {place} you say {yours}.",
            "The policy drew these tokens. Whose log-probability should count with a plus?"),
        "k1_negative": Mistake(_instead(k1=lambda l: -l),
            "Your k1 has the other sign: {place} you say {yours}.",
            "As a cost in the reward, would yours charge for drifting away, or pay for it?"),
        "k3_upside_down": Mistake(_instead(k3=lambda l: l.expm1() - l),
            "Your k3 has its ratio upside down: {place} you say {yours}.",
            "Its mean under the policy should be the KL. Is the mean of your exponential 1?"),
        "k3_mixed_signs": Mistake(_instead(k3=lambda l: l.expm1() + l),
            "Your k3 can be negative: {place} you say {yours}.",
            "Draw exp and a straight line that touches it at 0. On which side must the line lie?"),
        "k3_one_missing": Mistake(_instead(k3=lambda l: (-l).exp() + l),
            "Your k3 is not 0 where both policies agree: {place} you say {yours}.",
            "What is the exponential of 0?"),
        "k3_without_l": Mistake(_instead(k3=lambda l: (-l).expm1()),
            "Your k3 has mean 0 for every policy: {place} you say {yours}.",
            "The exponential part adds no bias. Which part carries the KL?"),
        "k2_without_half": Mistake(_instead(k2=lambda l: l**2),
            "Your k2 is twice too large: {place} you say {yours}.",
            "Which factor stands before l² in a Taylor series of the exponential?"),
        "k2_not_squared": Mistake(_instead(k2=lambda l: l / 2),
            "Your k2 keeps the sign of l: {place} you say {yours}.",
            "Can equation 3.2's second estimate be negative?"),
        "k1_absolute": Mistake(_instead(k1=lambda l: l.abs()),
            "Your k1 is never negative: {place} you say {yours}.",
            "What becomes of the mean when the negative samples may not cancel the others?"),
        "k1_clamped": Mistake(_instead(k1=lambda l: l.clamp(min=0)),
            "Your k1 is cut off at 0: {place} you say {yours}.",
            "A KL is not negative. Does that hold for each sample of it?"),
        "always_k1": Mistake(lambda lp, ref, k: lp - ref,
            "Your function gives k1 whatever is asked: {place} you say {yours}.",
            "Where does `estimator` enter?"),
        "weighted": Mistake(lambda lp, ref, k: lp.exp() * kl_estimate(lp, ref, k),
            "You weigh each token by its probability: {place} you say {yours}.",
            "The tokens were sampled. How often does a likely token turn up already?"),
        "probabilities": Mistake(lambda lp, ref, k: kl_estimate(lp.exp(), ref.exp(), k),
            "You compare probabilities, not their logarithms: {place} you say {yours}.",
            "What do the names of the arguments say they hold?"),
    },
    hints=(
        "All three are functions of one number a token, l. Compute it first, and mind which way round.",
        "k1 is l, k2 is half of its square. k3 is the gap between an exponential and its tangent line at 0.",
        "`l = log_probs - log_probs_ref`; for k3 the exponential is `(-l).exp()`, which is π_ref / π.",
    ),
    source=(kl_estimate,),
    done="It agrees with the package for all three estimators.",
)  # fmt: skip


def check_kl_estimate(fn) -> Verdict:
    """Exercise 3.1: fn(log_probs [B, T], log_probs_ref [B, T], estimator "k1", "k2" or "k3") -> [B, T].

    Taught in: notebooks/03_kl_leash.ipynb
    """
    return check(KL_ESTIMATE, fn)


# ---------------------------------------------------------------- 3.2 shaped rewards

def _shaped_cases():
    def case(lengths, T, seed, kl_coef, attached=False):
        mask = (torch.arange(T) < torch.tensor(lengths).unsqueeze(1)).double()
        log_probs, ref = (_of_tokens(len(lengths), T, seed=s) for s in (seed, seed + 1))
        scores = torch.randn(len(lengths), generator=seeded(seed), dtype=torch.float64) + 2
        return dict(scores=scores, log_probs=log_probs.requires_grad_(attached), log_probs_ref=ref,
                    kl_coef=kl_coef, mask=mask)
    return {"three tokens": case([3], 3, 1, 0.5), "with padding": case([2, 5, 3], 5, 3, 0.2),
            "attached log-probs": case([4, 1], 4, 5, 0.7, attached=True)}


def _variant(sign=-1, scores=place_scores, kl=lambda l, mask: l, padding=0.0):
    """R - β k, right with the defaults; else wrong in one way."""
    @torch.no_grad()
    def run(R, lp, ref, beta, mask):
        keep = mask + padding * (1 - mask)
        return scores(R, mask) + sign * beta * kl(lp - ref, mask) * keep
    return run


def _first(R, mask):
    return torch.cat([R.unsqueeze(1), torch.zeros_like(mask[:, 1:])], dim=1)


def _after_end(R, mask):
    """In the first padded column; a row without padding has none."""
    return place_scores(R, mask).roll(1, dims=1) * (1 - mask)


def _last_column(R, mask):
    return _first(R, mask).flip(1)


def _at_first_length(R, mask):
    return place_scores(R, mask[:1].expand_as(mask))


def _overwritten(R, lp, ref, beta, mask):
    placed = place_scores(R, mask)
    return torch.where(placed != 0, placed, _variant()(R, lp, ref, beta, mask))


def _at_end(l, mask):
    return place_scores((l * mask).sum(1), mask)


SHAPE_REWARDS = Exercise(
    number="3.2", name="shape_rewards", solution=lambda *a: shape_rewards(*a)[0], cases=_shaped_cases,
    shapes="[B, T]", place=lambda case, b, t: f"at token {t} of response {b} (case '{case}')",
    mistakes={
        "sign": Mistake(_variant(sign=1),
            "Your KL term pays for leaving the reference: {yours} {place}.",
            "A token that the policy has made likelier should earn more or less for it?"),
        "last_column": Mistake(_variant(scores=_last_column),
            "Your score stands in the last column, padding or not: {yours} {place}.",
            "Which token of a short response is its last real one?"),
        "every_token": Mistake(_variant(scores=lambda R, mask: R.unsqueeze(1) * mask),
            "Every token gets the whole score: {yours} {place}.",
            "How often is one response scored?"),
        "first_token": Mistake(_variant(scores=_first),
            "Your score comes with the first token: {yours} {place}.",
            "When does the reward model see the complete response?"),
        "after_end": Mistake(_variant(scores=_after_end),
            "Your score comes one place after the end: {yours} {place}.",
            "Count from 0: at which index is the last token of a response with three?"),
        "same_place": Mistake(_variant(scores=_at_first_length),
            "All rows get their score at the same column: {yours} {place}.",
            "Do all responses end at the same token?"),
        "spread": Mistake(_variant(scores=lambda R, mask: R.unsqueeze(1) * mask / mask.sum(1, keepdim=True)),
            "You spread the score over the tokens: {yours} {place}.",
            "Notebook 05 is about who deserves it. What is known before that?"),
        "score_missing": Mistake(_variant(scores=lambda R, mask: 0 * mask),
            "The score is nowhere in your rewards: {yours} {place}.",
            "What is the policy to earn besides the cost?"),
        "overwritten": Mistake(_overwritten,
            "The last token gets the score and pays nothing: {yours} {place}.",
            "Does the score take the place of that token's cost, or come on top of it?"),
        "padding": Mistake(_variant(padding=1.0),
            "Padding pays for KL: {yours} {place}.",
            "Did the policy choose that token?"),
        "beta_missing": Mistake(lambda R, lp, ref, beta, mask: _variant()(R, lp, ref, 1.0, mask),
            "Your rewards are the same for every β: {yours} {place}.",
            "Where does the price of a nat come in?"),
        "beta_on_both": Mistake(lambda R, lp, ref, beta, mask: _variant()(beta * R, lp, ref, beta, mask),
            "β multiplies the score as well: {yours} {place}.",
            "What is β the price of?"),
        "sum_at_end": Mistake(_variant(kl=_at_end),
            "You charge the whole response's KL at its last token: {yours} {place}.",
            "The sum is right. Which token caused which part of it?"),
        "mean_kl": Mistake(_variant(kl=lambda l, mask: masked_mean(l, mask, dim=1).unsqueeze(1).expand_as(l)),
            "Every token of a response pays the same: {yours} {place}.",
            "Which tokens did the policy change most?"),
        "absolute": Mistake(_variant(kl=lambda l, mask: l.abs()),
            "No token of yours ever gets anything back: {yours} {place}.",
            "What should a token earn that the policy has made rarer than the reference?"),
        "k3": Mistake(_variant(kl=lambda l, mask: kl_estimate(l, 0 * l, "k3")),
            "Your cost is never negative, as if it were k3: {yours} {place}.",
            "With which estimator do the costs add up to log π - log π_ref of the response?"),
    },
    hints=(
        "Two parts: a cost for every real token, and the score at one token of each response.",
        "The cost is -β times log_probs - log_probs_ref, 0 where mask is 0. `mask.sum(1)` is each length.",
        "`rewards[torch.arange(B), length - 1] += scores` adds the scores; `length` must be of integers. "
        "`.detach()` cuts a tensor off from its gradient.",
    ),
    source=(shape_rewards, place_scores),
    done="It agrees with the package in all three cases, padding and a gradient among them.",
)  # fmt: skip


def check_shape_rewards(fn) -> Verdict:
    """Exercise 3.2: fn(scores [B], log_probs, log_probs_ref [B, T], kl_coef, mask [B, T]) -> rewards [B, T].

    Taught in: notebooks/03_kl_leash.ipynb
    """
    return check(SHAPE_REWARDS, fn)


# ---------------------------------------------------------------- 3.3 the price that adapts

def _controlled(kl_coef, kls, target, horizon, n_steps):
    controller = AdaptiveKLController(kl_coef, target, horizon)
    return torch.tensor([controller.update(kl, n_steps) for kl in kls], dtype=torch.float64)


def _update(error=lambda kl, target: kl / target - 1, low=-0.2, high=0.2,
            factor=lambda e, n, h: 1 + e * n / h, compound=True, add=False, late=0):  # fmt: skip
    """The price after each KL, right with the defaults; else wrong in one way."""
    def run(kl_coef, kls, target, horizon, n_steps):
        beta, betas = kl_coef, [kl_coef] * late
        for kl in kls:
            step = factor(min(max(error(kl, target), low), high), n_steps, horizon)
            beta = beta + step - 1 if add else (beta if compound else kl_coef) * step
            betas.append(beta)
        return torch.tensor(betas[: len(kls)], dtype=torch.float64)
    return run


FAR = float("inf")
KL_CONTROLLER = Exercise(
    number="3.3", name="kl_controller", solution=_controlled, shapes="[N]",
    cases=lambda: {
        "near the target": dict(kl_coef=0.1, kls=[2.2, 1.9, 2.1], target=2.0, horizon=400, n_steps=100),
        "far from it": dict(kl_coef=0.3, kls=[9.0, 7.0, 0.5, 3.3], target=3.0, horizon=250, n_steps=128),
        "negative estimates": dict(kl_coef=1.5, kls=[-0.4, 0.9, 5.0], target=1.0, horizon=1000, n_steps=64),
    },
    place=lambda case, i: f"after update {i} (case '{case}')",
    mistakes={
        "not_clipped": Mistake(_update(low=-FAR, high=FAR),
            "One wild batch moves your price without limit: {yours} {place}.",
            "How large may the relative error become at most?"),
        "clipped_above_only": Mistake(_update(low=-FAR),
            "A KL far below the target moves your price too much: {yours} {place}.",
            "The error is limited on how many sides?"),
        "clipped_below_only": Mistake(_update(high=FAR),
            "A KL far above the target moves your price too much: {yours} {place}.",
            "The error is limited on how many sides?"),
        "sign": Mistake(_update(error=lambda kl, target: 1 - kl / target),
            "Your price moves the wrong way: {yours} {place}.",
            "The policy has gone too far. Should a nat become dearer or cheaper?"),
        "one_forgotten": Mistake(_update(error=lambda kl, target: kl / target),
            "Your price still rises when the KL is on target: {yours} {place}.",
            "Which error does a KL equal to the target have?"),
        "not_relative": Mistake(_update(error=lambda kl, target: kl - target),
            "Your error is counted in nats: {yours} {place}.",
            "Half a nat too much: is that the same for a target of 1 and for one of 10?"),
        "clip_width": Mistake(_update(low=-1, high=1),
            "Your error may reach 1: {yours} {place}.",
            "Which limits does equation 3.4 name?"),
        "steps_forgotten": Mistake(_update(factor=lambda e, n, h: 1 + e / h),
            "Your price does not depend on how many responses were measured: {yours} {place}.",
            "Horizon is counted in responses. How many of them is one update?"),
        "horizon_forgotten": Mistake(_update(factor=lambda e, n, h: 1 + e),
            "Your price does not depend on the horizon: {yours} {place}.",
            "Which share of the horizon is one update?"),
        "share_upside_down": Mistake(_update(factor=lambda e, n, h: 1 + e * h / n),
            "A longer horizon makes your price move faster: {yours} {place}.",
            "Which of n and horizon should be below the line?"),
        "factor_without_one": Mistake(_update(factor=lambda e, n, h: e * n / h),
            "Your price falls to almost nothing: {yours} {place}.",
            "By which factor should the price change when the error is 0?"),
        "always_from_start": Mistake(_update(compound=False),
            "Each of your prices starts again from the first one: {yours} {place}.",
            "Which price is in force when the second KL is measured?"),
        "one_late": Mistake(_update(late=1),
            "Your list holds each price from before its KL was measured: {yours} {place}.",
            "Which price is in force once the first KL is known?"),
        "added": Mistake(_update(add=True),
            "You add the change instead of multiplying: {yours} {place}.",
            "What should happen to a price of 0.01, and to one of 10, at the same error?"),
    },
    hints=(
        "Take one KL: first the relative error, then its limits, then the factor. Then put that in a loop.",
        "`kl / target - 1`, held between -0.2 and 0.2 with `min` and `max`.",
        "Multiply the present price by 1 + error * n_steps / horizon. The result is the next present price; "
        "append it to a list.",
    ),
    source=(AdaptiveKLController,),
    done="It agrees with the package in all three cases, also where the KL is far off or estimated below 0.",
)  # fmt: skip


def check_kl_controller(fn) -> Verdict:
    """Exercise 3.3: fn(kl_coef, kls, target, horizon, n_steps) -> the price after each of the `kls`, [N].

    Taught in: notebooks/03_kl_leash.ipynb
    """
    return check(KL_CONTROLLER, fn)


EXERCISES = (KL_ESTIMATE, SHAPE_REWARDS, KL_CONTROLLER)
