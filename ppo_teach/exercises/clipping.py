"""The exercises of notebook 06: the clipped loss, its four corners, the clip fraction (layer 6)."""

import math

import torch

from ..checker import Exercise, Mistake, Task, Verdict, check, says, seeded
from ..losses import clip_fraction, clipped_policy_loss
from ..tensor_ops import masked_mean

# ---------------------------------------------------------------- 6.1 the clipped loss


def _batch(*shape, seed, spread=0.5):
    """log_probs_new (a leaf), log_probs_old, advantages: random, and far enough apart for the clip to act."""
    old, step, advantages = torch.randn(3, *shape, generator=seeded(seed), dtype=torch.float64)
    old = -old.abs() - 1.0
    new = (old + spread * step).requires_grad_()
    return dict(log_probs_new=new, log_probs_old=old, advantages=advantages)


def _cases():
    """One token in each corner, a padded batch, and tensors that were stored with their graph."""
    ratio = torch.tensor([[0.5, 1.5, 0.5, 1.5, 1.1]], dtype=torch.float64)
    old = torch.full_like(ratio, 0.2).log()
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0, 2.0]], dtype=torch.float64)
    new = (old + ratio.log()).requires_grad_()
    corners = dict(log_probs_new=new, log_probs_old=old, advantages=advantages)
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], dtype=torch.bool)
    first = _batch(1, 3, seed=3)
    first["log_probs_old"] = first["log_probs_new"] * 1.0  # the ratio is 1 before the first step
    attached = _batch(1, 4, seed=4)
    leaf = attached["log_probs_new"]
    attached["advantages"] = attached["advantages"] + leaf - leaf.detach()  # the same numbers, with a graph
    given = {"one token in each corner": (corners, 0.2, torch.ones(1, 5, dtype=torch.bool)),
             "two responses, padded": (_batch(2, 5, seed=1), 0.3, mask),
             "a wide band": (_batch(2, 3, seed=2, spread=1.0), 0.5, torch.ones(2, 3, dtype=torch.bool)),
             "old log-probs with their graph": (first, 0.2, torch.ones(1, 3, dtype=torch.bool)),
             "advantages with their graph": (attached, 0.2, torch.ones(1, 4, dtype=torch.bool))}  # fmt: skip
    return {name: batch | dict(clip_epsilon=epsilon, mask=m) for name, (batch, epsilon, m) in given.items()}


def _built(surrogate=lambda r, A, e: torch.min(r * A, r.clamp(1 - e, 1 + e) * A), *,
           ratio=lambda new, old: (new - old.detach()).exp(), mean=masked_mean, const=torch.detach):
    """The loss put together from parts, one of which is wrong."""
    return lambda new, old, A, e, mask: -mean(surrogate(ratio(new, old), const(A), e), mask)


def _loss_place(case, i):
    return f"{'for the loss' if i == 0 else f'in the gradient of token {i - 1}'} (case '{case}')"


CLIPPED_LOSS = Exercise(
    number="6.1", name="clipped_policy_loss", solution=clipped_policy_loss, cases=_cases, shapes="[]",
    gradient="log_probs_new", place=_loss_place,
    mistakes={
        "max": Mistake(
            _built(lambda r, A, e: torch.max(r * A, r.clamp(1 - e, 1 + e) * A)),
            "You take the more hopeful of the two branches: {yours} {place}.",
            "Which of two estimates do you trust when one of them may be too good?"),
        "sign": Mistake(
            lambda *given: -clipped_policy_loss(*given),
            "An optimizer would make your number small, and with it the objective: {yours} {place}.",
            "Is the objective to be made large or small, and what does an optimizer do with a loss?"),
        "no_min": Mistake(
            _built(lambda r, A, e: r.clamp(1 - e, 1 + e) * A),
            "A bad token whose ratio grew costs you nothing more beyond the band: {yours} {place}.",
            "Equation 6.2 compares two branches. Where is the other one?"),
        "no_clip": Mistake(
            _built(lambda r, A, e: r * A),
            "Your loss is the same for every ε: {yours} {place}.",
            "What may a ratio of 3 gain when ε = 0.2?"),
        "min_before_advantage": Mistake(
            _built(lambda r, A, e: torch.min(r, r.clamp(1 - e, 1 + e)) * A),
            "You choose the branch before the advantage has its say: {yours} {place}.",
            "For a negative advantage, does the smaller ratio give the smaller product?"),
        "band_from_epsilon": Mistake(
            _built(lambda r, A, e: torch.min(r * A, r.clamp(e, 1 + e) * A)),
            "The lower end of your band lies at ε: {yours} {place}.",
            "How far below 1 may the ratio go, and how far above?"),
        "one_sided": Mistake(
            _built(lambda r, A, e: torch.min(r * A, r.clamp(max=1 + e) * A)),
            "Your band has no lower end: {yours} {place}.",
            "A bad token at half of its old probability: does the objective still pay for pushing it down?"),
        "log_band": Mistake(
            _built(lambda r, A, e: torch.min(r * A, r.log().clamp(-e, e).exp() * A)),
            "Your band is ±ε wide in the logarithm: {yours} {place}.",
            "Of which number does equation 6.2 say 1 − ε and 1 + ε?"),
        "ratio_inverted": Mistake(
            _built(ratio=lambda new, old: (old.detach() - new).exp()),
            "Your ratio falls when the new policy likes the token more: {yours} {place}.",
            "Which policy stands on top of the fraction?"),
        "log_ratio": Mistake(
            _built(ratio=lambda new, old: new - old.detach()),
            "Your ratio is 0 for a policy that has not moved: {yours} {place}.",
            "What is the difference of two logarithms, and how do you get from it to a quotient?"),
        "ratio_of_logs": Mistake(
            _built(ratio=lambda new, old: new / old.detach()),
            "You divide log-probabilities as if they were probabilities: {yours} {place}.",
            "What do you have to do to a log-probability before you may divide by it?"),
        "advantage_clipped": Mistake(
            _built(lambda r, A, e: torch.min(r * A, r * A.clamp(1 - e, 1 + e))),
            "You clip the advantage: {yours} {place}.",
            "Which of the two factors is to stay near 1?"),
        "pads": Mistake(
            lambda new, old, A, e, mask: clipped_policy_loss(new, old, A, e),
            "Padded places count in your mean: {yours} {place}.",
            "How many tokens of the second response are real?"),
        "divided_by_all": Mistake(
            _built(mean=lambda x, mask: (x * mask).mean()),
            "You sum real tokens only, but divide by all places: {yours} {place}.",
            "By how many tokens should a sum over the real ones be divided?"),
        "sum": Mistake(
            _built(mean=lambda x, mask: (x * mask).sum()),
            "Your loss grows with the number of tokens: {yours} {place}.",
            "Should a step be twice as long because the batch has twice the tokens?"),
        "old_attached": Mistake(
            _built(ratio=lambda new, old: (new - old).exp()),
            "The number is right, its gradient is not: {yours} {place}.",
            "If both log-probabilities carry a gradient, what is the derivative of their difference?"),
        "both_attached": Mistake(
            _built(ratio=lambda new, old: (new - old).exp(), const=lambda A: A),
            "Your numbers are right, but nothing in your loss is a constant: {yours} {place}.",
            "Which one of your inputs may this step change, and which only say what was?"),
        "advantages_attached": Mistake(
            _built(const=lambda A: A),
            "Your loss also moves the policy through the advantages: {yours} {place}.",
            "What did equation 6.2 call a constant, and which of your tensors may still carry a graph?"),
    },
    hints=(
        "Work on one token first: its ratio, then the two branches of equation 6.2, then the smaller one.",
        "The ratio is exp of a difference of logarithms; the old one and the advantages are constants. "
        "Multiply each branch by the advantage before you compare them.",
        "`ratio.clamp(low, high)` clips, `torch.min(a, b)` compares token by token, `.detach()` makes a "
        "constant, `masked_mean(x, mask)` is the mean over real tokens. A loss is made small.",
    ),
    source=(clipped_policy_loss,),
    done="Loss and gradient agree with the package in all five cases.",
)  # fmt: skip


def check_clipped_policy_loss(fn) -> Verdict:
    """Exercise 6.1: fn(log_probs_new, log_probs_old, advantages, clip_epsilon, mask) -> scalar loss.

    All tensors [B, T]. The gradient with respect to log_probs_new is checked as well.
    Taught in: notebooks/06_clipping.ipynb
    """
    return check(CLIPPED_LOSS, fn)


# ---------------------------------------------------------------- 6.2 the four corners

CORNERS = ((0.5, 1.0), (1.5, 1.0), (0.5, -1.0), (1.5, -1.0))  # (ρ, Â), in the order of the answer


def _gradients(epsilon=0.2):
    """d objective / dρ in each corner, by autograd of the package's loss."""
    ratio, advantages = torch.tensor(CORNERS, dtype=torch.float64).T.unsqueeze(1)
    new = ratio.log().requires_grad_()
    clipped_policy_loss(new, torch.zeros_like(new), advantages, epsilon).backward()
    return (-new.grad / ratio * len(CORNERS)).flatten().tolist()  # the loss is a mean


def check_quadrants(gradients) -> Verdict:
    """Exercise 6.2: d objective / dρ at ε = 0.2 for (ρ, Â) = (0.5, +1), (1.5, +1), (0.5, -1), (1.5, -1).

    Taught in: notebooks/06_clipping.ipynb
    """
    say = says("Exercise 6.2")
    if gradients is None or gradients is ...:
        return say(None, attempted=False)
    try:
        values = list(gradients.values() if isinstance(gradients, dict) else gradients)
        if any(value is ... for value in values):
            return say(None, attempted=False)
        given = [float(value) for value in values]
    except (TypeError, ValueError):
        return say("not_numbers", "Four numbers are wanted, in a list.")
    if len(given) != len(CORNERS):
        return say("not_four", f"You gave {len(given)} numbers; there are four corners, one number each.")
    right = _gradients()
    signs = [advantage for _, advantage in CORNERS]
    known = {
        "all_blocked": ([0.0] * 4, "You say that nothing outside the band has a gradient.",
                        "A bad token has become more likely. Does the objective no longer mind?"),
        "no_clip": (signs, "These are the gradients without a clip.",
                    "In which corner has the policy gained all that it is paid for?"),
        "loss": ([-value for value in right], "These are the gradients of the loss, the thing made small.",
                 "The question asks for the objective. Which way does it grow?"),
        "mirrored": ([0.0, 1.0, -1.0, 0.0], "You cut where the token is being pulled back towards the band.",
                     "The smaller of two branches is taken. Which is smaller at ρ = 1.5, Â = 1?"),
        "sign_of_advantage": ([1.0, 0.0, 0.0, 1.0], "In the last corner the sign of the advantage is lost.",
                              "If a bad token becomes likelier still, does the objective rise?"),
        "only_side_of_ratio": ([1.0, 0.0, -1.0, 0.0], "You let ρ alone decide, whatever the advantage.",
                               "At ρ = 0.5 a bad token has been pushed down. Is more of it paid for?"),
        "by_log_prob": ([r * value for (r, _), value in zip(CORNERS, right, strict=True)],
                        "These are the gradients with respect to log π, not to ρ.",
                        "How does ρ change when log π grows a little, and what did you multiply by?"),
    }  # fmt: skip

    def same(numbers):
        return all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(given, numbers, strict=True))

    if same(right):
        return say(None, "Two corners keep their gradient: those that lead back into the band.", ok=True)
    for key, (numbers, seen, question) in known.items():
        if same(numbers):
            return say(key, seen, question)
    place = next(i for i, pair in enumerate(zip(given, right)) if not math.isclose(*pair, abs_tol=1e-6))
    ratio, advantage = CORNERS[place]
    return say("unknown", f"At ρ = {ratio:g}, Â = {advantage:+g} you say {given[place]:g}.",
               "Work out both branches here and at a slightly larger ρ. Which is smaller, and did it move?")


QUADRANTS = Task(
    "quadrants",
    hints=(
        "Look at the two upper panels of section 6.4: a flat line has gradient 0.",
        "In each corner: which branch is the smaller one? Only ρÂ changes with ρ; the other is constant.",
        "`objective_and_slope(ratio, advantage, 0.2)` of section 6.3 gives value and gradient.",
    ),
    source=(clipped_policy_loss,),
)


# ---------------------------------------------------------------- 6.3 the clip fraction

def _counted(blocked, mean=masked_mean):
    """A share of tokens, from a rule on log-ratio, ratio, advantage and ε."""
    def fn(new, old, A, e, mask):
        return mean(blocked(new - old, (new - old).exp(), A, e).double(), mask)
    return fn


def _blocked(_, r, A, e):
    return ((A > 0) & (r > 1 + e)) | ((A < 0) & (r < 1 - e))


def _fraction_cases():
    cases = {}
    for name, arguments in list(_cases().items())[:3]:
        cases[name] = arguments | dict(log_probs_new=arguments["log_probs_new"].detach())
    cases["one token in each corner"]["advantages"][0, 4] = 0.0  # and one that is neither good nor bad
    cases["one token in each corner"]["log_probs_new"][0, 4] += 0.5
    near = cases["a wide band"]  # a good token with ρ = 1.6: outside 1 ± 0.5, although log 1.6 < 0.5
    near["log_probs_new"][0, 0], near["advantages"][0, 0] = near["log_probs_old"][0, 0] + math.log(1.6), 1.0
    wide = _batch(4, 6, seed=5, spread=0.6)
    wide["log_probs_new"] = wide["log_probs_new"].detach()
    wide |= dict(clip_epsilon=0.2, mask=torch.arange(6) < torch.tensor([[6], [1], [3], [5]]))
    return cases | {"four responses, padded": wide}


CLIP_FRACTION = Exercise(
    number="6.3", name="clip_fraction", solution=clip_fraction, cases=_fraction_cases, shapes="[]",
    place=lambda case: f"in the case '{case}'",
    mistakes={
        "any_outside": Mistake(
            _counted(lambda l, r, A, e: (r > 1 + e) | (r < 1 - e)),
            "You count every ratio outside the band: {yours} {place}.",
            "Do all of them lose their gradient?"),
        "pulled_back": Mistake(
            _counted(lambda l, r, A, e: ((A < 0) & (r > 1 + e)) | ((A > 0) & (r < 1 - e))),
            "You count the tokens that are being pulled back: {yours} {place}.",
            "Which two corners are flat?"),
        "upper_only": Mistake(
            _counted(lambda l, r, A, e: (A > 0) & (r > 1 + e)),
            "You count good tokens only: {yours} {place}.",
            "Can the clip block a token with a negative advantage?"),
        "sign_ignored": Mistake(
            _counted(lambda l, r, A, e: r > 1 + e),
            "You count every ratio above the band: {yours} {place}.",
            "What has the advantage to do with it?"),
        "pads": Mistake(
            _counted(_blocked, mean=lambda x, mask: x.mean()),
            "Padded places count, as blocked tokens or as tokens at all: {yours} {place}.",
            "Which places are tokens that the policy wrote?"),
        "divided_by_all": Mistake(
            _counted(_blocked, mean=lambda x, mask: (x * mask).mean()),
            "You count real tokens only, but divide by all places: {yours} {place}.",
            "A share of which tokens is wanted?"),
        "count": Mistake(
            _counted(_blocked, mean=lambda x, mask: (x * mask).sum()),
            "You give a number of tokens: {yours} {place}.",
            "A share lies between 0 and 1. A share of what?"),
        "log_band": Mistake(
            _counted(lambda l, r, A, e: _blocked(l, 1 + l, A, e)),
            "Your band is ±ε wide in the logarithm: {yours} {place}.",
            "Of which number does equation 6.2 say 1 − ε and 1 + ε?"),
        "ratio_inverted": Mistake(
            _counted(lambda l, r, A, e: _blocked(l, 1 / r, A, e)),
            "Your ratio falls when the new policy likes the token more: {yours} {place}.",
            "Which policy stands on top of the fraction?"),
        "ties": Mistake(
            _counted(lambda l, r, A, e: r.clamp(1 - e, 1 + e) * A <= r * A),
            "Tokens inside the band count as well: {yours} {place}.",
            "Inside the band both branches are equal. Is anything blocked there?"),
        "zero_advantage": Mistake(
            _counted(lambda l, r, A, e: ((A >= 0) & (r > 1 + e)) | ((A <= 0) & (r < 1 - e))),
            "A token with advantage 0 counts as blocked: {yours} {place}.",
            "Would it have had a gradient without the clip?"),
        "share_of_outside": Mistake(
            lambda new, old, A, e, m: clip_fraction(new, old, A, e, m & (((new - old).exp() - 1).abs() > e)),
            "You divide by the number of tokens outside the band: {yours} {place}.",
            "A share of which tokens is wanted?"),
    },
    hints=(
        "Two of the four corners are flat. Write down for each: which sign of the advantage, which ratio?",
        "Build a tensor that is True at blocked tokens: (good and above the band) or (bad and below it).",
        "`&` and `|` combine comparisons in parentheses; `masked_mean(blocked.double(), mask)` is the share.",
    ),
    source=(clip_fraction,),
    done="It agrees with the package in all four cases, padding and zero advantages included.",
)  # fmt: skip


def check_clip_fraction(fn) -> Verdict:
    """Exercise 6.3: fn(log_probs_new, log_probs_old, advantages, clip_epsilon, mask) -> share in [0, 1].

    Taught in: notebooks/06_clipping.ipynb
    """
    return check(CLIP_FRACTION, fn)


EXERCISES = (CLIPPED_LOSS, QUADRANTS, CLIP_FRACTION)
