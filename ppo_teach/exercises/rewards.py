"""The exercises of notebook 02: the Bradley-Terry loss, and where the score goes (layer 6)."""

import torch
from torch.nn.functional import logsigmoid

from ..checker import Exercise, Mistake, Verdict, check, seeded
from ..rewards import place_scores
from ..worlds.reward_model import bradley_terry_loss

# ---------------------------------------------------------------- 2.1 the Bradley-Terry loss


def _pair_cases():
    exact = dict(dtype=torch.float64)
    random = [torch.randn(6, generator=seeded(seed), **exact) for seed in (1, 2)]
    many = [torch.randn(40, generator=seeded(seed), **exact) for seed in (3, 4)]
    return {
        "three pairs": dict(preferred=torch.tensor([2.0, 0.9, 1.5], **exact),
                            rejected=torch.tensor([0.5, 0.4, 1.2], **exact)),
        "six random pairs": dict(preferred=random[0], rejected=random[1]),
        "one pair": dict(preferred=torch.tensor([-0.3], **exact), rejected=torch.tensor([0.8], **exact)),
        "differences of 900": dict(preferred=torch.tensor([900.0, 1.0], **exact),
                                   rejected=torch.tensor([0.0, 901.0], **exact)),
        "scores with a gradient": dict(preferred=many[0].requires_grad_(), rejected=many[1]),
    }  # fmt: skip


BRADLEY_TERRY = Exercise(
    number="2.1", name="bradley_terry", solution=bradley_terry_loss, cases=_pair_cases,
    shapes="[] (one number)",
    place=lambda case: f"in the case '{case}'",
    mistakes={
        "swapped": Mistake(
            lambda p, r: bradley_terry_loss(r, p),
            "Your loss falls when the *rejected* one scores higher: it is {yours} {place}.",
            "Which of the two scores should training push up?"),
        "no_minus": Mistake(
            lambda p, r: -bradley_terry_loss(p, r),
            "Your loss is never above 0: {yours} {place}.",
            "An optimizer makes the loss small. Would it make what the raters chose likely, or unlikely?"),
        "summed": Mistake(
            lambda p, r: bradley_terry_loss(p, r) * len(p),
            "Your loss grows with the number of pairs: {yours} {place}.",
            "Should a batch twice as large take a step twice as large?"),
        "no_log": Mistake(
            lambda p, r: -torch.sigmoid(p - r).mean(),
            "Yours is a mean probability with a minus: {yours} {place}.",
            "How much does a pair cost that the model ranks wrongly and is sure of? How much should it?"),
        "squared_error": Mistake(
            lambda p, r: (torch.sigmoid(r - p) ** 2).mean(),
            "Yours is the squared distance of a probability from 1: {yours} {place}.",
            "Which function of a probability is the loss of a likelihood?"),
        "hinge": Mistake(
            lambda p, r: torch.relu(1 - (p - r)).mean(),
            "Your loss is a straight line that stops at a margin: {yours} {place}.",
            "Raters choose at random, with some probability. Where is it in your loss?"),
        "difference_only": Mistake(
            lambda p, r: -(p - r).mean(),
            "Yours is the mean difference, without a probability: {yours} {place}.",
            "What would stop the scores from growing for ever?"),
        "log_of_difference": Mistake(
            lambda p, r: -(p - r).log().mean(),
            "You take the logarithm of the difference itself: {yours} {place}.",
            "A difference can be negative. Which function turns it into a probability first?"),
        "log_of_mean": Mistake(
            lambda p, r: -torch.sigmoid(p - r).mean().log(),
            "You average the probabilities and take the logarithm afterwards: {yours} {place}.",
            "The log-likelihood of three choices is which sum?"),
        "over_the_batch": Mistake(
            lambda p, r: -(p - r).log_softmax(0).mean(),
            "Your pairs compete with each other: {yours} {place}.",
            "A rater saw two reviews. Do the other pairs of the batch change that choice?"),
        "difference_of_sigmoids": Mistake(
            lambda p, r: -(torch.sigmoid(p) - torch.sigmoid(r)).mean(),
            "You take the sigmoid of each score on its own: {yours} {place}.",
            "Add 5 to both scores. Does your loss stay as it is?"),
        "difference_of_logs": Mistake(
            lambda p, r: -(logsigmoid(p) - logsigmoid(r)).mean(),
            "You subtract two log-probabilities: {yours} {place}.",
            "Add 5 to both scores. Should the loss change, and does yours?"),
        "rejected_forgotten": Mistake(
            lambda p, r: -logsigmoid(p).mean(),
            "The rejected score does not enter your loss: {yours} {place}.",
            "Is a review with score 2 likely to win against one with score 3?"),
        "ratio_of_scores": Mistake(
            lambda p, r: -(p / (p + r)).log().mean(),
            "You divide score by score: {yours} {place}.",
            "A score may be negative. What must be done to both before such a share is a probability?"),
    },
    hints=(
        "Start with one pair. What does equation 2.2 say about the probability of the choice that was made?",
        "The loss of a pair is minus the logarithm of that probability. What becomes of many pairs?",
        "`torch.nn.functional.logsigmoid` takes the difference of the scores, also 900, without overflow.",
    ),
    source=(bradley_terry_loss,),
    done="It agrees with the package in all five cases, also where scores differ by 900, and gradients pass.",
)  # fmt: skip


def check_bradley_terry(fn) -> Verdict:
    """Exercise 2.1: fn(preferred [n], rejected [n]), scores -> the loss, with their gradient.

    Taught in: notebooks/02_rewards.ipynb
    """
    return check(BRADLEY_TERRY, fn)


# ---------------------------------------------------------------- 2.2 place the score


def _rows(*lengths, T):
    return (torch.arange(T) < torch.tensor(lengths).unsqueeze(1)).long()


def _placement_cases():
    draw = torch.randn(7, generator=seeded(5))
    return {
        "three reviews": dict(scores=torch.tensor([1.5, -0.5, 2.0]), mask=_rows(3, 4, 2, T=5)),
        "full rows and short ones": dict(scores=torch.tensor([-0.5, 0.25, 3.0, 1.0]),
                                         mask=_rows(5, 1, 4, 5, T=5)),
        "a row without tokens": dict(scores=torch.tensor([2.0, 1.0]), mask=_rows(0, 2, T=4)),
        "a mask of booleans": dict(scores=draw, mask=_rows(6, 2, 3, 1, 5, 4, 2, T=6).bool()),
        "a single column": dict(scores=torch.tensor([0.7, -1.2]), mask=_rows(1, 1, T=1)),
    }  # fmt: skip


def _at(column):
    """The score in column(lengths, T) of its row, wherever that is inside."""
    def place(scores, mask):
        T = mask.shape[1]
        return scores.unsqueeze(1) * (torch.arange(T) == column(mask.long().sum(1), T).unsqueeze(1))
    return place  # fmt: skip


def _somewhere(weights):
    """The score times weights(mask, lengths [B, 1])."""
    def place(scores, mask):
        mask = mask.to(scores.dtype)
        return scores.unsqueeze(1) * weights(mask, mask.sum(1, keepdim=True))
    return place  # fmt: skip


def _in_every_row(scores, mask):
    rewards = torch.zeros(mask.shape, dtype=scores.dtype)
    for score, length in zip(scores, mask.long().sum(1)):
        rewards[:, length - 1] = score
    return rewards


PLACE_SCORES = Exercise(
    number="2.2", name="place_scores", solution=place_scores, cases=_placement_cases, shapes="[B, T]",
    place=lambda case, b, t: f"at token {t} of row {b} (case '{case}')",
    mistakes={
        "last_column": Mistake(
            _at(lambda lengths, T: torch.full_like(lengths, T - 1)),
            "The score stands in the last column, whatever the length of the response: {yours} {place}.",
            "What is in that column when a response stopped early?"),
        "last_column_masked": Mistake(
            _at(lambda lengths, T: torch.where(lengths == T, T - 1, -1)),
            "Scores get lost: {yours} {place}. Only responses that fill their row keep theirs.",
            "Into which column did you write before you multiplied by the mask?"),
        "first_pad": Mistake(
            _at(lambda lengths, T: lengths.clamp(max=T - 1)),
            "The score stands on the first pad, where there is one: {yours} {place}.",
            "The columns are counted from 0. Which number has the last of three tokens?"),
        "first_pad_or_nowhere": Mistake(
            _at(lambda lengths, T: lengths),
            "The score stands on the first pad, and a full row loses it: {yours} {place}.",
            "Columns start at 0. Which number has the last of three tokens?"),
        "before_the_end": Mistake(
            _at(lambda lengths, T: (lengths - 2).clamp(min=0)),
            "The score comes one token too early: {yours} {place}.",
            "The token that ends a response is an action too. Who pays the policy for stopping?"),
        "first_token": Mistake(
            _at(lambda lengths, T: torch.where(lengths > 0, 0, -1)),
            "The score stands on the first token: {yours} {place}.",
            "When is a response scored, before it is written or after?"),
        "every_token": Mistake(
            _somewhere(lambda mask, lengths: mask),
            "Every token gets the whole score: {yours} {place}.",
            "What does a response of ten tokens earn in total, and what one of two?"),
        "spread": Mistake(
            _somewhere(lambda mask, lengths: mask / lengths.clamp(min=1)),
            "You share the score out among the tokens: {yours} {place}.",
            "Is it known which token earned it?"),
        "from_the_end_on": Mistake(
            _somewhere(lambda mask, lengths: mask.cumsum(1) == lengths),
            "The score stands on the last token and on every pad behind it: {yours} {place}.",
            "A running count of tokens stays the same over the pads. Which condition leaves one place?"),
        "empty_row": Mistake(
            _at(lambda lengths, T: (lengths - 1) % T),
            "A row without a single token gets a score: {yours} {place}.",
            "What is its length minus 1, and which column does Python take that for?"),
        "empty_row_first": Mistake(
            _at(lambda lengths, T: (lengths - 1).clamp(min=0)),
            "A row without tokens gets its score in column 0: {yours} {place}.",
            "Is there a token that could have earned it?"),
        "longest_row": Mistake(
            _at(lambda lengths, T: (lengths.max() - 1).expand(len(lengths))),
            "All scores stand in one column, the end of the longest response: {yours} {place}.",
            "Where does each *row* end?"),
        "every_row": Mistake(
            _in_every_row, "Each score stands in every row: {yours} {place}.",
            "Which rows does a `:` in front stand for, and which one should get this score?"),
    },
    hints=(
        "Count the real tokens of each row. In which column does a row with three of them end?",
        "You need a table [B, T] that is true in one place a row: a real token with no real token after it.",
        "Compare `torch.arange(T)` with `lengths.unsqueeze(1) - 1`, then `torch.where`. Mind an empty row.",
    ),
    source=(place_scores,),
    done="It agrees with the package in all five cases, also where a row is full, or empty.",
)  # fmt: skip


def check_place_scores(fn) -> Verdict:
    """Exercise 2.2: fn(scores [B], mask [B, T], 1 = real token) -> rewards [B, T].

    Taught in: notebooks/02_rewards.ipynb
    """
    return check(PLACE_SCORES, fn)


EXERCISES = (BRADLEY_TERRY, PLACE_SCORES)
