"""The names that the handbook chapter uses, frozen: their order, defaults and results."""

import inspect
from dataclasses import MISSING, fields

import pytest
import torch
from numeric import close, random
from stubs import HuggingFaceStyle, perturbed, same, tiny_lm

import ppo_teach as pt

EMPTY = inspect.Parameter.empty


def positional(function):
    """[(name, default)] of what may be given by position, without self."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.default) for p in parameters if p.kind in kinds and p.name != "self"]


def keyword_only(function):
    return {
        p.name: p.default for p in inspect.signature(function).parameters.values() if p.kind == p.KEYWORD_ONLY
    }


def names(text):
    return [(name, EMPTY) for name in text.split()]


CHAPTER = {
    pt.PPOConfig: [
        ("clip_epsilon", 0.2),
        ("kl_coef", 0.1),
        ("value_coef", 0.5),
        ("gamma", 1.0),
        ("lam", 0.95),
    ],
    pt.LanguageModelPPO: names("policy_model ref_model value_model config"),
    pt.LanguageModelPPO.compute_log_probs: names("model input_ids response_ids"),
    pt.LanguageModelPPO.compute_rewards_and_advantages: names(
        "reward_scores log_probs_policy log_probs_ref values"
    ),
    pt.LanguageModelPPO.ppo_loss: names("log_probs_new log_probs_old advantages"),
    pt.LanguageModelPPO.value_loss: names("values returns"),
    pt.MockLanguageModel: [("vocab_size", 1000), ("hidden_dim", 128)],
    pt.MockValueHead: [("hidden_dim", 128)],
    pt.MockRewardModel: [("vocab_size", 1000), ("hidden_dim", 64)],
    pt.run_ppo_training_step: names(
        "policy ref_policy value_head reward_model prompts responses optimizer config"
    ),
}
CONTRACT = {
    pt.masked_mean: names("x") + [("mask", None), ("dim", None)],
    pt.masked_whiten: names("x") + [("mask", None), ("keep_mean", False), ("eps", 1e-8)],
    pt.response_mask: names("response_ids eos_id") + [("pad_id", None)],
    pt.response_log_probs: names("logits response_ids") + [("temperature", 1.0)],
    pt.response_values: names("values response_length"),
    pt.entropy: names("logits"),
    pt.place_scores: names("scores mask"),
    pt.kl_estimate: names("log_probs log_probs_ref") + [("estimator", "k1")],
    pt.shape_rewards: names("scores log_probs log_probs_ref kl_coef") + [("mask", None), ("estimator", "k1")],
    pt.missing_eos_penalty: names("scores response_ids eos_id penalty"),
    pt.RunningMoments: [],
    pt.AdaptiveKLController: names("init_kl_coef target horizon"),
    pt.AdaptiveKLController.update: names("kl_per_response n_steps"),
    pt.discounted_returns: names("rewards gamma") + [("mask", None)],
    pt.td_errors: names("rewards values gamma") + [("mask", None), ("last_value", None)],
    pt.gae: names("rewards values gamma lam") + [("mask", None), ("last_value", None)],
    pt.probability_ratio: names("log_probs_new log_probs_old"),
    pt.clipped_policy_loss: names("log_probs_new log_probs_old advantages clip_epsilon") + [("mask", None)],
    pt.value_loss: names("values returns")
    + [("mask", None), ("values_old", None), ("value_clip_epsilon", None)],
    pt.clip_fraction: names("log_probs_new log_probs_old advantages clip_epsilon") + [("mask", None)],
    pt.ratio_outside_fraction: names("log_probs_new log_probs_old clip_epsilon") + [("mask", None)],
    pt.approx_kl: names("log_probs_new log_probs_old") + [("mask", None), ("estimator", "k3")],
    pt.explained_variance: names("values returns") + [("mask", None)],
    pt.TinyLM: names("vocab_size")
    + [("d_model", 64), ("num_layers", 2), ("num_heads", 4), ("max_length", 32)],
    pt.make_reference: names("policy"),
    pt.train_ppo: names("world") + [("config", pt.PPOConfig())],
    pt.TrainingLog.save: names("path"),
    pt.TrainingLog.load: names("path"),
    pt.TrainingLog.to_csv: names("path"),
}


@pytest.mark.parametrize("function", CHAPTER, ids=lambda f: f.__qualname__)
def test_the_chapters_calls_keep_working(function):
    """Exactly these come first, in this order; whatever else there is has a default."""
    found, wanted = positional(function), CHAPTER[function]
    assert found[: len(wanted)] == wanted
    assert all(default is not EMPTY for _, default in found[len(wanted) :])
    assert EMPTY not in keyword_only(function).values()


@pytest.mark.parametrize("function", CONTRACT, ids=lambda f: f.__qualname__)
def test_the_signatures_of_the_course(function):
    assert positional(function) == CONTRACT[function]
    assert EMPTY not in keyword_only(function).values()


def test_train_ppo_has_its_keywords_and_defaults():
    options = keyword_only(pt.train_ppo)
    wanted = dict(
        policy=None, reward="true", num_updates=60, batch_size=128, seed=0, callback=None, should_stop=None
    )
    assert wanted.items() <= options.items()


def test_config_takes_five_numbers_by_position_and_the_rest_by_name():
    config = pt.PPOConfig(0.1, 0.2, 0.3, 0.4, 0.5)
    assert (config.clip_epsilon, config.kl_coef, config.value_coef, config.gamma, config.lam) == (
        0.1,
        0.2,
        0.3,
        0.4,
        0.5,
    )
    with pytest.raises(TypeError):
        pt.PPOConfig(0.1, 0.2, 0.3, 0.4, 0.5, 4)
    assert all(field.default is not MISSING for field in fields(pt.PPOConfig))
    assert all(field.kw_only for field in fields(pt.PPOConfig)[5:])


def test_the_defaults_beyond_the_chapter():
    defaults = {field.name: field.default for field in fields(pt.PPOConfig)[5:]}
    assert defaults == dict(
        num_epochs=4, num_minibatches=2, learning_rate=5e-4, lr_schedule="constant", adam_eps=1e-8,
        max_grad_norm=1.0, entropy_coef=0.0, value_clip_epsilon=None, value_warmup=0,
        whiten_advantages="batch", kl_estimator="k1", kl_target=None, kl_horizon=10_000, target_kl=None,
        missing_eos_penalty=0.0, bootstrap_truncated=False, temperature=1.0, eos_id=None, pad_id=None,
    )  # fmt: skip


# ---------------------------------------------------------------- the class, as the chapter calls it


def trainer(**config):
    policy = pt.MockLanguageModel(11, 16, seed=0)
    reference = pt.MockLanguageModel(11, 16, seed=1)
    return pt.LanguageModelPPO(policy, reference, pt.MockValueHead(16), pt.PPOConfig(**config))


def test_its_attributes_and_the_frozen_reference():
    ppo = trainer()
    assert isinstance(ppo.policy, pt.MockLanguageModel) and isinstance(ppo.value, pt.MockValueHead)
    assert ppo.config == pt.PPOConfig()
    assert not any(p.requires_grad for p in ppo.ref.parameters()) and not ppo.ref.training
    assert all(p.requires_grad for p in ppo.policy.parameters())


@pytest.mark.parametrize("output", ["tensor", ".logits", "(logits, values)"])
def test_log_probs_from_every_kind_of_model(output):
    make = {
        "tensor": lambda: pt.MockLanguageModel(11, 16, seed=0),
        ".logits": HuggingFaceStyle,
        "(logits, values)": tiny_lm,
    }[output]
    ppo = pt.LanguageModelPPO(make(), perturbed(make()), None, pt.PPOConfig())
    ids = torch.tensor([[3, 4, 5, 6, 7], [1, 2, 9, 9, 0]])
    found = ppo.compute_log_probs(ppo.policy, ids, ids[:, 2:])
    result = ppo.policy.eval()(ids)
    logits = getattr(result, "logits", result[0] if isinstance(result, tuple) else result)
    wanted = torch.stack(
        [logits.log_softmax(-1)[b, [1, 2, 3]].gather(1, ids[b, 2:, None])[:, 0] for b in range(2)]
    )
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert found.shape == (2, 3) and found.requires_grad


def test_log_probs_of_a_plain_function():
    """The chapter asks nothing of a model but that it can be called."""
    ids = torch.tensor([[3, 4, 5, 6]])
    ppo = trainer()
    with torch.no_grad():
        found = ppo.compute_log_probs(lambda everything: ppo.policy(everything), ids, ids[:, 2:])
        wanted = ppo.compute_log_probs(ppo.policy, ids, ids[:, 2:])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_the_temperature_of_the_config_is_used():
    ids = torch.tensor([[3, 4, 5]])
    cold, warm = trainer(temperature=0.5), trainer(temperature=2.0)
    assert (
        cold.compute_log_probs(cold.policy, ids, ids[:, 1:])
        .ne(warm.compute_log_probs(warm.policy, ids, ids[:, 1:]))
        .all()
    )


def test_rewards_advantages_and_losses_are_the_functions():
    ppo = trainer(
        kl_coef=0.3, gamma=0.9, lam=0.8, clip_epsilon=0.1, value_clip_epsilon=0.2, kl_estimator="k3"
    )
    scores, lp, ref, values = random((2,)), random((2, 3), 1), random((2, 3), 2), random((2, 3), 3)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    for m in (None, mask):
        shaped, kl = pt.shape_rewards(scores, lp, ref, 0.3, m, "k3")
        advantages, returns = pt.gae(shaped, values, 0.9, 0.8, m)
        found = ppo.compute_rewards_and_advantages(scores, lp, ref, values, *([] if m is None else [m]))
        assert all(torch.equal(a, b) for a, b in zip(found, (advantages, returns, kl), strict=True))
    close(ppo.ppo_loss(lp, ref, values), pt.clipped_policy_loss(lp, ref, values, 0.1).numpy())
    close(ppo.value_loss(values, lp, values_old=ref), pt.value_loss(values, lp, None, ref, 0.2).numpy())
    assert not any(
        x.requires_grad for x in ppo.compute_rewards_and_advantages(scores, lp.requires_grad_(), ref, values)
    )


def test_whitening_per_call_is_a_choice():
    lp, old, A = random((2, 3)), random((2, 3), 1), 5 + random((2, 3), 2)
    per_call = trainer(whiten_advantages="minibatch").ppo_loss(lp, old, A)
    assert torch.equal(per_call, pt.clipped_policy_loss(lp, old, pt.masked_whiten(A), 0.2))
    assert not torch.isclose(per_call, trainer().ppo_loss(lp, old, A))


def test_what_it_refuses():
    policy = tiny_lm()
    with pytest.raises(ValueError, match="ref_model must not share weights"):
        pt.LanguageModelPPO(policy, policy, None, pt.PPOConfig())
    assert all(p.requires_grad for p in policy.parameters()), "refused before anything is frozen"
    with pytest.raises(ValueError, match="config must be a PPOConfig, got dict"):
        pt.LanguageModelPPO(policy, pt.make_reference(policy), None, {})


def test_the_chapters_own_script_runs():
    """Its three mocks, random responses, one optimizer over policy and head, the five numbers it prints."""
    generator = torch.Generator().manual_seed(0)
    policy, reference = pt.MockLanguageModel(50, 32, seed=0), pt.MockLanguageModel(50, 32, seed=1)
    head, reward = pt.MockValueHead(32), pt.MockRewardModel(50, 16, seed=2)
    optimizer = torch.optim.Adam([*policy.parameters(), *head.parameters()], lr=1e-3)
    prompts, responses = (torch.randint(0, 50, (4, n), generator=generator) for n in (5, 8))
    before = [p.detach().clone() for p in policy.parameters()]
    metrics = pt.run_ppo_training_step(
        policy, reference, head, reward, prompts, responses, optimizer, pt.PPOConfig()
    )
    assert {"policy_loss", "value_loss", "mean_reward", "mean_kl", "mean_ratio"} <= set(metrics)
    assert metrics["mean_reward"] == pytest.approx(
        reward(torch.cat([prompts, responses], 1)).mean().item(), abs=1e-6
    )
    assert not same(before, policy)
