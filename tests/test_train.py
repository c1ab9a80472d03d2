"""The training loop: determinism, resuming, interrupts, the log, and that every setting does what it says."""

import copy
import csv
import json
import math
import sys
from types import SimpleNamespace

import pytest
import torch
from stubs import ForeignActorCritic, HuggingFaceStyle, ProbeWorld, parameters_of, perturbed, same

import ppo_teach as pt
from ppo_teach import train
from ppo_teach.train import PPOTrainer, reward_function, shaped_advantages


class StoppingWorld(ProbeWorld):
    """Responses end in token 2; a token 1 is worth 1."""

    name, eos_id = "stopping", 2

    def __init__(self, length=4):
        super().__init__(4, length, lambda r: ((r == 1) * pt.response_mask(r, 2)).sum(1))


def quick(**options):
    """Arguments of a run of a tenth of a second."""
    return dict(num_updates=4, batch_size=8, seed=0) | options


CONFIG = pt.PPOConfig(learning_rate=3e-3)


def run(world=None, config=CONFIG, **options):
    return pt.train_ppo(world or StoppingWorld(), config, **quick(**options))


# ---------------------------------------------------------------- what a run gives

METRICS = {
    "policy_loss", "value_loss", "mean_reward", "mean_kl", "mean_ratio", "kl_per_response", "clip_fraction",
    "approx_kl", "entropy", "explained_variance", "max_ratio", "ratio_outside_fraction", "grad_norm",
    "kl_coef", "response_length", "true_score", "stopped", "learning_rate", "num_steps",
}  # fmt: skip


def test_a_run_gives_the_policy_and_every_metric_of_every_update():
    world = StoppingWorld()
    policy = world.policy()
    trained, log = run(world, policy=policy)
    assert trained is policy and log.stopped_by == "finished" and len(log) == 4
    assert set(log.metrics) == METRICS == set(pt.TrainingLog.GLOSSARY)
    for values in log.metrics.values():
        assert len(values) == 4 and all(isinstance(v, float) and math.isfinite(v) for v in values)
    assert log.info["world"] == "stopping" and log.info["config"]["learning_rate"] == 3e-3
    assert log.metrics["true_score"] == log.metrics["mean_reward"]
    assert {sample["update"] for sample in log.samples} == {0, 1, 2, 3}
    assert {"update", "prompt", "response", "score"} == set(log.samples[0])


def test_samples_are_taken_every_few_updates_and_at_the_end():
    _, log = run(num_updates=25, batch_size=2, config=pt.PPOConfig(num_epochs=1))
    assert sorted({sample["update"] for sample in log.samples}) == [*range(0, 25, 2)]
    assert len(log.samples) == 13 * 2


def test_the_first_update_begins_at_the_reference():
    _, log = run(config=pt.PPOConfig(num_epochs=1, num_minibatches=1))
    first = {name: values[0] for name, values in log.metrics.items()}
    assert first["mean_kl"] == first["kl_per_response"] == first["clip_fraction"] == 0.0
    assert first["mean_ratio"] == pytest.approx(1.0, abs=1e-6) and first["policy_loss"] == pytest.approx(
        0.0, abs=1e-6
    )
    assert first["num_steps"] == 1.0 and log.metrics["mean_kl"][-1] != 0.0


def test_the_callback_sees_each_update_and_its_metrics():
    seen = []
    _, log = run(callback=lambda update, metrics: seen.append((update, dict(metrics))))
    assert [update for update, _ in seen] == [0, 1, 2, 3] and [row for _, row in seen] == log.rows


@pytest.mark.parametrize(
    "policy",
    [HuggingFaceStyle(4), pt.MockLanguageModel(4, 16, seed=0), ForeignActorCritic(4)],
    ids=lambda policy: type(policy).__name__,
)
def test_models_of_somebody_else_are_trained(policy):
    before = parameters_of(policy.train())
    trained, log = run(policy=policy)
    assert trained is policy and policy.training and not same(before, policy)
    losses = log.metrics["value_loss"]
    assert losses[0] != losses[1], "the critic, wherever it is, is trained too"
    assert log.metrics["max_ratio"][0] > 1 and log.metrics["mean_kl"][0] == pytest.approx(0.0, abs=1e-5)


# ---------------------------------------------------------------- determinism and resuming

CONFIGS = {
    "plain": CONFIG,
    "everything": pt.PPOConfig(
        learning_rate=3e-3, lr_schedule="linear", kl_target=0.5, kl_horizon=50, entropy_coef=0.01,
        value_clip_epsilon=0.2, value_warmup=1, bootstrap_truncated=True, missing_eos_penalty=0.5,
        temperature=1.3, num_epochs=2, num_minibatches=3, target_kl=0.05,
    ),
}  # fmt: skip
configs = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


@configs
def test_the_same_seed_gives_the_same_bits(config):
    runs = [run(config=config) for _ in range(2)]
    assert runs[0][1].to_json() == runs[1][1].to_json()
    assert same(parameters_of(runs[0][0]), runs[1][0])
    assert run(config=config, seed=1)[1].metrics["mean_reward"] != runs[0][1].metrics["mean_reward"]


def test_the_global_generator_has_no_say():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = run()[1].to_json()
        torch.manual_seed(2)
        torch.rand(3)
        assert run()[1].to_json() == first


@configs
@pytest.mark.parametrize("policy", [None, "logits only"])
def test_a_run_stopped_and_resumed_equals_one_that_was_not(config, policy, tmp_path):
    make = lambda: None if policy is None else pt.MockLanguageModel(4, 16, seed=0)
    whole, whole_log = run(config=config, policy=make())
    path = tmp_path / "run.pt"
    calls = iter([False, False, True])
    _, first = run(config=config, policy=make(), checkpoint=path, should_stop=lambda: next(calls))
    assert first.stopped_by == "should_stop" and len(first) == 2
    rest, log = run(config=config, policy=make(), checkpoint=path)
    assert log.to_json() == whole_log.to_json() and same(parameters_of(whole), rest)
    again, log = run(config=config, policy=make(), checkpoint=path)
    assert log.stopped_by == "finished" and len(log) == 4 and same(parameters_of(whole), again), (
        "nothing left to do"
    )
    assert not list(tmp_path.glob("*.partial"))


def test_a_longer_run_goes_on_from_a_finished_one(tmp_path):
    path = tmp_path / "run.pt"
    run(checkpoint=path, num_updates=2)
    _, log = run(checkpoint=path, num_updates=4)
    assert len(log) == 4 and log.metrics == run()[1].metrics


@pytest.mark.parametrize(
    "changed",
    [dict(seed=1), dict(batch_size=16), dict(world=ProbeWorld(4, 4, lambda r: r.sum(1)))],
    ids=["seed", "batch_size", "world"],
)
def test_a_checkpoint_of_another_run_is_refused(changed, tmp_path):
    path = tmp_path / "run.pt"
    run(checkpoint=path)
    with pytest.raises(ValueError, match="of the saved run must be"):
        run(checkpoint=path, **changed)


def test_a_checkpoint_holds_no_code(tmp_path):
    path = tmp_path / "run.pt"
    run(checkpoint=path)
    assert set(torch.load(path, weights_only=True)) >= {
        "policy",
        "optimizer",
        "reference",
        "generator",
        "log",
    }


def test_a_saved_state_is_not_moved_by_going_on():
    trainer = PPOTrainer(StoppingWorld(), CONFIG, **quick())
    trainer.step()
    state = trainer.state_dict()
    frozen = copy.deepcopy(state)
    ends = []
    for _ in range(2):
        trainer.load_state_dict(state)
        trainer.step()
        ends.append((trainer.log.to_json(), parameters_of(trainer.policy)))
    assert ends[0][0] == ends[1][0] and all(
        torch.equal(a, b) for a, b in zip(ends[0][1], ends[1][1], strict=True)
    )
    equal = lambda a, b: torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    for index, moments in frozen["optimizer"]["state"].items():
        assert all(equal(value, state["optimizer"]["state"][index][name]) for name, value in moments.items())


# ---------------------------------------------------------------- stopping


def interrupt(*args):
    raise KeyboardInterrupt


def state_after(num_updates):
    policy, log = run(num_updates=4, should_stop=(n for n in [False] * num_updates + [True]).__next__)
    return parameters_of(policy), log


@pytest.mark.parametrize("when", [0, 1, 3])
def test_an_interrupt_between_updates_keeps_everything(when):
    policy, log = run(callback=lambda update, metrics: interrupt() if update == when else None)
    before, wanted = state_after(when + 1)
    assert log.stopped_by == "interrupt" and log.metrics == wanted.metrics and same(before, policy)


@pytest.mark.parametrize("whole", [0, 2], ids=["the first update", "the third"])
@pytest.mark.parametrize("where", ["reward", "minibatch"])
def test_an_interrupt_inside_an_update_goes_back_to_the_last_whole_one(where, whole, monkeypatch):
    world, count = StoppingWorld(), 0

    def interrupting(real):
        def function(*args, **kwargs):
            nonlocal count
            count += 1
            if count == (whole + 1 if where == "reward" else whole * 8 + 3):  # an update has eight steps
                raise KeyboardInterrupt
            return real(*args, **kwargs)

        return function

    if where == "minibatch":
        monkeypatch.setattr(train, "minibatch_loss", interrupting(train.minibatch_loss))
    reward = interrupting(world.true_score) if where == "reward" else world.true_score
    policy, log = pt.train_ppo(world, CONFIG, **quick(reward=reward))
    monkeypatch.undo()
    before, wanted = state_after(whole)
    assert log.stopped_by == "interrupt" and len(log) == whole
    assert log.metrics == wanted.metrics and log.samples == wanted.samples and same(before, policy)


def test_an_interrupted_run_can_be_resumed(tmp_path):
    path = tmp_path / "run.pt"
    run(checkpoint=path, callback=lambda update, metrics: interrupt() if update == 1 else None)
    policy, log = run(checkpoint=path)
    whole, wanted = run()
    assert log.to_json() == wanted.to_json() and same(parameters_of(whole), policy)


def test_should_stop_before_the_first_update_changes_nothing():
    world = StoppingWorld()
    policy, log = run(world, should_stop=lambda: True)
    assert len(log) == 0 and log.metrics == {} and log.stopped_by == "should_stop"
    assert same(parameters_of(world.policy()), policy)


@pytest.mark.parametrize("reward", [
    lambda p, r: torch.full((len(r),), math.nan), lambda p, r: torch.zeros(len(r), 1), lambda p, r: 1.0,
], ids=["NaN", "[B, 1]", "a float"])  # fmt: skip
def test_a_failing_reward_leaves_the_log_on_the_exception(reward):
    calls = iter([False, False, True, True])
    world = StoppingWorld()
    sometimes = lambda p, r: reward(p, r) if next(calls) else world.true_score(p, r)
    with pytest.raises(ValueError, match="scores") as caught:
        pt.train_ppo(world, CONFIG, **quick(reward=sometimes))
    assert len(caught.value.log) == 2 and caught.value.log.metrics == state_after(2)[1].metrics


def test_a_loss_that_explodes_stops_the_run_and_says_what_to_do():
    with pytest.raises(FloatingPointError, match="lower learning_rate") as caught:
        run(config=pt.PPOConfig(learning_rate=1e30, max_grad_norm=None), num_updates=6)
    assert isinstance(caught.value.log, pt.TrainingLog)


def test_a_failing_callback_does_not_lose_the_log(tmp_path):
    def fail(update, metrics):
        if update == 1:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine") as caught:
        run(callback=fail, checkpoint=tmp_path / "run.pt")
    assert len(caught.value.log) == 2 and (tmp_path / "run.pt").exists()


# ---------------------------------------------------------------- the log


@pytest.fixture(scope="module")
def log():
    return run()[1]


def test_save_and_load(log, tmp_path):
    log.save(tmp_path / "log.json")
    loaded = pt.TrainingLog.load(tmp_path / "log.json")
    assert loaded.metrics == log.metrics and loaded.samples == log.samples and loaded.info == log.info
    assert (
        loaded.stopped_by == log.stopped_by
        and loaded.to_json() == log.to_json()
        and len(loaded) == len(log) == 4
    )
    json.loads((tmp_path / "log.json").read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["log.json"]


def test_csv_has_a_line_per_update_and_loses_no_digit(log, tmp_path):
    log.to_csv(tmp_path / "log.csv")
    with open(tmp_path / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["update"] for row in rows] == ["0", "1", "2", "3"]
    for name, values in log.metrics.items():
        assert [float(row[name]) for row in rows] == values
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_an_empty_log_saves_and_loads(tmp_path):
    empty = pt.TrainingLog()
    empty.save(tmp_path / "log.json")
    empty.to_csv(tmp_path / "log.csv")
    assert (
        pt.TrainingLog.load(tmp_path / "log.json").metrics == {}
        and repr(empty) == "TrainingLog(0 updates, 0 samples)"
    )
    assert (tmp_path / "log.csv").read_text().strip() == "update"


def test_infinity_survives_the_round_trip(tmp_path):
    odd = pt.TrainingLog()
    odd.append({"max_ratio": math.inf, "value_loss": math.nan})
    odd.save(tmp_path / "log.json")
    row = pt.TrainingLog.load(tmp_path / "log.json").rows[0]
    assert row["max_ratio"] == math.inf and math.isnan(row["value_loss"])


@pytest.mark.parametrize("text", [
    "", "{", "[]", "null", "3", '"text"', "{}", '{"info": {}, "metrics": {}}',
    '{"info": {}, "metrics": {"a": [1], "b": [1, 2]}, "samples": [], "stopped_by": null}',
    '{"info": {}, "metrics": {"a": 3}, "samples": [], "stopped_by": null}',
    '{"info": 3, "metrics": {}, "samples": [], "stopped_by": null}',
    '{"info": {}, "metrics": [], "samples": [], "stopped_by": null}',
    '{"info": {}, "metrics": {}, "samples": 3, "stopped_by": null}',
])  # fmt: skip
def test_a_corrupted_file_is_refused(text, tmp_path):
    path = tmp_path / "log.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="must be a TrainingLog saved as JSON"):
        pt.TrainingLog.load(path)


def test_half_a_file_and_bytes_that_are_no_text_are_refused(log, tmp_path):
    path = tmp_path / "log.json"
    path.write_text(log.to_json()[: len(log.to_json()) // 2])
    with pytest.raises(ValueError, match="must be a TrainingLog saved as JSON"):
        pt.TrainingLog.load(path)
    path.write_bytes(b"\x80\x04\x95\xff")
    with pytest.raises(ValueError):
        pt.TrainingLog.load(path)


def test_a_failed_save_leaves_the_old_file(log, tmp_path, monkeypatch):
    path = tmp_path / "log.json"
    log.save(path)
    monkeypatch.setattr(train.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pt.TrainingLog().save(path)
    assert pt.TrainingLog.load(path).metrics == log.metrics


def test_rows_are_whole_and_the_same_metrics_each_time():
    log = pt.TrainingLog()
    log.append({"a": 1.0, "b": 2.0})
    for row in ({"a": 1.0}, {"a": 1.0, "b": 2.0, "c": 3.0}):
        with pytest.raises(ValueError, match="row must have the metrics"):
            log.append(row)
    assert log.metrics == {"a": [1.0], "b": [2.0]}


# ---------------------------------------------------------------- every setting does something


def trained(num_updates=4, world=None, batch_size=8, **config):
    return run(
        world,
        pt.PPOConfig(**dict(learning_rate=3e-3) | config),
        num_updates=num_updates,
        batch_size=batch_size,
    )


def test_linear_learning_rate_falls_to_one_part_of_the_last_update():
    assert trained(lr_schedule="linear")[1].metrics["learning_rate"] == pytest.approx(
        [3e-3, 2.25e-3, 1.5e-3, 0.75e-3]
    )
    assert trained()[1].metrics["learning_rate"] == [3e-3] * 4


def test_target_kl_stops_the_epochs_of_an_update():
    full = trained(learning_rate=1e-2)[1].metrics
    early = trained(learning_rate=1e-2, target_kl=1e-3)[1].metrics
    assert full["num_steps"] == [8.0] * 4 and max(early["approx_kl"]) < max(full["approx_kl"])
    assert 1 <= min(early["num_steps"]) < 8, "at least the first step is taken"


def test_the_adaptive_price_follows_the_kl():
    metrics = trained(kl_target=1e-4, kl_horizon=8, learning_rate=1e-2, num_updates=6)[1].metrics
    prices, kls = metrics["kl_coef"], metrics["kl_per_response"]
    for i in range(5):
        wanted = prices[i] * (1 + max(-0.2, min(0.2, kls[i] / 1e-4 - 1)) * 8 / 8)
        assert prices[i + 1] == pytest.approx(wanted)
    assert prices[0] == 0.1 and len(set(prices)) > 3
    assert set(trained()[1].metrics["kl_coef"]) == {0.1}


def test_the_price_of_the_kl_holds_the_policy_back():
    far, near = (
        trained(15, kl_coef=beta, batch_size=32)[1].metrics["kl_per_response"][-1] for beta in (0.0, 3.0)
    )
    assert far > 5 * abs(near)


def test_value_clipping_slows_the_critic():
    plain, clipped = (trained(learning_rate=1e-2, value_clip_epsilon=eps)[1] for eps in (None, 1e-3))
    assert clipped.metrics["value_loss"][-1] > plain.metrics["value_loss"][-1]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_kl_estimator_is_the_one_that_is_logged(estimator):
    trainer = PPOTrainer(StoppingWorld(), pt.PPOConfig(kl_estimator=estimator, learning_rate=1e-2), **quick())
    trainer.step()
    row, rollout = trainer.step(), trainer.rollout
    kl = {
        name: pt.kl_estimate(rollout.log_probs_old, rollout.log_probs_ref, name)
        for name in ("k1", "k2", "k3")
    }
    mean = {name: pt.masked_mean(value, rollout.mask).item() for name, value in kl.items()}
    assert row["mean_kl"] == pytest.approx(mean[estimator], abs=1e-6) and len(set(mean.values())) == 3
    per_response = (kl[estimator] * rollout.mask).sum(1).mean().item()
    assert row["kl_per_response"] == pytest.approx(per_response, abs=1e-6)


def rollout_of(world, policy=None, **options):
    policy = world.policy() if policy is None else policy
    return pt.collect_rollout(
        policy,
        perturbed(policy, 0.3),
        world.sample_prompts(32, None),
        world.true_score,
        world.max_new_tokens,
        eos_id=world.eos_id,
        pad_id=world.pad_id,
        generator=torch.Generator().manual_seed(0),
        **options,
    )


def test_whitening_has_three_scopes(monkeypatch):
    rollout, mean = rollout_of(StoppingWorld()), {}
    for scope in ("batch", "minibatch", "none"):
        config = pt.PPOConfig(whiten_advantages=scope)
        advantages, _, _ = shaped_advantages(rollout, config, eos_id=2)
        mean[scope] = abs(pt.masked_mean(advantages, rollout.mask).item())
    assert mean["batch"] < 1e-6 < 1e-3 < mean["none"] == mean["minibatch"]
    seen = []
    real = train.clipped_policy_loss
    monkeypatch.setattr(
        train,
        "clipped_policy_loss",
        lambda n, o, A, e, m: seen.append(pt.masked_mean(A, m).item()) or real(n, o, A, e, m),
    )
    for scope, centred in (("minibatch", True), ("batch", False), ("none", False)):
        seen.clear()
        trained(1, whiten_advantages=scope)
        assert len(seen) == 8 and all((abs(m) < 1e-6) == centred for m in seen)


def test_the_entropy_bonus_keeps_the_policy_open():
    world = ProbeWorld(4, 2, lambda r: (r == 1).sum(1))
    closed, opened = (
        trained(15, world, batch_size=32, entropy_coef=c)[1].metrics["entropy"][-1] for c in (0.0, 2.0)
    )
    assert opened > closed + 0.2


def test_the_missing_eos_penalty_is_charged_in_the_rewards_not_in_the_log():
    rollout = rollout_of(StoppingWorld())
    never = (rollout.response_ids != 2).all(1)
    assert 0 < never.sum() < 32
    raw = dict(whiten_advantages="none", lam=1.0)
    plain, _, _ = shaped_advantages(rollout, pt.PPOConfig(**raw), eos_id=2)
    charged, _, _ = shaped_advantages(rollout, pt.PPOConfig(missing_eos_penalty=2.0, **raw), eos_id=2)
    torch.testing.assert_close((plain - charged)[never], torch.full((int(never.sum()), 4), 2.0))
    assert torch.equal(plain[~never], charged[~never])
    assert (
        trained(1, missing_eos_penalty=2.0)[1].metrics["mean_reward"] == trained(1)[1].metrics["mean_reward"]
    )


def test_the_missing_eos_penalty_teaches_to_stop():
    run = lambda p: trained(15, batch_size=32, missing_eos_penalty=p, kl_coef=0.0, learning_rate=1e-2)[1]
    stops = [run(penalty).metrics["stopped"] for penalty in (0.0, 5.0)]
    assert stops[1][-1] > 0.9 > stops[0][-1] and stops[0][0] == stops[1][0]


def test_a_truncated_response_may_be_given_its_critics_future():
    world = StoppingWorld()
    policy = world.policy()
    torch.nn.init.normal_(policy.value_head.weight, generator=torch.Generator().manual_seed(0))
    rollout = rollout_of(world, policy)
    never = (rollout.response_ids != 2).all(1)
    raw = dict(whiten_advantages="none", gamma=0.9, lam=0.8)
    ended, _, _ = shaped_advantages(rollout, pt.PPOConfig(**raw), eos_id=2)
    cut, _, _ = shaped_advantages(rollout, pt.PPOConfig(bootstrap_truncated=True, **raw), eos_id=2)
    torch.testing.assert_close((cut - ended)[never, -1], 0.9 * rollout.last_value[never])
    assert torch.equal(cut[~never], ended[~never]) and rollout.last_value[never].abs().min() > 0


@pytest.mark.parametrize("critic", ["shared", "separate", "table", "head"])
def test_value_warmup_trains_the_critic_and_keeps_the_policy_still(critic):
    world = StoppingWorld()
    policy = {
        "shared": world.policy, "table": lambda: pt.TablePolicy(4, 5),
        "separate": lambda: pt.TinyLM(4, d_model=16, num_layers=1, num_heads=2, max_length=5,
        critic="separate"),
        "head": lambda: pt.MockLanguageModel(4, 16, seed=0),
    }[critic]()  # fmt: skip
    trainer = PPOTrainer(world, pt.PPOConfig(value_warmup=3, learning_rate=1e-2), policy=policy, **quick())
    is_critic = lambda name: name.startswith(("value_head", "values", "critic"))
    critic_of = lambda: (
        [p for name, p in policy.named_parameters() if is_critic(name)]
        + (list(trainer.value_head.parameters()) if trainer.value_head else [])
    )
    actor_of = lambda: [p for name, p in policy.named_parameters() if not is_critic(name)]
    for update in range(4):
        before = [[p.detach().clone() for p in part()] for part in (actor_of, critic_of)]
        trainer.step()
        still = [
            all(map(torch.equal, old, part()))
            for old, part in zip(before, (actor_of, critic_of), strict=True)
        ]
        assert still == [update < 3, False]
    moved = trainer.log.metrics["approx_kl"]
    assert max(moved[:3]) < 1e-9 < moved[3]


def test_max_grad_norm_cuts_the_step_and_none_does_not():
    def moved(limit):
        world = StoppingWorld()
        policy = world.policy()
        trainer = PPOTrainer(
            world,
            pt.PPOConfig(max_grad_norm=limit, num_epochs=1, num_minibatches=1),
            policy=policy,
            **quick(),
        )
        trainer.optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
        before = parameters_of(policy)
        norm = trainer.step()["grad_norm"]
        step = (
            sum(((a - b) ** 2).sum() for a, b in zip(before, policy.parameters(), strict=True)).sqrt().item()
        )
        return norm, step / 5e-4  # the trainer sets the rate of its config

    free, cut = moved(None), moved(0.1)
    assert free[0] == cut[0] > 0.1, "the norm is measured before the cut"
    assert free[1] == pytest.approx(free[0], rel=1e-3) and cut[1] == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_any_temperature_keeps_the_first_ratio_at_one(temperature):
    metrics = trained(1, temperature=temperature, num_epochs=1, num_minibatches=1)[1].metrics
    assert metrics["max_ratio"][0] == pytest.approx(1.0, abs=1e-5) and metrics["approx_kl"][0] < 1e-9


def test_temperature_is_that_of_the_sampling():
    cold, hot = (trained(1, temperature=t)[1].metrics["entropy"][0] for t in (0.2, 5.0))
    assert cold < hot <= math.log(4) + 1e-5


@pytest.mark.parametrize("change", [
    dict(clip_epsilon=0.01), dict(kl_coef=1.0), dict(value_coef=2.0), dict(gamma=0.5), dict(lam=0.0),
    dict(num_epochs=1), dict(num_minibatches=1), dict(learning_rate=1e-2),
    dict(lr_schedule="linear"), dict(adam_eps=1e-3), dict(max_grad_norm=0.01),
    dict(entropy_coef=0.5), dict(value_clip_epsilon=1e-3), dict(value_warmup=1),
    dict(whiten_advantages="none"), dict(kl_estimator="k3"), dict(kl_target=1e-3, kl_horizon=8),
    dict(target_kl=1e-3), dict(missing_eos_penalty=1.0), dict(bootstrap_truncated=True),
    dict(temperature=1.5),
], ids=str)  # fmt: skip
def test_no_setting_is_idle(change):
    assert trained(3, **change)[1].metrics["policy_loss"] != trained(3)[1].metrics["policy_loss"]


# ---------------------------------------------------------------- the trainer's arguments


@pytest.mark.parametrize(("options", "match"), [
    (dict(num_updates=0), "num_updates must be an integer >= 1, got 0"),
    (dict(num_updates=1.5), "num_updates must be"),
    (dict(seed=1.5), "seed must be an integer of 64 bits, got 1.5"),
    (dict(seed="x"), "seed must be"),
    (dict(seed=2**64), "seed must be"),
    (dict(batch_size=True), "batch_size must be an integer >= 1, got True"),
    (dict(batch_size=3, config=pt.PPOConfig(num_minibatches=4)), "num_minibatches must be .* batch_size = 3, got 4"),
    (dict(config={}), "config must be a PPOConfig, got dict"),
    (dict(reward="best"), "reward must be 'true', 'learned' or a callable"),
    (dict(reward=None), "reward must be"),
])  # fmt: skip
def test_bad_arguments_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        run(**options)


def test_a_batch_of_one_trains_with_the_default_config():
    policy, log = run(batch_size=1, config=pt.PPOConfig(), num_updates=2)
    assert log.metrics["num_steps"] == [4.0, 4.0], "one minibatch, four epochs"
    assert all(math.isfinite(value) for row in log.rows for value in row.values())
    assert all(torch.isfinite(p).all() for p in policy.parameters())


def test_policy_and_reference_must_differ():
    policy = StoppingWorld().policy()
    with pytest.raises(ValueError, match="share weights"):
        run(policy=policy, reference=policy)


def test_a_frozen_policy_is_refused():
    with pytest.raises(ValueError, match="policy must have a parameter to train, got all frozen"):
        run(policy=pt.make_reference(StoppingWorld().policy()))


def test_a_policy_too_short_for_the_world_is_refused():
    with pytest.raises(ValueError, match="does not fit: this model has 3 positions"):
        run(policy=pt.TinyLM(4, d_model=16, max_length=3))


def test_reward_names_and_callables():
    world = StoppingWorld()
    world.train_reward_model = lambda seed: lambda p, r: torch.full((len(r),), float(seed))
    assert reward_function(world, "true", 0) == world.true_score
    assert run(world, reward="learned", seed=3)[1].metrics["mean_reward"] == [3.0] * 4
    count = lambda prompt_ids, response_ids: (response_ids == 3).sum(1)
    _, log = run(world, reward=count)
    assert log.info["reward"] == "<lambda>" and log.metrics["mean_reward"] != log.metrics["true_score"]


def test_the_config_may_be_replaced_between_updates():
    trainer = PPOTrainer(StoppingWorld(), CONFIG, **quick())
    trainer.step()
    trainer.config = pt.PPOConfig(learning_rate=1e-5, num_epochs=1)
    assert trainer.step()["num_steps"] == 2.0 and trainer.log.metrics["learning_rate"] == [3e-3, 1e-5]


# ---------------------------------------------------------------- the progress bar


class Bar:
    made = []

    def __init__(self, total, initial, **options):
        self.total, self.n, self.closed = total, initial, False
        Bar.made.append(self)

    def update(self, n):
        self.n += n

    def close(self):
        self.closed = True


@pytest.fixture
def bars(monkeypatch):
    Bar.made = []
    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    return Bar.made


def test_nothing_is_shown_where_nobody_watches(bars, monkeypatch, capfd):
    monkeypatch.setitem(
        sys.modules, "ipykernel", SimpleNamespace()
    )  # imported by a test runner, not a notebook
    run()
    assert bars == [] and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("where", ["terminal", "notebook", "asked for"])
def test_a_bar_counts_the_updates_where_somebody_does(where, bars, monkeypatch):
    if where == "terminal":
        monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True, write=lambda text: None))
    if where == "notebook":
        shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
        monkeypatch.setitem(sys.modules, "IPython", shell)
    run(progress=True if where == "asked for" else None)
    assert len(bars) == 1 and bars[0].total == bars[0].n == 4 and bars[0].closed
    run(progress=False)
    assert len(bars) == 1


def test_the_bar_is_closed_by_an_interrupt(bars):
    run(progress=True, callback=interrupt)
    assert bars[0].n == 1 and bars[0].closed
