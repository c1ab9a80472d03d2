"""ChainWorld: a world so small that every response can be listed and every answer is exact (layer 2)."""

import copy
import itertools
from pathlib import Path

import torch
import torch.nn.functional as F

from ..models import TablePolicy, TinyLM, sample_tokens
from ..tensor_ops import check_token_ids, response_mask, single_thread
from .reward_model import LearnedRewardModel, fit_reward_model, raters_prefer_first

WEIGHTS = Path(__file__).parent / "weights" / "chain.pt"
MAX_RESPONSES = 100_000  # per prompt: all of them are listed in about a second


class ChainWorld:
    """Words a, b, c, d and EOS; a response of at most T tokens; a reward that adds up over transitions.

    R(x, y) = Σ_t r(s_{t-1}, s_t), from the prompt's word through the first EOS. With reward="transitions":
    "a" is the bait (a small reward now), b -> c -> d the ladder (first a loss, the prize on its last step);
    stopping on d pays a second prize, going on costs more than it brings. Whoever takes the best next reward
    answers "a" by "a a a a a a"; the best answer is "a a b c d <eos>", and to "d" it is to stop at once.
    With reward="tokens" each word has a value of its own, whatever stands before it.

    Args:
        num_tokens: K, words besides EOS (V = K + 1). max_new_tokens: T. reward: "transitions" or "tokens".
        seed: 0 is the world of the notebooks; any other seed jitters its rewards and its chain.
    Attributes: name, vocab_size, eos_id, pad_id (the same id), prompt_length, max_new_tokens, words,
        reward_table [V, V] and chain [V, V] (probabilities), both indexed [last token, next token].
    Raises: ValueError for sizes below 1, an unknown reward, or more than 100,000 responses a prompt.
    Taught in: notebooks/04_how_far.ipynb
    """

    name, eos_id, pad_id, prompt_length = "chain", 0, 0, 1

    def __init__(self, *, num_tokens=4, max_new_tokens=6, reward="transitions", seed=0):
        _check_count("num_tokens", num_tokens, 26)  # one letter each
        _check_count("max_new_tokens", max_new_tokens, 64)
        if reward not in ("transitions", "tokens"):
            raise ValueError(f"reward must be 'transitions' or 'tokens', got {reward!r}")
        self.num_responses = sum(num_tokens**t for t in range(max_new_tokens + 1))
        if self.num_responses > MAX_RESPONSES:
            given = f"num_tokens {num_tokens} with max_new_tokens {max_new_tokens} gives {self.num_responses}"
            raise ValueError(f"{given} responses to a prompt, at most {MAX_RESPONSES} are allowed")
        self.vocab_size, self.max_new_tokens = num_tokens + 1, max_new_tokens
        self.words = ("<eos>", *(chr(ord("a") + i) for i in range(num_tokens)))
        self.reward_table = (_transition_rewards if reward == "transitions" else _token_rewards)(num_tokens)
        weights = _chain_weights(num_tokens)
        if seed != 0:
            generator = torch.Generator().manual_seed(seed)
            self.reward_table += 0.1 * torch.randint(-2, 3, self.reward_table.shape, generator=generator)
            weights *= torch.exp(0.3 * torch.randn(weights.shape, generator=generator))
        self.chain = weights / weights.sum(1, keepdim=True)
        self._is_default = (num_tokens, max_new_tokens, seed) == (4, 6, 0)
        self._pretrained = None

    def policy(self, critic="shared"):
        """A fresh copy of the pretrained `TinyLM`: 26k parameters, trained on 100,000 samples of the chain.

        The default sizes come with their weights; others are pretrained at the first call, in seconds.
        critic="separate": the critic's own trunk starts as a copy of the policy's.
        """
        if self._pretrained is None and self._is_default:
            self._pretrained = _new_model(self)
            self._pretrained.load_state_dict(torch.load(WEIGHTS, weights_only=True))
        elif self._pretrained is None:
            self._pretrained = pretrain_chain_policy(self)
        if critic == "shared":
            return copy.deepcopy(self._pretrained)
        policy = _new_model(self, critic)
        policy.load_state_dict(self._pretrained.state_dict(), strict=False)
        policy.critic.load_state_dict(self._pretrained.trunk.state_dict())
        return policy

    @torch.no_grad()
    def table_policy(self):
        """The reference chain itself, exactly, as a `TablePolicy` (values 0)."""
        table = TablePolicy(self.vocab_size, 1 + self.max_new_tokens)
        table.logits.copy_(self.chain.log().expand_as(table.logits))
        return table

    def prompts(self):
        """All prompts [N, 1]: each word once."""
        return torch.arange(1, self.vocab_size).unsqueeze(1)

    def sample_prompts(self, n, generator=None):
        """n prompts [n, 1], every word equally likely. Raises: ValueError for n < 1."""
        _check_count("n", n)
        return torch.randint(1, self.vocab_size, (n, 1), generator=generator)

    def responses(self):
        """Every possible response: (response_ids [M, T], mask [M, T]), shorter first, then alphabetically.

        So row 0 stops at once, and the last K^T rows are those cut off after T words, without EOS.
        """
        words, T = range(1, self.vocab_size), self.max_new_tokens
        sentences = (s for length in range(T + 1) for s in itertools.product(words, repeat=length))
        response_ids = torch.tensor([s + (self.eos_id,) * (T - len(s)) for s in sentences])
        return response_ids, response_mask(response_ids, self.eos_id)

    def true_score(self, prompt_ids, response_ids):
        """R(x, y) = Σ_t r(s_{t-1}, s_t) through the first EOS: [B, 1], [B, T] -> [B], a few units."""
        check_token_ids("prompt_ids", prompt_ids, self.vocab_size)
        check_token_ids("response_ids", response_ids, self.vocab_size)
        if len(prompt_ids) != len(response_ids):
            shapes = f"prompt_ids {tuple(prompt_ids.shape)} and response_ids {tuple(response_ids.shape)}"
            raise ValueError(f"{shapes} must have the same number of rows")
        last = torch.cat([prompt_ids[:, -1:], response_ids[:, :-1]], dim=1)
        return (self.reward_table[last, response_ids] * response_mask(response_ids, self.eos_id)).sum(1)

    def train_reward_model(self, num_pairs=1000, noise=0.1, seed=0):
        """A reward model learned from noisy raters, as in ReviewWorld: (prompt_ids, response_ids) -> [B].

        They compare two responses of the chain; a share `noise` of their answers, in [0, 1], are coin flips.
        """
        generator = torch.Generator().manual_seed(seed)
        prompts = self.sample_prompts(num_pairs, generator)
        first, second = sample_chain(self, prompts, generator), sample_chain(self, prompts, generator)
        scores = self.true_score(prompts, first), self.true_score(prompts, second)
        chosen = raters_prefer_first(*scores, noise, generator).unsqueeze(1)
        preferred, rejected = torch.where(chosen, first, second), torch.where(chosen, second, first)
        model = LearnedRewardModel(self.vocab_size, self.eos_id, self.pad_id, d_model=16, seed=seed)
        return fit_reward_model(model, prompts, preferred, rejected, num_epochs=20, seed=seed)

    def decode(self, ids):
        """Ids [L] -> "a b c d <eos>", through the first EOS; a response that was cut off shows none."""
        check_token_ids("ids", torch.as_tensor(ids).unsqueeze(0), self.vocab_size)
        ids = torch.as_tensor(ids).tolist()
        end = ids.index(self.eos_id) + 1 if self.eos_id in ids else len(ids)
        return " ".join(self.words[i] for i in ids[:end])


def _check_count(name, value, most=10**9):
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{name} must be an integer in [1, {most}], got {value!r}")


def _transition_rewards(K):
    """r(last, next) of the default world: row and column 0 are EOS, 1 the bait, 2 ... K the ladder."""
    table = torch.full((K + 1, K + 1), -0.5)
    table[:, 1] = 0.0  # the bait,
    table[1, 1], table[1, 0] = 0.3, 0.0  # which is sweetest when repeated
    if K == 1:
        return table
    table[:, 2:] = torch.linspace(-0.5, -1.5, K - 1)  # jumping onto the ladder: the higher, the dearer
    for word in range(2, K):
        table[word, word + 1] = -0.1
    table[K - 1, K], table[K, 0] = 1.5, 1.5  # the last step, and stopping there
    table[K, 1:] -= 1.3  # no good way on from the top
    return table


def _token_rewards(K):
    """One value per word, from -0.5 (a) up to 1 (the last word); stopping is worth 0."""
    return torch.cat([torch.zeros(1), torch.linspace(1.0, -0.5, K).flip(0)]).repeat(K + 1, 1)


def _chain_weights(K):
    """The reference, before normalising: fond of "a", not of repeating other words, blind to the reward."""
    weights = torch.ones(K + 1, K + 1)
    weights[:, 1], weights[1, 1] = 2.5, 3.0
    weights.diagonal()[2:] = 0.7
    return weights


@torch.no_grad()
def sample_chain(world, prompt_ids, generator):
    """Responses of the reference chain: [B, 1] -> [B, T], padded after the first EOS."""
    last, running, response = prompt_ids[:, -1], torch.ones(len(prompt_ids), dtype=torch.bool), []
    for _ in range(world.max_new_tokens):
        tokens, _ = sample_tokens(world.chain.log()[last], generator=generator)
        last = tokens.masked_fill(~running, world.pad_id)
        running = running & (last != world.eos_id)
        response.append(last)
    return torch.stack(response, dim=1)


def _new_model(world, critic="shared"):
    return TinyLM(world.vocab_size, d_model=32, max_length=1 + world.max_new_tokens, critic=critic)


def pretrain_chain_policy(world, num_steps=400, batch_size=256, learning_rate=3e-3, seed=0):
    """A `TinyLM` trained to continue prompts as the chain does, by next-token prediction on fresh samples."""
    generator, model = torch.Generator().manual_seed(seed), _new_model(world)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    with single_thread():
        for step in range(num_steps):
            optimizer.param_groups[0]["lr"] = learning_rate * (1 - step / num_steps)
            prompts = world.sample_prompts(batch_size, generator)
            responses = sample_chain(world, prompts, generator)
            real = response_mask(responses, world.eos_id)
            logits, _ = model(torch.cat([prompts, responses[:, :-1]], dim=1))
            loss = F.cross_entropy(logits[real], responses[real])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model

