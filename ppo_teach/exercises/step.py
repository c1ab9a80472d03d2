"""The exercises of notebook 07: assemble the loss of a step, say which invariant catches what (layer 6)."""

from contextlib import suppress
from inspect import signature

import torch

from ..advantages import gae
from ..checker import Exercise, Mistake, Task, Verdict, check, says, seeded
from ..config import PPOConfig
from ..losses import clipped_policy_loss, value_loss
from ..rewards import shape_rewards
from ..tensor_ops import hide_padding, masked_mean, masked_whiten
from ..train import minibatch_loss, shaped_advantages

# ---------------------------------------------------------------- 7.1 assemble the step


class Graded:
    """A loss as what training feels of it: [loss, ∂/∂log_probs_new (B·T), ∂/∂values_new (B·T)], all constants.

    Two losses may be equal and still train differently; their gradients tell them apart.
    """

    def __init__(self, loss):
        self.loss = loss
        with suppress(ValueError):  # a built-in function has none
            self.__signature__ = signature(loss)
        self.__code__ = getattr(loss, "__code__", None)  # so that the checker finds the student's own lines

    def __call__(self, scores, new, old, ref, values_new, values_old, mask, config):
        leaves = new.clone().requires_grad_(), values_new.clone().requires_grad_()
        loss = self.loss(scores, leaves[0], old, ref, leaves[1], values_old, mask, config)
        if loss is None or loss is ...:
            return loss
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ValueError(f"the loss must be a tensor that holds one number, got {loss!r}")
        slopes = [torch.zeros_like(leaf) for leaf in leaves]
        if loss.requires_grad:
            found = torch.autograd.grad(loss.sum(), leaves, allow_unused=True)
            slopes = [zero if slope is None else slope for zero, slope in zip(slopes, found, strict=True)]
        return torch.cat([part.detach().reshape(-1) for part in (loss, *slopes)])


def _step(shape=shape_rewards, whiten=masked_whiten, combine=lambda p, v, c: p + c.value_coef * v, *,
          critic=lambda new, old: old, fit=lambda values, returns, advantages, mask: (values, returns, mask),
          order=lambda c: (c.gamma, c.lam), price=lambda c: c.kl_coef, old_of=lambda new, old: old,
          loss_mask=lambda mask: mask):  # fmt: skip
    """The step from the package's pieces: right with the defaults, else wrong in one place."""
    def loss(scores, log_probs_new, log_probs_old, log_probs_ref, values_new, values_old, mask, config):
        rewards, _ = shape(scores, log_probs_old, log_probs_ref, price(config), mask)
        raw, returns = gae(rewards, critic(values_new, values_old), *order(config), mask)
        advantages, old = whiten(raw, mask), old_of(log_probs_new, log_probs_old)
        policy = clipped_policy_loss(log_probs_new, old, advantages, config.clip_epsilon, loss_mask(mask))
        return combine(policy, value_loss(*fit(values_new, returns, advantages, loss_mask(mask))), config)
    return loss


def _attached(values_leak):
    """The step with GAE and both losses written without a detach, on values_new or on the KL of the new policy."""
    def loss(scores, new, old, ref, values_new, values_old, mask, config):
        values = hide_padding(mask, values_new if values_leak else values_old)
        kl = hide_padding(mask, (old if values_leak else new) - ref)
        rewards = shape_rewards(scores, old, ref, 0.0, mask)[0] - config.kl_coef * kl
        future = ahead = torch.zeros_like(values[:, 0])
        advantages = []
        for t in reversed(range(values.shape[1])):
            error = rewards[:, t] + config.gamma * ahead - values[:, t]
            future = torch.where(mask[:, t], error + config.gamma * config.lam * future, future)
            ahead = torch.where(mask[:, t], values[:, t], ahead)
            advantages.insert(0, future)
        advantages = hide_padding(mask, torch.stack(advantages, dim=1))
        mean = masked_mean(advantages, mask)
        spread = (masked_mean((advantages - mean) ** 2, mask) + 1e-8).sqrt()
        whitened, ratio = (advantages - mean) / spread, hide_padding(mask, new - old).exp()
        bounded = ratio.clamp(1 - config.clip_epsilon, 1 + config.clip_epsilon)
        policy = -masked_mean(torch.min(ratio * whitened, bounded * whitened), mask)
        error = hide_padding(mask, values_new) - (advantages + values)
        return policy + config.value_coef * masked_mean(error**2, mask)
    return loss


def _kl_from_new(scores, new, old, ref, *rest):
    return _step(lambda R, _, *others: shape_rewards(R, new, *others))(scores, new, old, ref, *rest)


def _no_mask(loss):
    return lambda scores, new, old, ref, v, v_old, mask, c: loss(scores, new, old, ref, v, v_old,
                                                                 torch.ones_like(mask), c)  # fmt: skip


def _upside_down(scores, new, old, ref, values_new, values_old, mask, config):
    mirrored = 2 * old - new  # its ratio to the old one is old / new
    return _step()(scores, mirrored, old, ref, values_new, values_old, mask, config)


def _loss_cases():
    def normal(seed, *shape):
        return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)

    def case(seed, lengths, moved, config):
        B, T = len(lengths), max(lengths) + 1
        mask = torch.arange(T) < torch.tensor(lengths).unsqueeze(1)
        old = -normal(seed, B, T).abs() - 0.3
        tensors = dict(log_probs_new=old + moved * normal(seed + 1, B, T), log_probs_old=old,
                       log_probs_ref=old - 0.6 * normal(seed + 2, B, T))
        values = normal(seed + 3, B, T)
        values = dict(values_new=values + moved * normal(seed + 4, B, T), values_old=values)
        pads = {key: torch.where(mask, tensor, 4 * normal(seed + 5, B, T)) for key, tensor in values.items()}
        return dict(scores=2 * normal(seed + 6, B), **tensors, **pads, mask=mask, config=config)

    return {
        "before the first optimiser step": case(0, (3, 2), 0.0, PPOConfig()),
        "a later epoch": case(20, (4, 1, 3), 0.3, PPOConfig()),
        "other knobs": case(40, (2, 4, 3, 4), 0.2, PPOConfig(0.1, 0.5, 0.2, 0.9, 0.7)),
        "one review": case(60, (5,), 0.4, PPOConfig()),
    }  # fmt: skip


def _where(case, i):
    given = _loss_cases()[case]
    (B, T), i = given["mask"].shape, i - 1
    if i < 0:
        return "in the loss"
    name, place = ("log_probs_new", i) if i < B * T else ("values_new", i - B * T)
    return f"in the gradient by {name}[{place // T}, {place % T}]"


_WRONG = {
    "attached_kl": (_attached(values_leak=False),
        "Your KL is taken from log_probs_new and still hangs on the policy: {yours} {place}.",
        "Should the value loss be able to change the policy, so that its returns are easier to hit?"),
    "kl_from_new": (_kl_from_new,
        "Your KL changes from step to step, since log_probs_new is in it: {yours} {place}.",
        "Which policy wrote the tokens that pay for it?"),
    "attached_values": (_attached(values_leak=True),
        "Your advantages and returns hang on values_new: {yours} {place}.",
        "What happens to a target that moves along with the value that is to reach it?"),
    "values_new_in_gae": (_step(critic=lambda new, old: new),
        "Your advantages change from step to step, since values_new is in them: {yours} {place}.",
        "Which forecast was made when the tokens were sampled?"),
    "kl_sign": (_step(lambda R, old, ref, *rest: shape_rewards(R, ref, old, *rest)),
        "Your reward pays for moving away from the reference: {yours} {place}.",
        "A token has become likelier than under the reference. Is k positive then, and what should it cost?"),
    "kl_forgotten": (_step(price=lambda c: 0.0),
        "Your loss does not depend on the reference: {yours} {place}.",
        "What keeps the policy near to it?"),
    "kl_coef_missing": (_step(price=lambda c: 1.0),
        "Each nat costs 1 in your step, whatever the config says: {yours} {place}.",
        "Where does β come in?"),
    "score_forgotten": (_step(lambda R, *rest: shape_rewards(0 * R, *rest)),
        "The score does not enter your loss: {yours} {place}.",
        "What does the policy learn from, if not from it?"),
    "value_one_late": (_step(critic=lambda new, old: torch.cat([old[:, 1:], 0 * old[:, :1]], dim=1)),
        "Your forecast for a token is the one made *after* it: {yours} {place}.",
        "values_old[:, t] is already V before token t. Why move it?"),
    "gamma_lam_swapped": (_step(order=lambda c: (c.lam, c.gamma)),
        "γ and λ have changed places: {yours} {place}.",
        "Which of the two discounts the future, and in which order does `gae` take them?"),
    "not_whitened": (_step(whiten=lambda A, mask: A),
        "Your advantages are as GAE gave them: {yours} {place}.",
        "Before the first optimiser step the policy loss should be 0. What makes their mean 0?"),
    "whitened_with_pads": (_step(whiten=lambda A, mask: masked_whiten(A)),
        "The pads are counted when you whiten: {yours} {place}.",
        "How many tokens have an advantage at all?"),
    "mean_kept": (_step(whiten=lambda A, mask: masked_whiten(A, mask, keep_mean=True)),
        "Your advantages are scaled, but not centred: {yours} {place}.",
        "If all four reviews are good, should every token be pushed up?"),
    "returns_from_whitened": (_step(fit=lambda v, G, A, m: (v, A + v.detach(), m)),
        "Your critic aims at whitened advantages plus values: {yours} {place}.",
        "In which units is the score, and in which a whitened advantage?"),
    "advantages_as_target": (_step(fit=lambda v, G, A, m: (v, A, m)),
        "Your critic learns the advantages: {yours} {place}.",
        "What should V forecast: the reward to come, or how surprising it was?"),
    "critic_frozen": (_step(fit=lambda v, G, A, m: (v.detach(), G, m)),
        "No gradient reaches the critic: {yours} {place}.",
        "Which values does the critic in training give *now*?"),
    "ratio_is_one": (_step(old_of=lambda new, old: new.detach()),
        "Your ratio is 1 at every step: {yours} {place}.",
        "Which policy chose the tokens: the one at rollout, or the one of this step?"),
    "ratio_upside_down": (_upside_down,
        "Your ratio is old over new: {yours} {place}.",
        "A good token becomes likelier. Should its ratio rise or fall?"),
    "policy_sign": (_step(combine=lambda p, v, c: -p + c.value_coef * v),
        "Good tokens become less likely with your loss: {yours} {place}.",
        "`clipped_policy_loss` is a loss already. What does the optimiser do with a loss?"),
    "value_sign": (_step(combine=lambda p, v, c: p - c.value_coef * v),
        "Your critic is paid for being wrong: {yours} {place}.",
        "Should the squared error become larger or smaller?"),
    "value_coef_missing": (_step(combine=lambda p, v, c: p + v),
        "The value loss has its full weight: {yours} {place}.",
        "Which field of the config says how much it counts?"),
    "coef_on_policy": (_step(combine=lambda p, v, c: c.value_coef * (p + v)),
        "value_coef shrinks the policy loss too: {yours} {place}.",
        "Which of the two terms should it weigh?"),
    "critic_forgotten": (_step(combine=lambda p, v, c: p),
        "Your loss has no value term: {yours} {place}.",
        "Who teaches the critic?"),
    "policy_forgotten": (_step(combine=lambda p, v, c: c.value_coef * v),
        "Your loss has no policy term: {yours} {place}.",
        "What would the policy learn from this loss?"),
    "pads_in_the_losses": (_step(loss_mask=lambda mask: None),
        "The pads are counted in your losses: {yours} {place}.",
        "By how many tokens should the sum be divided?"),
    "mask_forgotten": (_no_mask(_step()),
        "Your step takes every cell for a token: {yours} {place}.",
        "On which column does the score of a short review fall then?"),
    "no_gradient": (lambda *given: _step()(*given).detach(),
        "The number may be right, but nothing can be learned from it: {yours} {place}.",
        "Which two tensors must still hang on the weights when the loss is done?"),
}  # fmt: skip

TRAINING_STEP = Exercise(
    number="7.1", name="training_step", solution=Graded(_step()), cases=_loss_cases, shapes="[1 + 2 B T]",
    place=_where, mistakes={key: Mistake(Graded(wrong), *words) for key, (wrong, *words) in _WRONG.items()},
    hints=(
        "Go through the stages in order: 3 shaped rewards, 4 advantages and returns, then whiten, 5 two losses.",
        "Stages 3 and 4 only need what is frozen: log_probs_old, log_probs_ref, values_old. What is new enters "
        "in stage 5: log_probs_new in the policy loss, values_new in the value loss.",
        "`shape_rewards` gives two things, `gae` gives two things; `masked_whiten` is for the advantages only, "
        "after the returns are made. Give the mask to every one of them. The total is equation 7.3.",
    ),
    source=(shaped_advantages, minibatch_loss),
    done="The loss and its gradient agree with the package in all four cases, pads and later epochs included.",
)  # fmt: skip


def check_training_step(fn) -> Verdict:
    """Exercise 7.1: fn(scores, log_probs_new, log_probs_old, log_probs_ref, values_new, values_old, mask, config).

    It returns the total loss, a scalar; its gradient by log_probs_new and values_new is checked as well.
    Taught in: notebooks/07_training_step.ipynb
    """
    return check(TRAINING_STEP, Graded(fn) if callable(fn) else fn)


# ---------------------------------------------------------------- 7.2 which invariant catches it

# broken step -> (the first invariant that fails, a question for who names another one)
BROKEN_STEPS = {
    "A": (6, "Freeze the reference, and you freeze whom?"),
    "B": (4, "Ask each stored tensor whether it still has a graph. Which one says yes?"),
    "C": (7, "Add up one review's shaped rewards. What do you get?"),
    "D": (1, "Whose log-probs are these: the policy's, or those of the policy with all but two tokens forbidden?"),
    "E": (2, "The rollout is in order. In which pass do the same weights now give other numbers?"),
    "F": (3, "What made the mean of the advantages 0?"),
    "G": (5, "What does this mean do with the values at the pads?"),
    "H": (8, "A token is far outside the band already. What stops it now?"),
}


def check_invariants(answer) -> Verdict:
    """Exercise 7.2: {"A": 6, ...}, the number of the first invariant that fails for each broken step.

    Taught in: notebooks/07_training_step.ipynb
    """
    say = says("Exercise 7.2")
    if answer is None or answer is ...:
        return say(None, attempted=False)
    if not isinstance(answer, dict):
        return say("not_a_dict", f"You gave a {type(answer).__name__}; a dict from letters to numbers is needed.")
    if missing := [letter for letter in BROKEN_STEPS if letter not in answer]:
        return say("missing", f"Nothing is said of {', '.join(missing)}.", "Which check would notice them?")
    wrong = [letter for letter, (number, _) in BROKEN_STEPS.items() if answer[letter] != number]
    if not wrong:
        return say(None, "All eight. Each of these lines runs without an error; an invariant stops it.", ok=True)
    first, found = wrong[0], len(BROKEN_STEPS) - len(wrong)
    return say(f"step_{first}", f"{found} of {len(BROKEN_STEPS)} are right. Step {first} is not caught first by "
               f"invariant {answer[first]}.", BROKEN_STEPS[first][1])  # fmt: skip


INVARIANTS = Task(
    "invariants",
    hints=(
        "For each line, ask what it changes: a stored tensor, a mean, or who shares what with whom.",
        "Each of the eight invariants is the first to fail for exactly one line.",
        "Two change what the rollout keeps, the others whitening, a sum, a mean, the reference, a pass, a bound.",
    ),
    source=(shaped_advantages, minibatch_loss),
)

EXERCISES = (TRAINING_STEP, INVARIANTS)
