"""The language of ReviewWorld: its words, and the grammar that writes the pretraining corpus (layer 1).

    review -> clause (joiner clause){0..2} .        at most 14 tokens after the first three
    clause -> the NOUN was phrase                   noun and adjective must suit each other
    phrase -> ADJ | BOOSTER ADJ | ADJ and ADJ

A review has a mood: a happy one is mostly praise, an unhappy one mostly complaints, a mixed one half and
half. Praise after praise is joined by "and", praise after a complaint by "but". No noun and no adjective
comes twice.
"""

import re

import torch

from .lexicon import BOOSTERS, RATINGS

PAD, STOP = "<pad>", "."  # the full stop is the end-of-sequence token: to end a review is an action
NOUNS = {  # kind -> nouns
    "food": ("soup", "pasta", "dessert", "coffee"),
    "people": ("staff", "waiter", "chef"),
    "place": ("room", "music", "terrace"),
}
# (kind, is praise) -> adjectives, the commonest first; "any" suits every noun
ADJECTIVES = {
    ("any", True): ("good", "nice", "pleasant", "great", "lovely", "wonderful", "perfect"),
    ("any", False): ("bad", "poor", "disappointing", "awful", "terrible", "horrible"),
    ("food", True): ("fresh", "sweet", "delicious"),
    ("food", False): ("weak", "bitter", "rotten"),
    ("people", True): ("friendly", "helpful", "charming"),
    ("people", False): ("rude", "careless", "angry"),
    ("place", True): ("clean", "warm", "elegant"),
    ("place", False): ("noisy", "gloomy", "dirty"),
}
NEUTRAL = ("plain", "simple")  # not in the lexicon: rated 0; written where praise or a complaint would stand
WORDS = (
    PAD, STOP, "the", "was", "and", "but", *BOOSTERS,
    *(noun for nouns in NOUNS.values() for noun in nouns), *RATINGS, *NEUTRAL,
)  # fmt: skip
WORD_ID = {word: i for i, word in enumerate(WORDS)}
PROMPT_LENGTH, MAX_NEW_TOKENS = 3, 14
CONTENT_WORDS = {*RATINGS, *NEUTRAL, *(noun for nouns in NOUNS.values() for noun in nouns)}

# share of reviews -> chance that a clause is praise
MOODS = ((0.40, 0.94), (0.44, 0.05), (0.16, 0.5))
NUM_CLAUSES = ((0.35, 1), (0.40, 2), (0.25, 3))
PHRASES = ((0.50, "plain"), (0.34, "boosted"), (0.16, "pair"))


def write_review(uniform):
    """One review as a list of words, from an iterator of uniform numbers in [0, 1)."""
    praise_chance = _choose(MOODS, uniform)
    words, used, was_praise = [], set(), None
    for _ in range(_choose(NUM_CLAUSES, uniform)):
        praise = next(uniform) < praise_chance
        if words:
            words.append("and" if praise == was_praise else "but")
        kind = list(NOUNS)[int(len(NOUNS) * next(uniform))]
        words += ["the", _unused(NOUNS[kind], used, uniform), "was", *_phrase(kind, praise, used, uniform)]
        was_praise = praise
    return [*words, STOP]


def _phrase(kind, praise, used, uniform):
    form = _choose(PHRASES, uniform)
    words = [_adjective(kind, praise, used, uniform)]
    if form == "boosted":
        words.insert(0, tuple(BOOSTERS)[int(len(BOOSTERS) * next(uniform))])
    if form == "pair":
        words += ["and", _adjective(kind, praise, used, uniform)]
    return words


def _adjective(kind, praise, used, uniform):
    if next(uniform) < 0.06:
        return _unused(NEUTRAL, used, uniform)
    return _unused(ADJECTIVES["any" if next(uniform) < 0.6 else kind, praise], used, uniform)


def _choose(table, uniform):
    draw = next(uniform)
    for share, choice in table:
        draw -= share
        if draw < 0:
            break
    return choice


def _unused(words, used, uniform):
    """Draw a word not yet in this review; earlier words of the tuple are likelier."""
    left = [word for word in words if word not in used] or list(words)
    word = left[int(len(left) * next(uniform) ** 1.2)]
    used.add(word)
    return word


def sample_corpus(num_reviews, generator):
    """Sample reviews of at most 3 + 14 tokens.

    Returns: prompt_ids [n, 3], response_ids [n, 14], padded after the full stop.
    """
    if num_reviews < 1:
        raise ValueError(f"num_reviews must be an integer >= 1, got {num_reviews}")
    reviews = []
    while len(reviews) < num_reviews:
        for row in torch.rand(num_reviews, 64, generator=generator).tolist():
            words = write_review(iter(row))
            if len(words) <= PROMPT_LENGTH + MAX_NEW_TOKENS:
                reviews.append([WORD_ID[word] for word in words])
    ids = torch.full((num_reviews, PROMPT_LENGTH + MAX_NEW_TOKENS), WORD_ID[PAD])
    for row, review in zip(ids, reviews):
        row[: len(review)] = torch.tensor(review)
    return ids[:, :PROMPT_LENGTH], ids[:, PROMPT_LENGTH:]


def _grammar_pattern():
    either = lambda options: "(?:" + "|".join(options) + ")"
    clauses = []
    for kind, nouns in NOUNS.items():
        suiting = [word for (k, _), words in ADJECTIVES.items() if k in ("any", kind) for word in words]
        adjective = either([*suiting, *NEUTRAL])
        phrase = either([f"(?:{either(BOOSTERS)} )?{adjective}", f"{adjective} and {adjective}"])
        clauses.append(f"the {either(nouns)} was {phrase}")
    clause = either(clauses)
    return re.compile(rf"{clause}(?: (?:and|but) {clause})* \.")


_GRAMMAR = _grammar_pattern()


def is_grammatical(text):
    """Whether a decoded review, prompt included, follows the grammar (any length, repetition allowed)."""
    return _GRAMMAR.fullmatch(text) is not None
