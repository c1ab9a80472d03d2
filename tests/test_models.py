"""The models: shapes, causality, padding, sampling, seeds and refusals."""

import copy
import math
from unittest import mock

import pytest
import torch
from numeric import random
from stubs import ForeignActorCritic, HuggingFaceStyle, parameters_of, same, tiny_lm
from torch import nn

import ppo_teach as pt
from ppo_teach.models import causal_mask, check_separate, logits_and_values, new_value_head, sample_tokens

IDS = torch.tensor([[1, 4, 6, 2, 9], [3, 3, 5, 10, 0]])
critics = pytest.mark.parametrize("critic", ["shared", "separate"])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------- TinyLM


@critics
def test_forward_gives_logits_and_values(critic):
    logits, values = tiny_lm(critic)(IDS)
    assert logits.shape == (2, 5, 11) and values.shape == (2, 5)
    assert torch.isfinite(logits).all() and torch.isfinite(values).all()


@critics
def test_a_batch_of_one_equals_the_row_in_a_batch(critic):
    policy = tiny_lm(critic).double()
    for whole, row in zip(policy(IDS), policy(IDS[1:]), strict=True):
        torch.testing.assert_close(whole[1:], row, rtol=0, atol=1e-12)


@critics
@pytest.mark.parametrize("position", range(5))
def test_a_token_changes_nothing_in_front_of_it(critic, position):
    policy, other = tiny_lm(critic), IDS.clone()
    other[:, position] = 7
    for a, b in zip(policy(IDS), policy(other), strict=True):
        assert torch.equal(a[:, :position], b[:, :position])
        assert not torch.equal(a[:, position], b[:, position]), "it does change its own position"


@critics
@pytest.mark.parametrize("pads", [1, 3])
def test_left_padding_never_moves_a_token(critic, pads):
    policy = tiny_lm(critic).double()
    padded = torch.cat([torch.full((2, pads), 8), IDS], dim=1)
    mask = torch.cat([torch.zeros(2, pads), torch.ones(2, 5)], dim=1)
    for bare, shifted in zip(policy(IDS), policy(padded, mask), strict=True):
        torch.testing.assert_close(shifted[:, pads:], bare, rtol=0, atol=1e-12)
    unaware = policy(padded)[0][:, pads:]
    assert (unaware - policy(IDS)[0]).abs().max() > 1e-3, "without the mask the tokens do move"


def test_rows_padded_differently_in_one_batch():
    policy = tiny_lm().double()
    padded, mask = torch.tensor([[0, 0, 3, 4], [5, 6, 3, 4]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    logits, _ = policy(padded, mask)
    torch.testing.assert_close(logits[0, 2:], policy(torch.tensor([[3, 4]]))[0][0], rtol=0, atol=1e-12)
    torch.testing.assert_close(logits[1], policy(torch.tensor([[5, 6, 3, 4]]))[0][0], rtol=0, atol=1e-12)


def test_what_stands_in_the_padding_is_never_read():
    policy, mask = tiny_lm(), torch.tensor([[0, 0, 1, 1]])
    logits = [policy(torch.tensor([[fill, fill, 3, 4]]), mask)[0][:, 2:] for fill in (0, 9)]
    assert torch.equal(*logits)
    assert torch.isfinite(policy(torch.tensor([[0, 0, 3, 4]]), mask)[0]).all()


def test_value_gradients_reach_the_trunk_only_when_it_is_shared():
    for critic, reaches in (("shared", True), ("separate", False)):
        policy = tiny_lm(critic)
        policy(IDS)[1].sum().backward()
        assert any(p.grad is not None for p in policy.trunk.parameters()) == reaches
    assert any(p.grad is not None for p in policy.critic.parameters())


@critics
def test_a_new_critic_has_no_opinion(critic):
    assert (pt.TinyLM(11, critic=critic)(IDS)[1] == 0).all()


def test_order_matters():
    swapped = IDS[:, [1, 0, 2, 3, 4]]
    assert not torch.allclose(tiny_lm()(IDS)[0][:, -1], tiny_lm()(swapped)[0][:, -1], atol=1e-4)


def test_weights_come_from_the_seed_alone():
    assert same(parameters_of(tiny_lm(seed=3)), tiny_lm(seed=3))
    assert not same(parameters_of(tiny_lm(seed=3)), tiny_lm(seed=4))


@pytest.mark.parametrize("make", [
    lambda: pt.TinyLM(11), lambda: pt.TinyLM(11, critic="separate"), lambda: pt.TablePolicy(3, 4),
    lambda: pt.MockLanguageModel(11, 8, seed=0), lambda: pt.MockRewardModel(11, 8, seed=0),
], ids=["TinyLM", "separate", "TablePolicy", "MockLanguageModel", "MockRewardModel"])  # fmt: skip
def test_building_a_model_leaves_the_global_generator_alone(make):
    before = torch.get_rng_state()
    make()
    assert torch.equal(before, torch.get_rng_state())
    nn.Linear(2, 2)
    assert not torch.equal(before, torch.get_rng_state()), "PyTorch's own way does not"


@pytest.mark.parametrize(("arguments", "match"), [
    (dict(vocab_size=0), "vocab_size must be an integer >= 1, got 0"),
    (dict(vocab_size=2.0), "vocab_size must be an integer"),
    (dict(vocab_size=5, d_model=True), "d_model must be an integer"),
    (dict(vocab_size=5, num_layers=0), "num_layers must be an integer"),
    (dict(vocab_size=5, max_length=-1), "max_length must be an integer"),
    (dict(vocab_size=5, num_heads=0), "num_heads must be an integer"),
    (dict(vocab_size=5, d_model=64, num_heads=3), "num_heads must divide d_model = 64, got 3"),
    (dict(vocab_size=5, critic="own"), "critic must be 'shared' or 'separate', got 'own'"),
])  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(arguments, match):
    with pytest.raises(ValueError, match=match):
        pt.TinyLM(**arguments)


@pytest.mark.parametrize("model", [
    pt.TinyLM(11, max_length=6), pt.MockLanguageModel(11, 8, max_length=6, seed=0), pt.TablePolicy(11, 6),
    pt.MockRewardModel(11, 8, max_length=6, seed=0),
], ids=lambda model: type(model).__name__)  # fmt: skip
def test_ids_that_do_not_fit_are_refused(model):
    for bad in (torch.tensor([[11]]), torch.tensor([[-1, 2]])):
        with pytest.raises(ValueError, match=r"input_ids must hold token ids in \[0, 11\), got ids from"):
            model(bad)
    with pytest.raises(ValueError, match="input_ids of length 7 does not fit: .* 6"):
        model(torch.zeros(1, 7, dtype=torch.long))
    for bad in (
        torch.zeros(1, 0, dtype=torch.long),
        torch.zeros(2, 3),
        torch.zeros(3, dtype=torch.long),
        [[1]],
    ):
        with pytest.raises(ValueError, match="input_ids must"):
            model(bad)


@pytest.mark.parametrize("model", [
    pt.TinyLM(11), pt.MockLanguageModel(11, 8, seed=0), pt.TablePolicy(11, 6),
], ids=lambda model: type(model).__name__)  # fmt: skip
def test_an_attention_mask_of_another_shape_is_refused(model):
    """Also one that holds only ones, or one row for all."""
    ids = torch.full((2, 5), 3)
    for bad in (torch.ones(1, 5), torch.ones(2, 4), torch.tensor([[0, 1, 1, 1, 1]]), torch.zeros(5)):
        with pytest.raises(ValueError, match=r"mask has shape .* but the data has shape \(2, 5\)"):
            model(ids, bad)


# ---------------------------------------------------------------- sampling


def test_tokens_come_with_their_probabilities():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -math.inf])
    tokens, log_probs = sample_tokens(logits.expand(40_000, -1), generator=seeded())
    share = torch.bincount(tokens, minlength=5) / 40_000
    assert (share - logits.softmax(0)).abs().max() < 0.01
    assert torch.equal(log_probs, logits.log_softmax(0)[tokens])


def test_temperature_sharpens_and_is_part_of_the_log_probability():
    logits = torch.tensor([2.0, 1.0, 0.0])
    tokens, log_probs = sample_tokens(logits.expand(20_000, -1), temperature=0.5, generator=seeded())
    share = torch.bincount(tokens, minlength=3) / 20_000
    assert (share - (2 * logits).softmax(0)).abs().max() < 0.015
    torch.testing.assert_close(log_probs, (2 * logits).log_softmax(0)[tokens])
    assert (sample_tokens(logits.expand(100, -1), temperature=1e-3, generator=seeded())[0] == 0).all()


@pytest.mark.parametrize("top_k", [1, 2, 3, 9])
def test_top_k_keeps_the_likeliest_and_reports_the_unfiltered_policy(top_k):
    logits = torch.tensor([0.0, 2.0, 1.0, -1.0])
    tokens, log_probs = sample_tokens(logits.expand(4000, -1), top_k=top_k, generator=seeded())
    assert set(tokens.tolist()) == {1: {1}, 2: {1, 2}, 3: {0, 1, 2}, 9: {0, 1, 2, 3}}[top_k]
    torch.testing.assert_close(log_probs, logits.log_softmax(0)[tokens])


def test_a_forbidden_token_is_never_drawn_not_even_first_or_last():
    logits = torch.tensor([-math.inf, 0.0, -math.inf])
    assert (sample_tokens(logits.expand(10_000, -1), generator=seeded())[0] == 1).all()
    for extreme in (0.0, 1 - 2**-53):  # the ends of what a float64 draw can be
        draw = torch.full((1, 1), extreme, dtype=torch.float64)
        with mock.patch("torch.rand", return_value=draw):
            assert sample_tokens(logits.unsqueeze(0))[0].item() == 1


@pytest.mark.parametrize("logits", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf]], ids=str)
def test_a_policy_that_has_exploded_draws_nothing(logits):
    with pytest.raises(FloatingPointError, match="logits hold NaN or infinity"):
        sample_tokens(torch.tensor([[0.0, 0.0], logits]), generator=seeded())


# ---------------------------------------------------------------- TinyLM.generate


@critics
@pytest.mark.parametrize("padded", [False, True])
def test_the_cache_gives_what_a_full_pass_gives(critic, padded):
    policy = tiny_lm(critic)
    prompts = torch.tensor([[0, 0, 3], [0, 5, 4], [6, 3, 4]])
    mask = (prompts != 0).long() if padded else None
    response, log_probs = policy.generate(
        prompts, 9, attention_mask=mask, generator=seeded(), return_log_probs=True, temperature=0.7
    )
    full = None if mask is None else torch.cat([mask, torch.ones(3, 9).long()], dim=1)
    again = pt.response_log_probs(policy(torch.cat([prompts, response], dim=1), full)[0], response, 0.7)
    assert (again - log_probs).abs().max() < 1e-5


def test_rows_stop_on_their_own_and_hold_the_pad_afterwards():
    policy = tiny_lm()
    prompts = torch.randint(1, 11, (40, 2), generator=seeded(5))
    response, log_probs = policy.generate(
        prompts, 8, eos_id=2, pad_id=0, generator=seeded(), return_log_probs=True
    )
    mask = pt.response_mask(response, 2)
    lengths = mask.sum(1)
    assert len(lengths.unique()) > 3 and (lengths == 8).any()
    assert (response[~mask] == 0).all() and (log_probs[~mask] == 0).all() and (log_probs[mask] < 0).all()
    assert (policy.generate(prompts, 8, eos_id=2, generator=seeded())[~mask] == 2).all(), (
        "the pad defaults to the EOS"
    )


def test_a_finished_row_does_not_disturb_its_neighbours():
    """Without an EOS the same draws give the same tokens, up to where the row stops."""
    policy, prompts = tiny_lm(), torch.randint(1, 11, (20, 2), generator=seeded(5))
    free = policy.generate(prompts, 8, generator=seeded())
    stopping = policy.generate(prompts, 8, eos_id=2, generator=seeded())
    mask = pt.response_mask(free, 2)
    assert torch.equal(free[mask], stopping[mask]) and not mask.all()


def test_the_generator_is_the_only_source_of_randomness():
    policy, before = tiny_lm(), torch.get_rng_state()
    runs = [policy.generate(IDS, 6, generator=seeded(seed)) for seed in (1, 1, 2)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    assert torch.equal(before, torch.get_rng_state())


@critics
def test_generating_works_in_float64_and_with_one_of_everything(critic):
    policy = tiny_lm(critic, vocab_size=3, max_length=2).double()
    response, log_probs = policy.generate(torch.tensor([[1]]), 1, generator=seeded(), return_log_probs=True)
    assert response.shape == log_probs.shape == (1, 1) and log_probs.dtype == torch.float64
    again = pt.response_log_probs(policy(torch.cat([torch.tensor([[1]]), response], 1))[0], response)
    assert (again - log_probs).abs().max() < 1e-12


@pytest.mark.parametrize(("options", "match"), [
    (dict(max_new_tokens=0), "max_new_tokens must be an integer >= 1, got 0"),
    (dict(max_new_tokens=True), "max_new_tokens must be"),
    (dict(max_new_tokens=12), "prompt_ids of length 5 plus 12 new tokens does not fit"),
    (dict(temperature=0.0), "temperature must be"),
    (dict(temperature=math.nan), "temperature must be"),
    (dict(top_k=0), "top_k must be an integer >= 1 or None, got 0"),
    (dict(top_k=1.5), "top_k must be"),
    (dict(prompt_ids=torch.zeros(2, 0, dtype=torch.long)), "prompt_ids must hold at least one token"),
    (dict(prompt_ids=torch.tensor([[11]])), r"prompt_ids must hold token ids in \[0, 11\)"),
    (dict(prompt_ids=torch.zeros(2, 3)), "prompt_ids must be an integer tensor"),
    (dict(attention_mask=torch.ones(2, 4)), r"mask has shape \(2, 4\)"),
    (dict(attention_mask=torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])), "padded on the right.*row 1"),
    (dict(attention_mask=torch.tensor([[0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])), "must not be empty.*row 0"),
])  # fmt: skip
def test_what_cannot_be_generated_is_refused(options, match):
    options = dict(prompt_ids=IDS, max_new_tokens=4) | options
    for generate in (tiny_lm().generate, lambda **o: pt.generate(tiny_lm(), **o)):
        with pytest.raises(ValueError, match=match):
            generate(**options)


# ---------------------------------------------------------------- the other models


def test_a_table_answers_by_position_and_last_token():
    table = pt.TablePolicy(3, 4)
    with torch.no_grad():
        table.logits.copy_(random((4, 3, 3)))
        table.values.copy_(random((4, 3), 1))
    logits, values = table(torch.tensor([[2, 0], [1, 1]]))
    assert torch.equal(logits[0, 0], table.logits[0, 2]) and torch.equal(logits[1, 1], table.logits[1, 1])
    assert torch.equal(values, torch.stack([table.values[0, [2, 1]], table.values[1, [0, 1]]], dim=1))
    shifted = table(torch.tensor([[0, 2, 0]]), torch.tensor([[0, 1, 1]]))[0]
    assert torch.equal(shifted[0, 1:], logits[0])


def test_the_mocks_have_the_shapes_of_the_chapter():
    policy, head, reward = pt.MockLanguageModel(50, 16), pt.MockValueHead(16), pt.MockRewardModel(50, 8)
    ids = torch.randint(0, 50, (3, 7), generator=seeded())
    assert policy(ids).shape == (3, 7, 50) and reward(ids).shape == (3,)
    assert head(torch.randn(3, 7, 16, generator=seeded())).shape == (3, 7)


def test_the_mock_lm_pads_on_the_left_like_the_real_one():
    policy = pt.MockLanguageModel(11, 16, seed=0)
    padded = torch.cat([torch.zeros(2, 2, dtype=torch.long), IDS], dim=1)
    mask = torch.cat([torch.zeros(2, 2), torch.ones(2, 5)], dim=1)
    for mode in (True, False):
        policy.train(mode)
        torch.testing.assert_close(policy(padded, mask)[:, 2:], policy(IDS), rtol=0, atol=1e-5)


def test_the_mock_lm_has_no_dropout_and_sees_order():
    policy = pt.MockLanguageModel(11, 16, seed=0).train()
    assert torch.equal(policy(IDS), policy(IDS))
    assert not torch.allclose(policy(IDS)[:, -1], policy(IDS[:, [1, 0, 2, 3, 4]])[:, -1], atol=1e-4)


def test_the_mock_reward_model_tells_a_text_from_its_reversal():
    ids = torch.randint(0, 50, (8, 6), generator=seeded())
    reward = pt.MockRewardModel(50, 16, seed=0)
    assert (reward(ids) - reward(ids.flip(1))).abs().min() > 1e-4
    pooled = lambda ids: reward.head(reward.embedding(ids).mean(1)).squeeze(-1)  # the chapter's way
    assert (pooled(ids) - pooled(ids.flip(1))).abs().max() < 1e-6


def test_mocks_from_a_seed_are_equal_and_without_one_follow_the_global_generator():
    assert same(parameters_of(pt.MockLanguageModel(9, 8, seed=1)), pt.MockLanguageModel(9, 8, seed=1))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = parameters_of(pt.MockLanguageModel(9, 8))
        assert not same(first, pt.MockLanguageModel(9, 8))
        torch.manual_seed(0)
        assert same(first, pt.MockLanguageModel(9, 8))


# ---------------------------------------------------------------- references, foreign models


@critics
def test_a_reference_is_frozen_equal_and_shares_nothing(critic):
    policy = tiny_lm(critic)
    reference = pt.make_reference(policy)
    assert same(parameters_of(policy), reference) and not reference.training
    assert not any(p.requires_grad for p in reference.parameters())
    assert all(p.requires_grad for p in policy.parameters()) and policy.training
    storages = lambda model: {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert not storages(policy) & storages(reference)
    check_separate(policy, reference)
    with torch.no_grad():
        next(policy.parameters()).add_(1.0)
    assert not same(parameters_of(policy), reference)


def test_shared_storage_is_found_also_behind_a_view():
    policy, other = tiny_lm(), tiny_lm(seed=9)
    with pytest.raises(ValueError, match="ref_model must not share weights with the policy"):
        check_separate(policy, policy)
    other.lm_head.bias = policy.lm_head.bias
    with pytest.raises(ValueError, match="share weights"):
        check_separate(policy, other)
    other.lm_head.bias = nn.Parameter(policy.lm_head.bias.detach()[1:])  # another address, the same memory
    with pytest.raises(ValueError, match="share weights"):
        check_separate(policy, other)
    other.lm_head.bias = nn.Parameter(policy.lm_head.bias.detach().clone())
    check_separate(policy, other)
    empty = [nn.ParameterList([nn.Parameter(torch.empty(0))]) for _ in range(2)]
    check_separate(*empty)


def test_a_value_head_reads_what_the_lm_head_reads():
    policy, head = HuggingFaceStyle(dropout=0.0), pt.MockValueHead(16)
    nn.init.normal_(head.value_head.weight, generator=seeded())
    logits, values = logits_and_values(policy, IDS, head)
    assert logits.shape == (2, 5, 11) and len(policy.calls) == 1, "one pass gives both"
    hidden = {}
    policy.head.register_forward_pre_hook(lambda module, inputs: hidden.setdefault("x", inputs[0]))
    policy(IDS)
    torch.testing.assert_close(values, head(hidden["x"]))
    hooks = len(policy.head._forward_pre_hooks)
    logits_and_values(policy, IDS, head)
    assert len(policy.head._forward_pre_hooks) == hooks, "the hook is taken off again"


def test_only_a_policy_without_values_gets_a_value_head():
    assert new_value_head(tiny_lm(), IDS) is None and new_value_head(pt.TablePolicy(11, 5), IDS) is None
    for policy in (pt.MockLanguageModel(11, 24, seed=0), HuggingFaceStyle(width=24)):
        head = new_value_head(policy, IDS)
        assert isinstance(head, pt.MockValueHead) and head(torch.ones(2, 24)).tolist() == [0.0, 0.0]
    assert (
        new_value_head(pt.MockLanguageModel(11, 8, seed=0).double(), IDS).value_head.weight.dtype
        == torch.float64
    )


def test_what_a_foreign_model_must_bring_is_said():
    with pytest.raises(ValueError, match="value_head must be given: this policy returns logits only"):
        logits_and_values(pt.MockLanguageModel(11, 8, seed=0), IDS)

    class Headless(nn.Module):
        def forward(self, input_ids):
            return torch.zeros(*input_ids.shape, 11)

    with pytest.raises(ValueError, match="Headless must have an lm_head"):
        logits_and_values(Headless(), IDS, pt.MockValueHead(8))
    with pytest.raises(
        ValueError, match="prompts are padded, but ForeignActorCritic.forward takes no attention_mask"
    ):
        logits_and_values(ForeignActorCritic(), IDS, None, torch.tensor([[0, 1, 1, 1, 1]] * 2))


def test_positions_are_passed_to_a_model_that_takes_them():
    policy = HuggingFaceStyle(dropout=0.0)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    logits, _ = logits_and_values(policy, IDS, pt.MockValueHead(16), mask)
    assert policy.calls[-1]["position_ids"].tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]
    torch.testing.assert_close(logits[0, 2:], policy(IDS[:1, 2:]).logits[0], rtol=0, atol=1e-5)


def test_the_causal_mask_lets_a_padded_row_read_itself_only():
    assert causal_mask(3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]
    padded = causal_mask(3, torch.tensor([[0, 1, 1]]))[0]
    assert padded.tolist() == [[True, False, False], [False, True, False], [False, True, True]]


def test_a_deep_copy_of_a_policy_is_a_policy():
    policy = tiny_lm("separate")
    assert torch.equal(copy.deepcopy(policy)(IDS)[1], policy(IDS)[1])
