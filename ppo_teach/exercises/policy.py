"""The exercises of notebook 01: log-probs of a response, its mask, what a sampler stores (layer 6)."""

import math

import torch

from ..checker import Exercise, Mistake, Task, Verdict, check, says, seeded
from ..models import keep_top_k, sample_tokens
from ..tensor_ops import response_log_probs, response_mask

# ---------------------------------------------------------------- 1.1 the shifted gather


def _gather(shift=-1, *, soft=lambda z, tau: (z / tau).log_softmax(-1), then=lambda x: x, ids=lambda y: y):
    """Right with the defaults, else wrong in one way; `shift` is the place read, from the token's own."""

    def run(logits, response_ids, temperature):
        T = response_ids.shape[1]
        read = logits.roll(-shift, dims=1)[:, -T:]
        return then(soft(read, temperature).gather(-1, ids(response_ids).unsqueeze(-1)).squeeze(-1))

    return run


def _from_row(row):
    def run(logits, response_ids, temperature):
        return _gather(0)(logits[:, row : row + response_ids.shape[1]], response_ids, temperature)

    return run


def _likeliest(logits, response_ids, temperature):
    return (logits / temperature).log_softmax(-1)[:, -response_ids.shape[1] - 1 : -1].amax(-1)


def _gather_cases():
    def random(seed, batch, P, T, V=6, temperature=1.0, spread=1.5):
        generator = seeded(seed)
        logits = spread * torch.randn(batch, P + T, V, generator=generator, dtype=torch.float64)
        return dict(logits=logits, response_ids=torch.randint(V, (batch, T), generator=generator),
                    temperature=temperature)  # fmt: skip

    four = torch.tensor([[[0.2, 1.0, -0.5], [1.5, 0.3, -0.7], [0.0, 2.0, 1.0], [3.0, -1.0, 0.5]]])
    small = dict(logits=four.double(), response_ids=torch.tensor([[1, 0]]), temperature=1.0)
    return {
        "two tokens": small,
        "three reviews": random(1, 3, 3, 5),
        "temperature 0.5": random(2, 2, 5, 3, temperature=0.5),
        "one token": random(4, 2, 2, 1, temperature=2.0),
        "large logits": random(3, 2, 4, 3, spread=900.0),  # exp of them overflows
    }


RESPONSE_LOG_PROBS = Exercise(
    number="1.1", name="response_log_probs", solution=response_log_probs, cases=_gather_cases,
    shapes="[B, T]",
    place=lambda case, b, t: f"for token {t} of response {b} (case '{case}')",
    mistakes={
        "own_position": Mistake(
            _gather(0), "You score each token by logits that have already read it: {yours} {place}.",
            "What had the model seen when it chose that token?"),
        "two_early": Mistake(
            _gather(-2), "You read one place too early: {yours} {place}.",
            "Which token is the last one that the model had read by then?"),
        "prompt_forgotten": Mistake(
            _from_row(0), "You read the first T places of the sequence: {yours} {place}.",
            "What stands there, the prompt or the response?"),
        "prompt_of_three": Mistake(
            _from_row(2), "You read from row 2 on, however long the prompt is: {yours} {place}.",
            "How many tokens has the prompt here, and which two shapes tell you?"),
        "next_token": Mistake(
            _gather(ids=lambda y: y.roll(-1, dims=1)),
            "The places are right, but you look up the token after: {yours} {place}.",
            "Logits and ids moved, both? How many moves are needed in all?"),
        "raw_logits": Mistake(
            _gather(soft=lambda z, tau: z / tau), "You return logits: {yours} {place}.",
            "If you add 1 to all logits of a position, the policy stays. Does your number?"),
        "probabilities": Mistake(
            _gather(then=torch.exp), "You return probabilities: {yours} {place}.",
            "Can a log-probability be above 0?"),
        "sign": Mistake(
            _gather(then=torch.neg), "You return a loss, with the sign turned: {yours} {place}.",
            "Should a likelier token have a higher or a lower number?"),
        "over_positions": Mistake(
            _gather(soft=lambda z, tau: (z / tau).log_softmax(1)),
            "Your probabilities add up to 1 over the positions: {yours} {place}.",
            "Among what does the policy choose at one position?"),
        "temperature_forgotten": Mistake(
            _gather(soft=lambda z, tau: z.log_softmax(-1)),
            "Your result is the same at every temperature: {yours} {place}.",
            "Which policy drew the token, and what had been done to its logits?"),
        "temperature_times": Mistake(
            _gather(soft=lambda z, tau: (z * tau).log_softmax(-1)),
            "A high temperature makes your policy surer: {yours} {place}.",
            "Should heat spread the probabilities or concentrate them?"),
        "temperature_late": Mistake(
            _gather(soft=lambda z, tau: z.log_softmax(-1) / tau),
            "You apply the temperature after normalising: {yours} {place}.",
            "Do the probabilities of all words still add up to 1 then?"),
        "likeliest": Mistake(
            _likeliest, "You score the likeliest word, whatever was written: {yours} {place}.",
            "Which argument of your function says what was written?"),
    },
    hints=(
        "Write down a prompt of 2 and a response of 2 tokens. Which of the 4 positions had read what?",
        "The logits at position j score the token at j + 1. You need T positions, without the last of all.",
        "`logits[:, -T - 1 : -1]`, divided by the temperature; then `log_softmax(-1)`, and `gather` along "
        "the words with `response_ids.unsqueeze(-1)`.",
    ),
    source=(response_log_probs,),
    done="It agrees with the package in all five cases: other lengths, temperatures, and logits above 1,000.",
)  # fmt: skip


def check_response_log_probs(fn) -> Verdict:
    """Exercise 1.1: fn(logits [B, P+T, V], response_ids [B, T], temperature) -> log-probs [B, T].

    Taught in: notebooks/01_language_model_as_policy.ipynb
    """
    return check(RESPONSE_LOG_PROBS, fn)


# ---------------------------------------------------------------- 1.2 the response mask


def _mask(response_ids, eos_id):
    return response_mask(response_ids, eos_id).float()


def _by_row(length, empty=None):
    """The first `length(places of EOS, T)` tokens of each row; `empty` of them where there is no EOS."""

    def run(response_ids, eos_id):
        rows = torch.zeros(response_ids.shape)
        for row, ids in zip(rows, response_ids):
            places, T = (ids == eos_id).nonzero().flatten().tolist(), len(ids)
            row[: length(places, T) if places else (T if empty is None else empty)] = 1
        return rows

    return run


def _mask_cases():
    rows = lambda *lists: torch.tensor(lists)
    return {
        "pad is 0": dict(response_ids=rows([5, 6, 2, 0, 0], [5, 6, 7, 8, 9], [2, 0, 0, 0, 0]), eos_id=2),
        "pad is EOS": dict(response_ids=rows([5, 2, 2, 2], [5, 6, 7, 2], [2, 2, 2, 2]), eos_id=2),
        "text after EOS": dict(response_ids=rows([5, 2, 7, 7, 2, 0], [7, 7, 2, 5, 0, 0]), eos_id=2),
        "EOS is 0": dict(response_ids=rows([4, 3, 0, 0], [4, 3, 1, 2]), eos_id=0),
        "one token": dict(response_ids=rows([2], [7]), eos_id=2),
    }


RESPONSE_MASK = Exercise(
    number="1.2", name="response_mask", solution=_mask, cases=_mask_cases, shapes="[B, T]", integers=True,
    place=lambda case, b, t: f"at token {t} of response {b} (case '{case}')",
    mistakes={
        "eos_dropped": Mistake(
            _by_row(lambda places, T: places[0]),
            "Your mask stops before the EOS: {yours} {place}.",
            "Did the policy choose to stop there, or did someone else?"),
        "one_late": Mistake(
            _by_row(lambda places, T: places[0] + 2),
            "Your mask goes on for one token after the EOS: {yours} {place}.",
            "Who wrote the token after the EOS?"),
        "last_eos": Mistake(
            _by_row(lambda places, T: places[-1] + 1),
            "Your mask runs through the last EOS: {yours} {place}.",
            "If padding is written with the EOS token too, which of them did the policy choose?"),
        "second_eos": Mistake(
            lambda y, eos: ((y == eos).cumsum(1) <= 1).float(),
            "Your mask goes on until a second EOS comes: {yours} {place}.",
            "What is your count at the first EOS, and what is it one token later?"),
        "not_eos": Mistake(
            lambda y, eos: (y != eos).float(),
            "You keep every token that is no EOS: {yours} {place}.",
            "Is the EOS an action? And what stands after it?"),
        "pad_is_zero": Mistake(
            lambda y, eos: (y != 0).float(),
            "You take 0 for the padding: {yours} {place}.",
            "Which token pads here, and can you know it from the arguments?"),
        "all_ones": Mistake(
            lambda y, eos: torch.ones(y.shape),
            "You call every token real: {yours} {place}.",
            "What did the policy choose after it had stopped?"),
        "inverted": Mistake(
            lambda y, eos: 1 - _mask(y, eos),
            "Your mask is 1 where it should be 0, and 0 where 1: {yours} {place}.",
            "In this course, does 1 stand for a real token or for padding?"),
        "no_eos_empty": Mistake(
            _by_row(lambda places, T: places[0] + 1, empty=0),
            "A response that never stops is empty for you: {yours} {place}.",
            "Did the policy write its tokens, even though it was cut off?"),
        "no_eos_first": Mistake(
            _by_row(lambda places, T: places[0] + 1, empty=1),
            "You keep the first token only of a response that never stops: {yours} {place}.",
            "What does `argmax` return for a row without any EOS?"),
        "eos_dropped_or_empty": Mistake(
            _by_row(lambda places, T: places[0], empty=0),
            "Your mask stops before the EOS, and is empty where none comes: {yours} {place}.",
            "Is stopping an action? And what does your search return for a row without any EOS?"),
        "rows_joined": Mistake(
            lambda y, eos: _mask(y.reshape(1, -1), eos).view(y.shape),
            "Once one response has ended, all later rows are 0: {yours} {place}.",
            "What should your loop still know of the row before, when a new one begins?"),
        "first_place_missed": Mistake(
            _by_row(lambda places, T: places[0] + 1 if places[0] else T),
            "A response that stops at once is never over for you: {yours} {place}.",
            "Does a place of 0 mean 'not found', or 'found at the start'?"),
    },
    hints=(
        "A token is real if no EOS stands *before* it. The first EOS has none before it.",
        "Count the EOS tokens from the left. Which count has the first EOS, and which the token after?",
        "`is_eos.cumsum(1) - is_eos` (as integers) is the number of EOS strictly before each token; real is "
        "where it is 0.",
    ),
    source=(response_mask,),
    done="It agrees with the package in all five cases: no EOS, EOS first, EOS as padding, text after EOS.",
)  # fmt: skip


def check_response_mask(fn) -> Verdict:
    """Exercise 1.2: fn(response_ids [B, T], eos_id) -> mask [B, T], 1 = real token.

    Taught in: notebooks/01_language_model_as_policy.ipynb
    """
    return check(RESPONSE_MASK, fn)


# ---------------------------------------------------------------- 1.3 what the sampler stores

LOGITS, TOKEN, TEMPERATURE, TOP_K = torch.tensor([2.0, 1.0, 0.0, -1.0], dtype=torch.float64), 1, 2.0, 2


def check_stored_log_prob(answer) -> Verdict:
    """Exercise 1.3: the log-prob of token 1, logits (2, 1, 0, -1), by the policy at temperature 2, to 0.01.

    Taught in: notebooks/01_language_model_as_policy.ipynb
    """
    say = says("Exercise 1.3")

    def log_prob(temperature, top_k=None):
        return (keep_top_k(LOGITS, top_k) / temperature).log_softmax(-1)[TOKEN].item()

    if isinstance(answer, torch.Tensor) and answer.numel() == 1:
        answer = answer.item()
    if answer is None or answer is ...:
        return say(None, attempted=False)
    if isinstance(answer, bool) or not isinstance(answer, (int, float)):
        return say("not_a_number", f"You gave a {type(answer).__name__}; one number is wanted.")
    right, seen = log_prob(TEMPERATURE), f"You say {answer:.4g}."
    known = {
        "filtered": (log_prob(TEMPERATURE, TOP_K), "Is it by the policy, or by what top-k leaves of it?"),
        "temperature_forgotten": (log_prob(1.0), "Which temperature did the sampler use?"),
        "filtered_cold": (log_prob(1.0, TOP_K), "Which temperature was it, and are all words in your sum?"),
        "temperature_times": (log_prob(1 / TEMPERATURE), "Does heat make the logits larger or smaller?"),
        "probability": (math.exp(right), "Is that a probability or its logarithm?"),
        "filtered_probability": (math.exp(log_prob(TEMPERATURE, TOP_K)), "A probability, and of which policy?"),
        "sign": (-right, "Can a log-probability be above 0?"),
        "logit": (LOGITS[TOKEN].item() / TEMPERATURE, "What does a logit still lack to be a log-prob?"),
        "other_token": ((LOGITS / TEMPERATURE).log_softmax(-1)[0].item(), "Which token was drawn?"),
    }
    if abs(answer - right) < 0.01:
        return say(None, f"{seen} The training pass computes the same: the ratio starts at 1.", ok=True)
    for mistake, (value, question) in known.items():
        if abs(answer - value) < 0.01:
            return say(mistake, seen, question)
    return say("unknown", seen, "Take exp of it: is this the share of one word among the four?")


STORED_LOG_PROB = Task(
    "stored_log_prob",
    hints=(
        "The training pass knows nothing of top-k. Which of the two does it recompute?",
        "Divide the logits by the temperature, and use all four of them in the softmax.",
        "log of exp(0.5) divided by the sum of exp(1), exp(0.5), exp(0), exp(-0.5).",
    ),
    source=(sample_tokens,),
)

EXERCISES = (RESPONSE_LOG_PROBS, RESPONSE_MASK, STORED_LOG_PROB)
