"""Simulated raters and the reward model that is learned from their choices (layer 1)."""

import torch
import torch.nn.functional as F
from torch import nn

from ..tensor_ops import check_number, check_same_shape, check_token_ids, response_mask, single_thread


def raters_prefer_first(score_first, score_second, noise, generator):
    """Which of two responses each rater prefers: bool [n], True = the first.

    A rater chooses the first with probability σ(R₁ - R₂); but a share `noise` of the answers, in [0, 1], is
    a coin flip: P(first) = (1 - noise) σ(R₁ - R₂) + noise / 2. With noise = 1 the answers say nothing.

    Args: score_first, score_second [n], true scores.
    Source: Bradley and Terry 1952 for σ(R₁ - R₂).
    Taught in: notebooks/02_rewards.ipynb
    """
    check_same_shape(score_first=score_first, score_second=score_second)
    check_number("noise", noise, low=0.0, high=1.0)
    chance = (1 - noise) * torch.sigmoid(score_first - score_second) + noise / 2
    return torch.rand(chance.shape, generator=generator) < chance


def bradley_terry_loss(score_preferred, score_rejected):
    """-log σ(r_preferred - r_rejected), mean over pairs: the negative log-likelihood of the raters' choices.

    Only differences matter: adding a constant to every score changes nothing.
    Args: two [n] tensors. Raises: ValueError when the shapes differ.
    Source: Bradley and Terry 1952; as reward-model loss, Ouyang et al. 2022, equation 1.
    Taught in: notebooks/02_rewards.ipynb
    """
    check_same_shape(score_preferred=score_preferred, score_rejected=score_rejected)
    return -F.logsigmoid(score_preferred - score_rejected).mean()


class LearnedRewardModel(nn.Module):
    """A small network that scores a review: (prompt_ids [B, P], response_ids [B, T]) -> [B].

    It reads each word together with the two before it, in one hidden layer, and adds up what they say over
    the real tokens, divided by √(number of tokens). Normalised by `fit_reward_model` to mean 0 and standard
    deviation 1.

    Args: vocab_size, eos_id, pad_id; d_model, its width; seed of the initial weights.
    Attributes after `train_reward_model`: num_pairs, noise, accuracy (share of held-out rater choices it
    predicts), true_accuracy (share of held-out pairs it ranks as the true score does), score_range (lowest
    and highest score of the responses it was trained on: outside it, the model extrapolates).
    Raises: ValueError for ids outside the vocabulary or different batch sizes.
    Taught in: notebooks/02_rewards.ipynb
    """

    def __init__(self, vocab_size, eos_id, pad_id, d_model=32, seed=0):
        super().__init__()
        if isinstance(d_model, bool) or not isinstance(d_model, int) or d_model < 1:
            raise ValueError(f"d_model must be an integer >= 1, got {d_model!r}")
        self.vocab_size, self.eos_id, self.pad_id = vocab_size, eos_id, pad_id
        self.score_range = None
        with torch.random.fork_rng(devices=[]):  # a seed of its own, and the global generator stays as it was
            torch.manual_seed(seed)
            self.word = nn.Embedding(vocab_size, d_model)
            self.read = nn.Linear(3 * d_model, 2 * d_model)
            self.judge = nn.Linear(2 * d_model, 1, bias=False)
            nn.init.normal_(self.word.weight, std=d_model**-0.5)
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("std", torch.ones(()))

    def forward(self, prompt_ids, response_ids):
        said, weight = self._read(prompt_ids, response_ids)
        return (self.judge(said.sum(1) * weight).squeeze(-1) - self.mean) / self.std

    @torch.no_grad()
    def word_scores(self, prompt_ids, response_ids):
        """What each word adds to the score, in its units: [B, T], 0 at padding; sums to score + mean / std.

        Taught in: notebooks/09_reward_hacking.ipynb
        """
        said, weight = self._read(prompt_ids, response_ids)
        return self.judge(said).squeeze(-1) * weight / self.std

    def _read(self, prompt_ids, response_ids):
        """What the hidden layer makes of each word, [B, T, 2 d_model], 0 at padding; 1 / √(real tokens), [B, 1]."""
        check_token_ids("prompt_ids", prompt_ids, self.vocab_size)
        check_token_ids("response_ids", response_ids, self.vocab_size)
        if len(prompt_ids) != len(response_ids):
            shapes = f"prompt_ids {tuple(prompt_ids.shape)} and response_ids {tuple(response_ids.shape)}"
            raise ValueError(f"{shapes} must have the same number of rows")
        real = response_mask(response_ids, self.eos_id, self.pad_id)
        T = response_ids.shape[1]
        x = self.word(torch.cat([prompt_ids, response_ids], dim=1))
        x = F.pad(x, (0, 0, 2, 0))  # two empty places in front
        two_before, before, itself = x[:, -T - 2 : -2], x[:, -T - 1 : -1], x[:, -T:]
        said = torch.relu(self.read(torch.cat([two_before, before, itself], dim=-1)))
        return said * real.unsqueeze(2), real.sum(1, keepdim=True) ** -0.5


def fit_reward_model(
    model, prompt_ids, preferred, rejected, *, num_epochs=6, learning_rate=3e-3, seed=0, normalise_on=None
):
    """Train the model on comparisons by Bradley-Terry; then freeze and normalise it.

    Args: prompt_ids [n, P]; preferred, rejected [n, T]; normalise_on: the first so many pairs set the mean
    and the standard deviation (default all). Returns: the same model, with `score_range` filled in.
    Source: Ouyang et al. 2022; normalised as in Stiennon et al. 2020.
    Taught in: notebooks/02_rewards.ipynb
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
    with single_thread():
        for _ in range(num_epochs):
            for rows in torch.randperm(len(prompt_ids), generator=generator).split(128):
                loss = bradley_terry_loss(
                    model(prompt_ids[rows], preferred[rows]), model(prompt_ids[rows], rejected[rows])
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        model.requires_grad_(False)
        scores = torch.stack([model(prompt_ids, preferred), model(prompt_ids, rejected)])  # [2, n]
    model.mean.copy_(scores[:, :normalise_on].mean())
    model.std.copy_(scores[:, :normalise_on].std(unbiased=False).clamp(min=1e-6))
    scores = (scores - model.mean) / model.std
    model.score_range = (float(scores.min()), float(scores.max()))
    return model
