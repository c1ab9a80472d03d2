"""The exercises of notebook 08: read a log, reward under a KL budget, a useless critic (layer 6)."""

import torch

from ..checker import Exercise, Mistake, Task, Verdict, check, says
from ..config import PPOConfig
from ..losses import explained_variance
from ..train import TrainingLog, train_ppo
from ..worlds import ReviewWorld


# ---------------------------------------------------------------- 8.1 read a log

def _first(reached):
    """The first update at which `reached(rewards, x)` holds; as a tensor, like every answer that is compared."""
    return lambda rewards: torch.tensor(next((float(i) for i, x in enumerate(rewards) if reached(rewards, x)), -1.0))


def _log_cases():
    rewards = {"from 0 to 10": [0.0, 5.0, 8.9, 9.0, 10.0], "from -2": [-2.0, -1.5, 0.0, 0.0],
               "with a peak": [1.0, 2.85, 3.5, 2.9, 3.0], "above 5 throughout": [5.0, 5.5, 5.8, 5.95, 6.0],
               "up to 1": [-1.0, 0.0, 0.7, 0.85, 1.0]}  # fmt: skip
    return {name: dict(rewards=values) for name, values in rewards.items()}


FIRST_AT_90 = Exercise(
    number="8.1", name="first_at_90", cases=_log_cases, shapes="[]", integers=True,
    solution=_first(lambda r, x: x - r[0] >= 0.9 * (r[-1] - r[0])),
    place=lambda case: f"in the case '{case}'",
    mistakes={
        "share_of_last": Mistake(
            _first(lambda r, x: x >= 0.9 * r[-1]),
            "You say update {yours} {place}: the first value that is 90% of the last one.",
            "A run that starts at 5 and ends at 6: has it made 90% of its way at 5.5?"),
        "of_highest": Mistake(
            _first(lambda r, x: x - r[0] >= 0.9 * (max(r) - r[0])),
            "You say update {yours} {place}: you measure against the highest value.",
            "Where does the way end, at the last value or at a lucky one?"),
        "share_of_highest": Mistake(
            _first(lambda r, x: x >= 0.9 * max(r)),
            "You say update {yours} {place}: the first value that is 90% of the highest one.",
            "Where does the way begin, and where does it end?"),
        "strictly": Mistake(
            _first(lambda r, x: x - r[0] > 0.9 * (r[-1] - r[0])),
            "You say update {yours} {place}: a value of exactly 90% does not count for you.",
            "What does 'at least' say about 9 on the way from 0 to 10?"),
        "the_last": Mistake(
            lambda rewards: torch.tensor(len(rewards) - 1.0),
            "You say update {yours} {place}: the last one, always.",
            "Does the run get there earlier?"),
        "counted_from_1": Mistake(
            lambda rewards: FIRST_AT_90.solution(rewards) + 1,
            "You say update {yours} {place}: one too many.",
            "Which number has the first update in Python?"),
        "ten_percent": Mistake(
            _first(lambda r, x: x - r[0] >= 0.1 * (r[-1] - r[0])),
            "You say update {yours} {place}: a tenth of the way is enough for you.",
            "How much of the way is asked for?"),
        "half": Mistake(
            _first(lambda r, x: x - r[0] >= 0.5 * (r[-1] - r[0])),
            "You say update {yours} {place}: half of the way is enough for you.",
            "How much of the way is asked for?"),
        "not_reached": Mistake(
            lambda rewards: FIRST_AT_90.solution(rewards) - 1,
            "You say update {yours} {place}: the last one that is still below.",
            "Is the value at your update at least 90% of the way?"),
        "the_value": Mistake(
            lambda rewards: torch.tensor(rewards[int(FIRST_AT_90.solution(rewards))]),
            "You say {yours} {place}: the reward there.",
            "Is the reward asked for, or the update at which it came?"),
        "counted": Mistake(
            lambda r: torch.tensor(float(sum(x - r[0] >= 0.9 * (r[-1] - r[0]) for x in r))),
            "You say {yours} {place}: you count the updates that are high enough.",
            "The first one, or how many?"),
    },
    hints=(
        "The way is from the first value to the last. How long is it, and how much of it is 90%?",
        "The bar is `rewards[0] + 0.9 * (rewards[-1] - rewards[0])`.",
        "Go through `enumerate(rewards)` and return the first index whose value is at least the bar.",
    ),
    source=(TrainingLog.append,),
    done="Right in all five logs, also where the run starts above 0.",
)  # fmt: skip


def check_first_at_90(fn) -> Verdict:
    """Exercise 8.1: fn(rewards, a list of floats) -> the first update that made 90% of the way from first to last.

    Taught in: notebooks/08_training_run.ipynb
    """
    return check(FIRST_AT_90, fn)


# ---------------------------------------------------------------- 8.2 a reward under a KL budget

def check_reward_under_budget(kl_coef, budget=2.0, wanted=2.3) -> Verdict:
    """Exercise 8.2: train 40 updates with this β; the last ten must spend at most `budget` nats and earn `wanted`.

    Taught in: notebooks/08_training_run.ipynb
    """
    say = says("Exercise 8.2")
    if kl_coef is None or kl_coef is ...:
        return say(None, attempted=False)
    if isinstance(kl_coef, bool) or not isinstance(kl_coef, (int, float)) or not 0 <= kl_coef < float("inf"):
        return say("not_a_price", f"You gave {kl_coef!r}; a β is a number of at least 0.")
    _, log = train_ppo(ReviewWorld(), PPOConfig(kl_coef=kl_coef, value_coef=0.1), num_updates=40, progress=False)
    reward, kl = (sum(log.metrics[name][-10:]) / 10 for name in ("mean_reward", "kl_per_response"))
    seen = f"With β = {kl_coef:g}: reward {reward:.2f}, KL {kl:.2f} nats per review."
    if kl > budget:
        return say("over_budget", seen, f"More than {budget:g} nats. Must a nat become dearer or cheaper?")
    if reward < wanted:
        return say("too_low", seen, f"Within the budget, but {wanted:g} is wanted. How much of the budget is left?")
    return say(None, seen, ok=True)


BUDGET = Task(
    "reward_under_budget",
    hints=(
        "At β = 0.1 the run spends more than 2 nats. β is the price of one.",
        "The run levels off where one more nat buys β of reward. Raise β until the KL fits, not further.",
        "Try β between 0.2 and 0.5.",
    ),
    source=(train_ppo,),
)


# ---------------------------------------------------------------- 8.3 a useless critic

def check_useless_critic(values) -> Verdict:
    """Exercise 8.3: three values, not all equal, with explained variance 0 for the returns 2, 4, 6.

    Taught in: notebooks/08_training_run.ipynb
    """
    say = says("Exercise 8.3")
    if values is None or values is ...:
        return say(None, attempted=False)
    try:
        given = torch.as_tensor(values, dtype=torch.float64).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        return say("not_numbers", f"You gave {values!r}; three numbers are wanted.")
    if len(given) != 3:
        return say("not_three", f"You gave {len(given)} values. How many tokens are there?")
    if len(set(given.tolist())) == 1:
        return say("constant", "All three are equal.", "That is the answer which was ruled out. Is there another?")
    score = explained_variance(given.view(1, 3), torch.tensor([[2.0, 4.0, 6.0]], dtype=torch.float64)).item()
    if abs(score) < 1e-6:
        return say(None, "Its explained variance is 0, although it changes from token to token.", ok=True)
    where = "better" if score > 0 else "worse"
    return say("not_zero", f"Your explained variance is {score:.3f}: {where} than a constant.",
               "By how much must the errors G − V vary, compared with G?")  # fmt: skip


USELESS = Task(
    "useless_critic",
    hints=(
        "Explained variance is 0 when the errors G − V vary as much as G itself.",
        "Section 8.4 had such a critic: what did it answer?",
        "Twice the returns: then G − V = −G, which varies as much as G.",
    ),
    source=(explained_variance,),
)

EXERCISES = (FIRST_AT_90, BUDGET, USELESS)
