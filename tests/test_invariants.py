"""What must hold in every run, whatever the model: parity, rest before a step, conservation, isolation."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from numeric import random
from stubs import ForeignActorCritic, HuggingFaceStyle, ProbeWorld, parameters_of, perturbed, same, tiny_lm

import ppo_teach as pt
from ppo_teach import train
from ppo_teach.models import logits_and_values
from ppo_teach.train import minibatch_loss, ppo_epochs, shaped_advantages

ROOT = Path(pt.__file__).parents[1]
PROMPTS = torch.tensor(
    [[0, 0, 3], [0, 5, 4], [6, 3, 4], [7, 8, 9], [1, 1, 1], [0, 0, 9], [4, 4, 1], [0, 3, 3]]
)
MASK = PROMPTS != 0
EOS, PAD, T = 2, 0, 6


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def score(prompt_ids, response_ids):
    return response_ids.float().mean(1) - 4.0


def mock_pair():
    return pt.MockLanguageModel(11, 16, seed=0), pt.MockValueHead(16)


MODELS = {
    "TinyLM, shared critic": lambda: (tiny_lm(), None),
    "TinyLM, separate critic": lambda: (tiny_lm("separate"), None),
    "mocks": mock_pair,
    "Hugging Face style": lambda: (HuggingFaceStyle(dropout=0.5), pt.MockValueHead(16)),
    "foreign, unpadded": lambda: (ForeignActorCritic(seed=2), None),
}
models = pytest.mark.parametrize("name", MODELS)


def setting(name, temperature=1.0, **config):
    """Policy in train mode, its head, an optimizer, a reference that differs, a rollout, the config."""
    policy, head = MODELS[name]()
    policy.train()
    prompts, mask = (PROMPTS.clamp(min=1), None) if name == "foreign, unpadded" else (PROMPTS, MASK)
    reference = pt.make_reference(perturbed(policy, 0.2))
    rollout = pt.collect_rollout(
        policy,
        reference,
        prompts,
        score,
        T,
        eos_id=EOS,
        pad_id=PAD,
        prompt_mask=mask,
        value_head=head,
        temperature=temperature,
        generator=seeded(1),
    )
    parameters = [p for model in (policy, head) if model is not None for p in model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    return policy, head, optimizer, reference, rollout, pt.PPOConfig(temperature=temperature, **config)


def updates(policy, head, optimizer, rollout, config):
    """The metrics of each step; the advantages of the rollout."""
    advantages, returns, _ = shaped_advantages(rollout, config, eos_id=EOS)
    return ppo_epochs(policy, head, optimizer, rollout, advantages, returns, config, seeded(2)), advantages


# ---------------------------------------------------------------- parity, and rest before the first step


@models
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_sampler_and_the_training_path_agree_on_every_token(name, temperature):
    policy, head, _, _, rollout, _ = setting(name, temperature)
    options = dict(eos_id=EOS, pad_id=PAD, temperature=temperature, return_log_probs=True)
    mask = None if name == "foreign, unpadded" else rollout.prompt_mask
    response, sampled = pt.generate(
        policy, rollout.prompt_ids, T, attention_mask=mask, generator=seeded(1), **options
    )
    assert torch.equal(response, rollout.response_ids)
    policy.eval()
    logits, _ = logits_and_values(policy, rollout.input_ids, head, rollout.attention_mask)
    trained = pt.response_log_probs(logits, response, temperature)
    for other in (sampled, rollout.log_probs_old):
        assert (trained - other)[rollout.mask].abs().max() < 1e-5
    assert (pt.response_log_probs(logits, response, temperature + 0.1) - sampled)[
        rollout.mask
    ].abs().max() > 1e-3


@models
@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_before_the_first_step_the_ratio_is_one_and_nothing_is_clipped(name, temperature):
    policy, head, optimizer, _, rollout, config = setting(name, temperature, num_minibatches=1)
    steps, _ = updates(policy, head, optimizer, rollout, config)
    first, second = next(steps), next(steps)
    assert policy.training, "the trainer left the mode alone"
    assert first["mean_ratio"] == pytest.approx(1.0, abs=1e-5) and first["max_ratio"] == pytest.approx(
        1.0, abs=1e-5
    )
    assert first["approx_kl"] == pytest.approx(0.0, abs=1e-9)
    assert first["clip_fraction"] == first["ratio_outside_fraction"] == 0.0
    assert first["policy_loss"] == pytest.approx(0.0, abs=1e-5), "whitened advantages have mean 0"
    assert abs(second["max_ratio"] - 1) > 1e-3 and second["approx_kl"] > 1e-9, "after a step they do move"


def test_dropout_in_the_update_would_show(monkeypatch):
    policy, head, optimizer, _, rollout, config = setting("foreign, unpadded", num_minibatches=1)
    monkeypatch.setattr(train, "dropout_off", lambda *modules: torch.enable_grad())
    first = next(updates(policy, head, optimizer, rollout, config)[0])
    assert first["max_ratio"] > 1.01 and first["ratio_outside_fraction"] > 0


@models
def test_advantages_are_whitened_over_the_rollout(name):
    *_, rollout, config = setting(name)
    advantages, returns, _ = shaped_advantages(rollout, config, eos_id=EOS)
    real = rollout.mask
    assert abs(pt.masked_mean(advantages, real)) < 1e-6
    assert pt.masked_mean(advantages**2, real).item() == pytest.approx(1.0, abs=1e-4)
    raw, raw_returns, _ = shaped_advantages(rollout, pt.PPOConfig(whiten_advantages="none"), eos_id=EOS)
    assert abs(pt.masked_mean(raw, real)) > 1e-3 and torch.equal(returns, raw_returns)
    torch.testing.assert_close(raw_returns[real], (raw + rollout.values_old)[real])


@models
def test_shaped_rewards_add_up_to_the_regularised_objective(name):
    *_, rollout, config = setting(name)
    shaped, kl = pt.shape_rewards(
        rollout.scores, rollout.log_probs_old, rollout.log_probs_ref, 0.3, rollout.mask
    )
    log_ratio = (rollout.log_probs_old - rollout.log_probs_ref) * rollout.mask
    torch.testing.assert_close(shaped.sum(1), rollout.scores - 0.3 * log_ratio.sum(1), rtol=0, atol=1e-5)
    assert (
        log_ratio.sum(1).abs().min() > 1e-4
        and (shaped[~rollout.mask] == 0).all()
        and (kl[~rollout.mask] == 0).all()
    )


# ---------------------------------------------------------------- the expected ratio


def test_the_old_policy_expects_a_ratio_of_one_whatever_the_new_one_is():
    """Σ_y π_old(y) ρ(y) = 1 by enumeration, and the same token by token; clipped ratios have another mean."""
    world = pt.ChainWorld(num_tokens=3, max_new_tokens=4)
    responses, mask = world.responses()
    old, new = world.table_policy().double(), perturbed(world.table_policy(), 2.0).double()
    for prompt in world.prompts():
        prompts = prompt.expand(len(responses), 1)
        log_old, log_new = (
            pt.response_log_probs(policy(torch.cat([prompts, responses], dim=1))[0], responses).detach()
            * mask
            for policy in (old, new)
        )
        chance = log_old.sum(1).exp()
        assert chance.sum().item() == pytest.approx(1.0, abs=1e-12)
        whole = pt.probability_ratio(log_new.sum(1, keepdim=True), log_old.sum(1, keepdim=True))[:, 0]
        assert (chance * whole).sum().item() == pytest.approx(1.0, abs=1e-12)
        ratio = pt.probability_ratio(log_new, log_old)
        assert ((ratio - 1).abs() > 0.2)[mask].double().mean() > 0.5, "the two policies are far apart"
        for t in range(world.max_new_tokens):
            alive = (chance * mask[:, t]).sum()
            assert ((chance * mask[:, t] * ratio[:, t]).sum() / alive).item() == pytest.approx(1.0, abs=1e-12)
        clipped = (chance * whole.clamp(0.8, 1.2)).sum().item()
        assert clipped != pytest.approx(1.0, abs=0.01)
        of_new = (log_new.sum(1).exp() * whole).sum().item()
        assert of_new > 1.1, "under the new policy the mean is larger"


# ---------------------------------------------------------------- the clip


def test_a_blocked_token_moves_nothing_and_every_other_one_does():
    policy = tiny_lm("separate")
    batch = 4
    rollout = pt.collect_rollout(policy, tiny_lm(seed=5), PROMPTS[4:], score, T, generator=seeded(1))
    rollout.log_probs_old = rollout.log_probs_old + 0.5 * random((batch, T), dtype=torch.float32)
    advantages, config = random((batch, T), 1, torch.float32), pt.PPOConfig(value_coef=0.0)
    per_token = []
    for i in range(batch):
        for t in range(T):
            row = rollout.rows(slice(i, i + 1))
            row.mask = torch.zeros(1, T, dtype=torch.bool)
            row.mask[0, t] = True
            loss, metrics = minibatch_loss(
                policy, None, row, advantages[i : i + 1], torch.zeros(1, T), config
            )
            slopes = torch.autograd.grad(loss, [*policy.trunk.parameters(), *policy.lm_head.parameters()])
            per_token.append((metrics["clip_fraction"] == 1.0, all((s == 0).all() for s in slopes)))
    assert [blocked for blocked, _ in per_token] == [still for _, still in per_token]
    assert 0 < sum(blocked for blocked, _ in per_token) < len(per_token)


# ---------------------------------------------------------------- isolation of policy and reference


@models
def test_the_reference_never_moves(name):
    policy, head, optimizer, reference, rollout, config = setting(name)
    before, policy_before = parameters_of(reference), parameters_of(policy)
    train.ppo_update(policy, head, optimizer, rollout, config, eos_id=EOS)
    assert same(before, reference) and not same(policy_before, policy)
    assert all(p.grad is None and not p.requires_grad for p in reference.parameters())


def test_after_a_training_run_the_reference_is_the_policy_it_began_with():
    world = ProbeWorld(3, 3, lambda r: (r == 1).sum(1))
    policy = world.policy()
    before, reference = parameters_of(policy), pt.make_reference(policy)
    trained, _ = pt.train_ppo(world, policy=policy, reference=reference, num_updates=3, batch_size=16)
    assert trained is policy and same(before, reference) and not same(before, policy)
    storages = lambda model: {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert not storages(policy) & storages(reference)


def test_without_a_separate_head_the_critic_cannot_move_a_separate_policy():
    policy = tiny_lm("separate")
    rollout = pt.collect_rollout(policy, tiny_lm(seed=5), PROMPTS[4:], score, T, generator=seeded(1))
    loss, _ = minibatch_loss(policy, None, rollout, torch.zeros(4, T), torch.ones(4, T), pt.PPOConfig())
    loss.backward()
    assert all((p.grad == 0).all() for p in [*policy.trunk.parameters(), *policy.lm_head.parameters()])
    assert any((p.grad != 0).any() for p in policy.critic.parameters())


# ---------------------------------------------------------------- padding and rows


def loss_and_gradient(policy, rollout, advantages, returns, config):
    loss, metrics = minibatch_loss(policy, None, rollout, advantages, returns, config)
    return loss.detach(), torch.autograd.grad(loss, list(policy.parameters())), metrics


@pytest.mark.parametrize("garbage", [float("inf"), float("nan"), -1e30])
def test_what_stands_behind_the_eos_changes_no_loss_and_no_gradient(garbage):
    policy, *_, rollout, _ = setting("TinyLM, shared critic")
    config = pt.PPOConfig(entropy_coef=0.1, value_clip_epsilon=0.2)
    advantages, returns, _ = shaped_advantages(rollout, config, eos_id=EOS)
    assert not rollout.mask.all()
    clean = loss_and_gradient(policy, rollout, advantages, returns, config)
    dirty, pads = copy.deepcopy(rollout), ~rollout.mask
    dirty.response_ids[pads] = 7
    for name in ("log_probs_old", "log_probs_ref", "values_old", "entropy"):
        getattr(dirty, name)[pads] = garbage
    bad_advantages, bad_returns = (torch.where(pads, torch.tensor(garbage), x) for x in (advantages, returns))
    spoiled = loss_and_gradient(policy, dirty, bad_advantages, bad_returns, config)
    assert torch.equal(clean[0], spoiled[0]) and clean[2] == spoiled[2]
    for a, b in zip(clean[1], spoiled[1], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-7)
    for a, b in zip(
        shaped_advantages(rollout, config, eos_id=EOS), shaped_advantages(dirty, config), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_more_padding_on_either_side_changes_nothing():
    policy = tiny_lm().double()
    config = pt.PPOConfig(entropy_coef=0.1)
    response = torch.tensor([[4, 2, 0], [5, 6, 2]])
    mask = pt.response_mask(response, EOS)
    narrow = pt.rollout.freeze_rollout(
        policy,
        perturbed(policy),
        torch.tensor([[3, 4], [5, 6]]),
        response,
        torch.tensor([1.0, -1.0]),
        mask=mask,
    )
    wide_prompts = torch.tensor([[9, 9, 3, 4], [9, 9, 5, 6]])
    wide = pt.rollout.freeze_rollout(
        policy,
        perturbed(policy),
        wide_prompts,
        torch.cat([response, torch.zeros(2, 2).long()], 1),
        torch.tensor([1.0, -1.0]),
        mask=torch.cat([mask, torch.zeros(2, 2).bool()], 1),
        prompt_mask=torch.tensor([[0, 0, 1, 1]] * 2),
    )
    results = [
        loss_and_gradient(policy, r, *shaped_advantages(r, config, eos_id=EOS)[:2], config)
        for r in (narrow, wide)
    ]
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-12)
    for a, b in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert results[0][2] == pytest.approx(results[1][2], abs=1e-9)


def test_a_batch_of_one_equals_the_row_in_a_batch():
    policy = tiny_lm().double()
    *_, rollout, _ = setting("TinyLM, shared critic")
    config = pt.PPOConfig(whiten_advantages="none")
    frozen = pt.rollout.freeze_rollout(
        policy,
        perturbed(policy),
        rollout.prompt_ids,
        rollout.response_ids,
        rollout.scores,
        mask=rollout.mask,
        prompt_mask=rollout.prompt_mask,
    )
    whole = shaped_advantages(frozen, config, eos_id=EOS)
    counts, losses = frozen.mask.sum(1), []
    for i in range(len(frozen)):
        row = frozen.rows(slice(i, i + 1))
        alone = shaped_advantages(row, config, eos_id=EOS)
        assert all(torch.equal(a[i : i + 1], b) for a, b in zip(whole, alone, strict=True))
        losses.append(minibatch_loss(policy, None, row, *alone[:2], config)[0])
    together = minibatch_loss(policy, None, frozen, *whole[:2], config)[0]
    weighted = (torch.stack(losses) * counts).sum() / counts.sum()
    torch.testing.assert_close(together, weighted, rtol=0, atol=1e-10)


def test_one_response_of_one_token_trains_and_stays_finite():
    policy = tiny_lm()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    metrics = pt.run_ppo_training_step(
        policy,
        pt.make_reference(policy),
        None,
        lambda s: torch.ones(len(s)),
        torch.tensor([[3]]),
        torch.tensor([[4]]),
        optimizer,
        pt.PPOConfig(),
    )
    assert metrics["num_steps"] == 4.0, "a batch of one is one minibatch"
    assert all(abs(value) < 1e6 for value in metrics.values())
    assert all(torch.isfinite(p).all() for p in policy.parameters())


# ---------------------------------------------------------------- run_ppo_training_step

CHAPTER_KEYS = {"policy_loss", "value_loss", "mean_reward", "mean_kl", "mean_ratio"}
FURTHER_KEYS = {"kl_per_response", "clip_fraction", "approx_kl", "entropy", "explained_variance", "max_ratio"}


def step(policy, head, reward=None, prompts=PROMPTS, mask=MASK, config=None, reference=None, seed=1):
    """Sample responses and hand everything to the chapter's function."""
    config = pt.PPOConfig(eos_id=EOS, pad_id=PAD) if config is None else config
    responses = pt.generate(
        policy, prompts, T, eos_id=config.eos_id, pad_id=PAD, attention_mask=mask, generator=seeded(seed)
    )
    parameters = [p for model in (policy, head) if model is not None for p in model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    reward = pt.MockRewardModel(11, 8, seed=0) if reward is None else reward
    reference = pt.make_reference(policy) if reference is None else reference
    return pt.run_ppo_training_step(policy, reference, head, reward, prompts, responses, optimizer, config)


@models
def test_the_chapters_step_trains_every_kind_of_model(name):
    policy, head = MODELS[name]()
    policy.train()
    before, head_before = parameters_of(policy), parameters_of(head) if head else []
    prompts, mask = (PROMPTS.clamp(min=1), None) if name == "foreign, unpadded" else (PROMPTS, MASK)
    metrics = step(policy, head, prompts=prompts, mask=mask)
    assert CHAPTER_KEYS | FURTHER_KEYS <= set(metrics)
    assert all(isinstance(value, float) and abs(value) < 1e6 for value in metrics.values())
    assert metrics["mean_kl"] == pytest.approx(0.0, abs=1e-6), "the reference is a copy"
    assert metrics["num_steps"] == 8.0 and metrics["max_ratio"] > 1.0
    assert not same(before, policy) and (head is None or not same(head_before, head))


def test_prompts_are_told_apart_from_padding_by_the_pad_id():
    """A wider block of padding in front is the same batch."""
    results = []
    for extra in (0, 2):
        policy = tiny_lm().double()
        prompts = torch.cat([torch.zeros(8, extra, dtype=torch.long), PROMPTS], dim=1)
        responses = torch.tensor([[4, 2, 0], [5, 6, 7]] * 4)
        optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
        reward = lambda sequences: sequences[:, -3:].float().mean(1)
        results.append(
            pt.run_ppo_training_step(
                policy,
                perturbed(policy),
                None,
                reward,
                prompts,
                responses,
                optimizer,
                pt.PPOConfig(eos_id=EOS, pad_id=PAD),
            )
        )
    assert results[0] == pytest.approx(results[1], abs=1e-9)
    with pytest.raises(ValueError, match="prompts must not be empty"):
        step(tiny_lm(), None, prompts=torch.tensor([[0, 0], [3, 4]]), mask=None)


@pytest.mark.parametrize("shape", ["[B]", "[B, 1]", ".logits"])
def test_a_reward_model_may_answer_in_three_ways(shape):
    base = pt.MockRewardModel(11, 8, seed=0)

    def reward(sequences):
        scores = base(sequences)
        scores = scores if shape == "[B]" else scores.unsqueeze(1)
        return type("Output", (), {"logits": scores}) if shape == ".logits" else scores

    assert step(tiny_lm(), None, reward)["mean_reward"] == step(tiny_lm(), None, base)["mean_reward"]


def test_dropout_in_the_reward_model_is_off():
    reward = torch.nn.Sequential(
        torch.nn.Embedding(11, 1), torch.nn.Flatten(1), torch.nn.Dropout(0.5), torch.nn.Linear(9, 1)
    )
    found = [step(tiny_lm(), None, reward.train())["mean_reward"] for _ in range(2)]
    assert found[0] == found[1] and reward.training


def test_epsilon_and_lambda_matter_because_there_are_epochs():
    run = lambda **config: step(tiny_lm(), None, config=pt.PPOConfig(eos_id=EOS, pad_id=PAD, **config))
    base = run()
    assert run(clip_epsilon=1e-3)["clip_fraction"] > base["clip_fraction"]
    assert run(lam=0.0)["value_loss"] != base["value_loss"]
    one = dict(num_epochs=1, num_minibatches=1)
    assert run(**one)["mean_ratio"] == pytest.approx(1.0, abs=1e-6), (
        "one step: the ratio is 1 and the clip idle"
    )
    assert run(**one)["clip_fraction"] == run(**one, clip_epsilon=1e-3)["clip_fraction"] == 0.0


def test_the_step_trains_under_an_outer_no_grad_and_gradients_stay_off_there():
    policies = [tiny_lm(), tiny_lm()]
    first = step(policies[0], None)
    with torch.no_grad():
        second = step(policies[1], None)
        assert not torch.is_grad_enabled()
    assert first == second and same(parameters_of(policies[0]), policies[1])
    assert not same(parameters_of(tiny_lm()), policies[1])
    world = ProbeWorld(3, 2, lambda r: r.sum(1))
    with torch.no_grad():
        policy, _ = pt.train_ppo(world, pt.PPOConfig(num_minibatches=1), num_updates=1, batch_size=4)
    assert not same(parameters_of(world.policy()), policy)


def test_scoring_under_no_grad_carries_no_graph():
    policy = tiny_lm()
    ppo = pt.LanguageModelPPO(policy, pt.make_reference(policy), None, pt.PPOConfig())
    ids = torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad():
        assert not ppo.compute_log_probs(ppo.policy, ids, ids[:, 2:]).requires_grad
    assert ppo.compute_log_probs(ppo.policy, ids, ids[:, 2:]).requires_grad
    assert not ppo.compute_log_probs(ppo.ref, ids, ids[:, 2:]).requires_grad


@pytest.mark.parametrize(("changed", "match"), [
    (dict(reference="policy"), "ref_model must not share weights"),
    (dict(prompts=PROMPTS[:, :0]), "prompts must hold at least one token"),
    (dict(prompts=PROMPTS[:3]), r"prompts of shape \(3, 3\) and responses of shape \(8, 4\)"),
    (dict(prompts=PROMPTS + 5), r"prompts must hold token ids in \[0, 11\), got ids from 5 to 14"),
    (dict(responses=torch.full((8, 4), -1)), "responses must hold token ids"),
    (dict(responses=torch.zeros(8, 4)), "responses must be an integer tensor"),
    (dict(responses=torch.ones(8, 14, dtype=torch.long)), "this model has 16 positions"),
    (dict(reward=lambda s: torch.full((8,), float("nan"))), "scores must be finite, got nan in row 0"),
    (dict(reward=lambda s: torch.zeros(8, 2)), r"scores must be a tensor of shape \(8,\)"),
    (dict(reward=lambda s: [0.0] * 8), "scores .* got list"),
    (dict(config=pt.PPOConfig(num_minibatches=9)), "num_minibatches must be at most the batch size 8, got 9"),
], ids=lambda value: value if isinstance(value, str) else "case")  # fmt: skip
def test_bad_input_is_refused_by_name_and_trains_nothing(changed, match):
    policy = tiny_lm()
    arguments = (
        dict(
            prompts=PROMPTS,
            responses=torch.ones(8, 4, dtype=torch.long),
            reward=lambda s: torch.zeros(8),
            config=pt.PPOConfig(),
            reference=pt.make_reference(policy),
        )
        | changed
    )
    reference = policy if arguments["reference"] == "policy" else arguments["reference"]
    before = parameters_of(policy)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    with pytest.raises(ValueError, match=match):
        pt.run_ppo_training_step(
            policy,
            reference,
            None,
            arguments["reward"],
            arguments["prompts"],
            arguments["responses"],
            optimizer,
            arguments["config"],
        )
    assert same(before, policy)


def test_a_gradient_that_is_not_finite_never_reaches_the_weights():
    policy = tiny_lm("separate")
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    rollout = pt.collect_rollout(policy, tiny_lm(seed=5), PROMPTS[4:], score, T, generator=seeded(1))
    rollout.log_probs_old = rollout.log_probs_old - 100.0  # ratios of e^100: infinite in float32
    before = parameters_of(policy)
    with pytest.raises(FloatingPointError, match="lower learning_rate or clip_epsilon"):
        list(
            ppo_epochs(policy, None, optimizer, rollout, torch.ones(4, T), torch.zeros(4, T), pt.PPOConfig())
        )
    assert same(before, policy)


# ---------------------------------------------------------------- nothing outside is touched


def test_importing_changes_no_global_setting():
    code = (
        "import torch, random, numpy as np, os, locale\n"
        "seen = lambda: (torch.get_rng_state().tolist(), torch.get_num_threads(), torch.is_grad_enabled(),\n"
        "    torch.get_default_dtype(), torch.get_num_interop_threads(), torch.is_anomaly_enabled(),\n"
        "    random.getstate(), str(np.random.get_state()), dict(os.environ))\n"
        "torch.set_num_threads(2)\n"
        "before = seen()\n"
        "import ppo_teach\n"
        "assert seen() == before\n"
        "torch.set_num_threads(1)\n"
        "assert seen() != before\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("reward", ["true", "learned"])
def test_training_and_generating_leave_generator_threads_and_dtype_alone(reward):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        state = torch.get_rng_state()
        world = pt.ChainWorld(num_tokens=2, max_new_tokens=2)
        pt.train_ppo(world, policy=world.table_policy(), reward=reward, num_updates=1, batch_size=8)
        tiny_lm().generate(PROMPTS, 2, generator=seeded())
        step(tiny_lm(), None)
        assert torch.equal(state, torch.get_rng_state())
        assert torch.get_num_threads() == 2 and torch.get_default_dtype() == torch.float32
    finally:
        torch.set_num_threads(before)


def test_one_thread_is_used_meanwhile():
    """Two busy threads are slower than one at these sizes."""
    before, seen = torch.get_num_threads(), set()
    torch.set_num_threads(2)
    try:
        note = lambda *args: seen.add(torch.get_num_threads())
        for policy in (tiny_lm(), HuggingFaceStyle()):
            policy.register_forward_pre_hook(note)
            (policy.trunk.norm if isinstance(policy, pt.TinyLM) else policy.head).register_forward_pre_hook(
                note
            )
            pt.generate(policy, PROMPTS, 2, generator=seeded())
            step(policy, None if isinstance(policy, pt.TinyLM) else pt.MockValueHead(16))
        world = ProbeWorld(3, 2, lambda r: note() or r.sum(1))
        pt.train_ppo(world, num_updates=1, batch_size=4)
        assert seen == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_no_function_writes_into_its_arguments():
    shape = (2, 4)
    x = {name: random(shape, i) for i, name in enumerate(("a", "b", "c", "d"))}
    mask, scores = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]), random((2,), 9)
    ids, logits = torch.tensor([[3, 2, 0, 0], [4, 5, 6, 7]]), random((2, 6, 11), 8)
    a, b, c, d = x.values()
    everything = [a, b, c, d, mask, scores, ids, logits]
    copies = [tensor.clone() for tensor in everything]
    calls = [
        lambda: pt.masked_mean(a, mask),
        lambda: pt.masked_whiten(a, mask),
        lambda: pt.response_mask(ids, 2, 0),
        lambda: pt.response_log_probs(logits, ids, 0.5),
        lambda: pt.response_values(a, 2),
        lambda: pt.entropy(logits),
        lambda: pt.place_scores(scores, mask),
        lambda: pt.kl_estimate(a, b, "k3"),
        lambda: pt.shape_rewards(scores, a, b, 0.1, mask),
        lambda: pt.missing_eos_penalty(scores, ids, 2, 1.0),
        lambda: pt.discounted_returns(a, 0.9, mask),
        lambda: pt.td_errors(a, b, 0.9, mask, scores),
        lambda: pt.gae(a, b, 0.9, 0.9, mask, scores),
        lambda: pt.clipped_policy_loss(a, b, c, 0.2, mask),
        lambda: pt.value_loss(a, b, mask, c, 0.2),
        lambda: pt.clip_fraction(a, b, c, 0.2, mask),
        lambda: pt.ratio_outside_fraction(a, b, 0.2, mask),
        lambda: pt.approx_kl(a, b, mask),
        lambda: pt.explained_variance(a, b, mask),
        lambda: pt.RunningMoments().update(a),
        lambda: tiny_lm().generate(ids, 3, attention_mask=mask.flip(1), eos_id=2, generator=seeded()),
        lambda: step(tiny_lm(), None, reward=lambda s: scores.float().repeat(4)),
    ]
    for call in calls:
        call()
        assert all(torch.equal(now, then) for now, then in zip(everything, copies, strict=True))


def test_a_rollout_is_read_only_for_the_update():
    policy, head, optimizer, _, rollout, config = setting("TinyLM, shared critic")
    frozen = copy.deepcopy(rollout)
    train.ppo_update(policy, head, optimizer, rollout, config, eos_id=EOS)
    assert all(torch.equal(getattr(rollout, name), getattr(frozen, name)) for name in vars(rollout))
