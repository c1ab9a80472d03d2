"""ReviewWorld: restaurant reviews, their true score, simulated raters, a learned reward model (layer 2)."""

import copy
from pathlib import Path

import torch

from ..models import TinyLM
from ..tensor_ops import check_token_ids, response_mask
from .grammar import CONTENT_WORDS, MAX_NEW_TOKENS, NOUNS, PAD, PROMPT_LENGTH, STOP, WORD_ID, WORDS
from .lexicon import BOOSTERS, RATINGS
from .reward_model import LearnedRewardModel, fit_reward_model, raters_prefer_first

WEIGHTS = Path(__file__).parent / "weights" / "review.pt"
FRONTIER = WEIGHTS.with_name("review_frontier.json")  # of the policy with these weights; see worlds/build.py
HIGHEST_SCORE = 3.0  # the sum over the words is squashed to between -3 and 3 ...
SCORE_SCALE = 4.0  # ... by 3 tanh(sum / 4): one good word gives about 1.5, two 2.5, three 2.9
REPETITION_COST = 1.5  # in rating units, inside the sum, for each earlier use of the same word
UNSTOPPED_COST = 2.0  # in units of the score, outside it


def new_policy(critic="shared", seed=0):
    """An untrained policy of ReviewWorld's size."""
    return TinyLM(len(WORDS), max_length=PROMPT_LENGTH + MAX_NEW_TOKENS, critic=critic, seed=seed)


class ReviewWorld:
    """Restaurant reviews: prompts like "the soup was", responses of up to 14 tokens that end in a full stop.

    The true score in two sentences: add up the human ratings of the review's words (a booster in front
    strengthens or weakens one), take off 1.5 for each earlier use whenever a noun or adjective is used
    again, and squash the sum to between -3 and 3. A review that never stops loses 2 more.

    Args: weights, path of the pretrained policy (default: the shipped one).
    Attributes: name, words (id -> str), vocab_size, eos_id (the full stop), pad_id, prompt_length,
    max_new_tokens, prompts [10, 3] (all there are; each equally likely).
    Taught in: notebooks/08_training_run.ipynb
    """

    name = "review"
    words = WORDS
    vocab_size = len(WORDS)
    eos_id, pad_id = WORD_ID[STOP], WORD_ID[PAD]
    prompt_length, max_new_tokens = PROMPT_LENGTH, MAX_NEW_TOKENS

    def __init__(self, weights=WEIGHTS):
        self._pretrained = new_policy()
        self._pretrained.load_state_dict(torch.load(weights, weights_only=True))
        nouns = [noun for kind in NOUNS.values() for noun in kind]
        self.prompts = torch.stack([self.encode(f"the {noun} was") for noun in nouns])
        per_word = lambda table: torch.tensor([float(table.get(word, 0.0)) for word in WORDS])
        self._rating, self._booster = per_word(RATINGS), per_word(BOOSTERS)
        self._content = torch.tensor([word in CONTENT_WORDS for word in WORDS])

    def policy(self, critic="shared"):
        """A fresh copy of the pretrained TinyLM; a separate critic starts as a copy of the policy's trunk."""
        if critic == "shared":
            return copy.deepcopy(self._pretrained)
        policy = new_policy(critic)
        policy.load_state_dict(self._pretrained.state_dict(), strict=False)
        policy.critic.load_state_dict(self._pretrained.trunk.state_dict())
        return policy

    def sample_prompts(self, n, generator):
        """n prompts [n, 3], drawn with replacement."""
        _check_count("n", n)
        return self.prompts[torch.randint(len(self.prompts), (n,), generator=generator)]

    def word_scores(self, response_ids):
        """What each word adds to the sentiment, in rating units: [B, T], 0 if unrated or after the full stop.

        rating ± booster: the word before strengthens it ("very") or weakens it ("slightly").
        """
        check_token_ids("response_ids", response_ids, self.vocab_size)
        rating, booster = self._rating[response_ids], self._booster[_shifted(response_ids, 1, self.pad_id)]
        return (rating + rating.sign() * booster) * self._real(response_ids)

    def score_parts(self, prompt_ids, response_ids):
        """What the true score is made of: dict of [B] tensors `sentiment`, `repeats` and `unstopped`.

        sentiment is the sum of `word_scores`; repeats adds up, over the nouns and adjectives of the
        response, how often each was used before (a word used three times adds 0 + 1 + 2; the prompt's noun
        counts as a use); unstopped is 1 without a full stop.
        """
        self._check_batch(prompt_ids, response_ids)
        ids = torch.cat([prompt_ids, response_ids], dim=1)
        content = self._content[response_ids] & self._real(response_ids)
        same = response_ids.unsqueeze(2) == ids.unsqueeze(1)  # [B, T, P+T]
        earlier = torch.ones(same.shape[1:], dtype=torch.bool).tril(prompt_ids.shape[1] - 1)
        return {
            "sentiment": self.word_scores(response_ids).sum(1),
            "repeats": (same & earlier & content.unsqueeze(2)).sum((1, 2)).float(),
            "unstopped": (response_ids != self.eos_id).all(1).float(),
        }

    def true_score(self, prompt_ids, response_ids):
        """The true score of each response: prompt_ids [B, 3], response_ids [B, T] -> [B], float32.

        R = 3 tanh((Σ word scores - 1.5 · repeats) / 4) - 2 · [never stops], so -5 <= R <= 3.
        Only the tokens through the first full stop are read.
        Raises: ValueError for ids outside the vocabulary or different batch sizes.
        Taught in: notebooks/02_rewards.ipynb
        """
        parts = self.score_parts(prompt_ids, response_ids)
        total = parts["sentiment"] - REPETITION_COST * parts["repeats"]
        return HIGHEST_SCORE * torch.tanh(total / SCORE_SCALE) - UNSTOPPED_COST * parts["unstopped"]

    def sample_pairs(self, num_pairs, noise=0.1, seed=0, policy=None):
        """Pairs of responses to the same prompt, and which of the two a noisy rater prefers.

        Args: noise, share of answers that are coin flips, in [0, 1]; policy, default the pretrained one.
        Returns: prompt_ids [n, 3], first [n, T], second [n, T], first_preferred bool [n].
        """
        _check_count("num_pairs", num_pairs)
        generator = torch.Generator().manual_seed(seed)
        policy = self._pretrained if policy is None else policy
        prompt_ids = self.sample_prompts(num_pairs, generator)
        first, second = (
            policy.generate(
                prompt_ids, self.max_new_tokens, eos_id=self.eos_id, pad_id=self.pad_id, generator=generator
            )
            for _ in range(2)
        )
        scores = self.true_score(prompt_ids, first), self.true_score(prompt_ids, second)
        return prompt_ids, first, second, raters_prefer_first(*scores, noise, generator)

    def train_reward_model(
        self, num_pairs=3000, noise=0.1, seed=0, *, d_model=32, extra_pairs=None, held_out=1000
    ):
        """Train a reward model on pairs compared by noisy raters: callable (prompt_ids, response_ids) -> [B].

        Both responses of a pair come from the pretrained policy; on those, the scores have mean 0 and std 1.

        Args: num_pairs >= 1; noise, share of the raters' answers that are coin flips, in [0, 1]; d_model,
        its width; extra_pairs, more to train on, as `sample_pairs` returns them (of a later policy, say);
        held_out, number of further pairs on which `.accuracy` and `.true_accuracy` are measured.
        Returns: LearnedRewardModel, frozen. Source: Christiano et al. 2017; Ouyang et al. 2022.
        Taught in: notebooks/09_reward_hacking.ipynb
        """
        _check_count("held_out", held_out)
        pairs = self.sample_pairs(num_pairs, noise, seed)
        if extra_pairs is not None:
            pairs = tuple(torch.cat([ours, more]) for ours, more in zip(pairs, extra_pairs, strict=True))
        prompt_ids, first, second, chosen = pairs
        model = LearnedRewardModel(self.vocab_size, self.eos_id, self.pad_id, d_model, seed)
        preferred = torch.where(chosen.unsqueeze(1), first, second)
        rejected = torch.where(chosen.unsqueeze(1), second, first)
        fit_reward_model(model, prompt_ids, preferred, rejected, seed=seed, normalise_on=num_pairs)
        model.num_pairs, model.noise = len(prompt_ids), noise
        prompt_ids, first, second, chosen = self.sample_pairs(held_out, noise, seed + 1_000_003)
        says_first = model(prompt_ids, first) > model(prompt_ids, second)
        better = self.true_score(prompt_ids, first) - self.true_score(prompt_ids, second)
        model.accuracy = float((says_first == chosen).float().mean())
        model.true_accuracy = float((says_first == (better > 0))[better != 0].float().mean())
        return model

    def encode(self, text):
        """Words separated by spaces -> ids [L]. Raises: ValueError naming the words that this world lacks."""
        unknown = [word for word in text.split() if word not in WORD_ID]
        if unknown or not text.split():
            raise ValueError(f"text must hold words of this world (world.words), got {unknown or repr(text)}")
        return torch.tensor([WORD_ID[word] for word in text.split()])

    def decode(self, ids):
        """Ids [L] -> text, up to the first full stop, which is written; padding is skipped."""
        ids = torch.as_tensor(ids)
        if ids.dim() != 1:
            raise ValueError(f"ids must be one sequence of shape [L], got shape {tuple(ids.shape)}")
        if len(ids):
            check_token_ids("ids", ids.unsqueeze(0), self.vocab_size)
        ids = ids.tolist()
        end = ids.index(self.eos_id) + 1 if self.eos_id in ids else len(ids)
        return " ".join(WORDS[i] for i in ids[:end] if i != self.pad_id)

    def _real(self, response_ids):
        return response_mask(response_ids, self.eos_id, self.pad_id)

    def _check_batch(self, prompt_ids, response_ids):
        check_token_ids("prompt_ids", prompt_ids, self.vocab_size)
        check_token_ids("response_ids", response_ids, self.vocab_size)
        if len(prompt_ids) != len(response_ids):
            shapes = f"prompt_ids {tuple(prompt_ids.shape)} and response_ids {tuple(response_ids.shape)}"
            raise ValueError(f"{shapes} must have the same number of rows")


def _check_count(name, value):
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer >= 1, got {value!r}")


def _shifted(ids, steps, fill):
    """ids moved `steps` to the right, so that position t holds the token at t - steps."""
    return torch.cat([torch.full_like(ids[:, :steps], fill), ids[:, :-steps]], dim=1)
