"""Simulated raters and the reward model that is learned from their choices (layer 1)."""

import torch
import torch.nn.functional as F
from torch import nn

from ..tensor_ops import check_number, check_same_shape, response_mask, single_thread


def raters_prefer_first(score_first, score_second, noise, generator):
    """Which of two responses each rater prefers: bool [n], True = the first.

    A rater chooses the first with probability σ(R₁ - R₂); but a share `noise` of the answers, in [0, 1], is a coin
    flip instead: P(first) = (1 - noise) σ(R₁ - R₂) + noise / 2. With noise = 1 the answers say nothing.

    Args: score_first, score_second [n], true scores.
    Source: Bradley and Terry 1952 for σ(R₁ - R₂); label noise as in Gao et al. 2022.
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

    Each token is read together with the two before it ("not very good"), in one hidden layer; the results are added
    up over the real tokens and weighed. `fit` shifts and scales the output to mean 0, standard deviation 1
    on samples of the reference policy.

    Attributes after training: num_pairs, noise, accuracy (share of held-out rater choices that it predicts),
    true_accuracy (share of held-out pairs it ranks as the true score does), score_range (lowest and highest score
    among the training responses: outside it, the model extrapolates).
    Taught in: notebooks/02_rewards.ipynb
    """

    def __init__(self, vocab_size, eos_id, pad_id, d_model=32, seed=0):
        super().__init__()
        if isinstance(d_model, bool) or not isinstance(d_model, int) or d_model < 1:
            raise ValueError(f"d_model must be an integer >= 1, got {d_model!r}")
        self.vocab_size, self.eos_id, self.pad_id = vocab_size, eos_id, pad_id
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.read = nn.Linear(3 * d_model, 2 * d_model)
        self.score = nn.Linear(2 * d_model, 1, bias=False)
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("std", torch.ones(()))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self.parameters():
                weight.normal_(0.0, weight.shape[-1] ** -0.5, generator=generator)
            self.read.bias.zero_()

    def forward(self, prompt_ids, response_ids):
        mask = response_mask(response_ids, self.eos_id, self.pad_id)
        x = self.embedding(torch.cat([prompt_ids, response_ids], dim=1))
        T = response_ids.shape[1]
        x = F.pad(x, (0, 0, 2, 0))
        window = torch.cat([x[:, -T - 2 : -2], x[:, -T - 1 : -1], x[:, -T:]], dim=-1)
        hidden = torch.relu(self.read(window)) * mask.unsqueeze(-1)
        return (self.score(hidden.sum(1)).squeeze(-1) - self.mean) / self.std


def fit_reward_model(model, prompt_ids, preferred, rejected, *, num_epochs=10, learning_rate=3e-3, seed=0):
    """Train the model on pairs by Bradley-Terry, then normalise it to mean 0, std 1 on all the responses.

    Args: prompt_ids [n, P]; preferred, rejected [n, T].
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
    scores = torch.cat([model(prompt_ids, preferred), model(prompt_ids, rejected)])
    model.mean.copy_(scores.mean())
    model.std.copy_(scores.std(unbiased=False).clamp(min=1e-6))
    scores = (scores - model.mean) / model.std
    model.score_range = (float(scores.min()), float(scores.max()))
    return model
