"""Small models and worlds with known behaviour, for the tests of the training path."""

import copy
from types import SimpleNamespace

import torch
from torch import nn

from ppo_teach import TinyLM


def tiny_lm(critic="shared", vocab_size=11, max_length=16, seed=0, **sizes):
    """An untrained TinyLM whose value head is not 0, so that a value read at the wrong place shows."""
    sizes = dict(d_model=16, num_layers=2, num_heads=2) | sizes
    policy = TinyLM(vocab_size, max_length=max_length, critic=critic, seed=seed, **sizes)
    with torch.no_grad():
        policy.value_head.weight.normal_(generator=torch.Generator().manual_seed(seed + 1))
    return policy


def perturbed(policy, scale=0.1, seed=7):
    """A copy with noise on every parameter."""
    other, generator = copy.deepcopy(policy), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.requires_grad_(True)
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return other


class HuggingFaceStyle(nn.Module):
    """A model of somebody else: `.logits` on the output, tied embeddings, dropout, position_ids."""

    def __init__(self, vocab_size=11, width=16, dropout=0.1, seed=0):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.wte, self.wpe = nn.Embedding(vocab_size, width), nn.Embedding(32, width)
            self.wte.weight.data *= (
                0.2  # with tied weights, larger ones make a policy that is certain from the start
            )
            self.block = nn.TransformerEncoderLayer(width, 2, 32, dropout=dropout, batch_first=True)
            self.head = nn.Linear(width, vocab_size, bias=False)
        self.head.weight = self.wte.weight
        self.calls = []  # the keyword arguments it was given

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, logits_to_keep=0, **kwargs):
        given = dict(attention_mask=attention_mask, position_ids=position_ids, logits_to_keep=logits_to_keep)
        self.calls.append(given | kwargs)
        B, L = input_ids.shape
        allowed = torch.ones(L, L, dtype=torch.bool).tril().expand(B, L, L)
        if attention_mask is not None:
            assert attention_mask.shape == (B, L) and attention_mask.dtype == torch.long
            allowed = (allowed & (attention_mask != 0).unsqueeze(1)) | torch.eye(L, dtype=torch.bool)
        positions = torch.arange(L) if position_ids is None else position_ids
        x = self.wte(input_ids) + self.wpe(positions)
        x = self.block(x, src_mask=~allowed.repeat_interleave(2, dim=0))
        return SimpleNamespace(logits=self.head(x[:, -logits_to_keep:]), past_key_values=None)


class ForeignActorCritic(nn.Module):
    """Returns (logits, values), knows nothing of padding, and has dropout layers that are on."""

    def __init__(self, vocab_size=11, width=16, seed=0):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding, self.positions = nn.Embedding(vocab_size, width), nn.Embedding(32, width)
            self.mix = nn.GRU(width, width, batch_first=True)
            self.dropout = nn.Dropout(0.5)
            self.lm_head, self.value_head = nn.Linear(width, vocab_size), nn.Linear(width, 1)

    def forward(self, input_ids):
        x = self.embedding(input_ids) + self.positions.weight[: input_ids.shape[1]]
        x = self.dropout(self.mix(self.dropout(x))[0])
        return self.lm_head(x), self.value_head(x).squeeze(-1)


class ProbeWorld:
    """A world of one prompt, and a reward that is a function of the response: its answer can be known."""

    name, prompt_length, eos_id, pad_id = "probe", 1, None, 0

    def __init__(self, num_tokens, length, reward):
        self.vocab_size, self.max_new_tokens, self.reward = num_tokens, length, reward

    def policy(self):
        return TinyLM(
            self.vocab_size, d_model=16, num_layers=1, num_heads=2, max_length=1 + self.max_new_tokens
        )

    def sample_prompts(self, n, generator):
        return torch.zeros(n, 1, dtype=torch.long)

    def true_score(self, prompt_ids, response_ids):
        return self.reward(response_ids).float()

    def decode(self, ids):
        return " ".join(map(str, ids.tolist()))


def parameters_of(*models):
    """A copy of every parameter, to compare with later."""
    return [parameter.detach().clone() for model in models for parameter in model.parameters()]


def same(before, *models):
    """Whether the parameters are bit-equal to what `parameters_of` saw."""
    now = [parameter for model in models for parameter in model.parameters()]
    return len(before) == len(now) and all(torch.equal(a, b) for a, b in zip(before, now, strict=True))
