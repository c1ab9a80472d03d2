"""The check-up: silent on healthy runs, names what it can see, takes other names, refuses what does not fit."""

import dataclasses

import pytest
import torch

import ppo_teach as pt
from ppo_teach.bugs import BUGS, Patient
from ppo_teach.checkup import FIELDS, checkup, read_batch
from ppo_teach.losses import clipped_policy_loss, value_loss

HIDDEN = {"kl_attached", "values_late", "k1_as_loss", "gradients_pile_up", "steps_dropped"}  # no trace in the tensors


@pytest.fixture(scope="module")
def worlds():
    review = pt.ReviewWorld()
    learned = review.train_reward_model(num_pairs=200, held_out=1)
    judged = pt.ReviewWorld()
    judged.true_score = learned  # scored by a learned reward model
    return {"chain": pt.ChainWorld(), "review": review, "learned reward": judged}


@pytest.mark.parametrize("name", ["chain", "review", "learned reward"])
def test_no_false_alarm_on_fifty_seeds(name, worlds):
    for seed in range(50):
        patient = Patient(world=worlds[name], num_updates=1 + seed % 2, batch_size=8 + seed % 3, seed=seed)
        patient.run()
        for batch in patient.evidence():
            assert [str(finding) for finding in checkup(batch)] == [], seed


@pytest.mark.parametrize("bug", BUGS.values(), ids=list(BUGS))
def test_a_fault_is_named_when_its_evidence_is_given(bug, worlds):
    patient = Patient(bug, worlds["chain"], num_updates=3)
    patient.run()
    found = [finding for batch in patient.evidence() for finding in checkup(batch)]
    assert any(bug.id in finding.resembles for finding in found) == (bug.id not in HIDDEN)
    assert all(set(finding.resembles) <= set(BUGS) and "{" not in finding.message for finding in found)
    if bug.id in HIDDEN:
        assert found == []


@pytest.fixture(scope="module")
def evidence():
    patient = Patient(world=pt.ChainWorld(), num_updates=3, batch_size=32)
    patient.run()
    return patient.evidence()


@pytest.fixture
def batch(evidence):
    return dict(evidence[0])


def names(batch):
    return [finding.name for finding in checkup(batch)]


FAULTY = {  # a change to the tensors -> the finding it must give
    "not finite": lambda b: b | {"values": b["values"].masked_fill(b["mask"], torch.nan)},
    "carries gradient": lambda b: b | {"advantages": b["advantages"].clone().requires_grad_()},
    "not a log-prob": lambda b: b | {"log_probs_old": b["log_probs_old"].exp()},
    "tokens after EOS": lambda b: b | {"mask": torch.ones_like(b["mask"])},
    "EOS masked": lambda b: b | {"mask": b["mask"] & (b["responses"] != b["eos_id"])},
    "empty response": lambda b: b | {"mask": b["mask"] & (torch.arange(len(b["mask"])) > 0).unsqueeze(1)},
    "sampler and training disagree": lambda b: b | {"log_probs_sampled": b["log_probs_sampled"] - 0.1},
    "not the policy's own samples": lambda b: b | {"entropy": b["entropy"] - 1},
    "reference equals policy": lambda b: b | {"log_probs_ref": b["log_probs_old"]},
    "KL is no estimate": lambda b: b | {"kl": -b["kl"]},
    "rewards do not add up": lambda b: b | {"rewards": b["rewards"] + 0.1},
    "not centred": lambda b: b | {"advantages": b["advantages"] + 0.3},
    "returns from whitened advantages": lambda b: b | {"returns": b["advantages"] + b["values"]},
    "a finished response has a future": lambda b: b | {"returns": b["returns"] + 0.5},
    "policy_loss pulls wrongly": lambda b: b | {"policy_loss": lambda new, old, A, m: -(new * A)[m].mean()},
    "value_loss pulls wrongly": lambda b: b | {"value_loss": lambda new, G, old, m: ((new - G) ** 2).mean()},
}


@pytest.mark.parametrize("name", FAULTY)
def test_each_finding_has_a_batch_that_gives_it(name, batch):
    assert names(batch) == [] and name in names(FAULTY[name](batch))


def test_the_minibatch_findings(evidence):
    first, last = dict(evidence[1]), dict(evidence[2])
    assert "ratio not 1 at the start" in names(first | {"log_probs_new": first["log_probs_new"] + 0.01})
    assert "ratio always 1" in names(last | {"log_probs_old": last["log_probs_new"].detach()})
    assert names(last | {"mean_ratio": 0.6}) == ["the mean counts pads"]
    assert names(last | {"clip_fraction": last["clip_fraction"] + 0.1}) == ["clip fraction is off"]
    assert names(last | {"values_new": last["values_new"].detach()}) == ["critic detached"]


def test_other_right_losses_are_no_finding(batch):
    half = lambda new, G, old, mask: 0.5 * value_loss(new, G, mask, old, 0.2)
    plain = lambda new, G, old, mask: value_loss(new, G, mask)
    policy = lambda new, old, A, mask: clipped_policy_loss(new, old, A, 0.2, mask)
    for loss in (half, plain):
        assert checkup({"value_loss": loss, "policy_loss": policy}) == []


def test_kl_by_other_estimators_and_unwhitened_advantages_are_no_finding(batch):
    raw = batch | {"advantages": (batch["returns"] - batch["values"]) * 1.0}
    assert names(raw) == []
    log_ratio = batch["log_probs_old"] - batch["log_probs_ref"]
    for kl in (log_ratio**2 / 2, torch.expm1(-log_ratio) + log_ratio):
        rewards = pt.place_scores(batch["scores"], batch["mask"]) - batch["kl_coef"] * kl
        assert names({**batch, "kl": kl, "rewards": rewards, "returns": None}) == []


def test_names_of_other_libraries_and_forms_of_masks(batch):
    same = read_batch({
        "logprobs": batch["log_probs_old"], "ref_logprobs": batch["log_probs_ref"], "scores": batch["scores"],
        "padding_mask": ~batch["mask"], "stop_token_id": batch["eos_id"], "responses": batch["responses"], "more": 1,
    })  # fmt: skip
    assert torch.equal(same["mask"], batch["mask"]) and same["log_probs_old"] is batch["log_probs_old"]
    assert "more" not in same and same["eos_id"] == batch["eos_id"]
    openrlhf = {"base_action_log_probs": batch["log_probs_old"], "action_log_probs": batch["log_probs_old"],
                "action_mask": batch["mask"].float(), "updates_done": 4}  # fmt: skip
    assert names(openrlhf) == ["reference equals policy"]
    for name in ("scores", "rewards"):  # one number a response is a score, whatever it is called
        assert name in read_batch({"rewards": batch[name]})
    made = dataclasses.make_dataclass("Experience", ["advantages", "action_mask"])
    assert names(made(batch["advantages"] + 0.5, batch["mask"].long())) == ["not centred"]
    assert names({key: value.tolist() for key, value in batch.items() if isinstance(value, torch.Tensor)}) == []
    others = [other for _, more in FIELDS.values() for other in more.split()]
    assert len(others) == len(set(others)) and not set(others) & set(FIELDS)


def test_whatever_subset_is_given_works(batch):
    assert checkup({}) == [] and checkup({"unknown": 3}) == []
    for name in batch:
        assert checkup({name: batch[name]}) == []
        assert checkup({key: value for key, value in batch.items() if key != name}) == []
    one = {key: value[:1] if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
    assert {finding.name for finding in checkup(one)} <= {"not centred"}, "one row of a whitened batch"


@pytest.mark.parametrize("widened", [False, True])
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_is_no_finding(half, widened, worlds):
    small = ("log_probs_old", "log_probs_ref", "log_probs_sampled", "entropy")
    patient = Patient(world=worlds["review"], num_updates=3, batch_size=32)
    patient.run()
    for batch in patient.evidence():
        for name in small:
            if name in batch:
                batch[name] = batch[name].detach().to(half).to(torch.float32 if widened else half)
        assert names(batch) == []


@pytest.mark.parametrize("changes", [{"missing_eos_penalty": 1.0}, {"kl_target": 2.0, "kl_horizon": 100}])
def test_a_penalty_and_an_adaptive_coefficient_are_no_finding(changes, worlds):
    patient = Patient(world=worlds["review"], num_updates=3, batch_size=32, **changes)
    log = patient.run()
    assert [names(batch) for batch in patient.evidence()] == [[], [], []]
    assert max(log.metrics["reward_gap"]) < 1e-3


def test_without_a_real_token_only_that_is_said(evidence):
    for batch in evidence:
        assert names(dict(batch, mask=batch["mask"] & False, eos_id=None)) == ["empty response"]


@pytest.mark.parametrize(("changed", "words"), [
    ({"values": torch.zeros(32, 5)}, r"values of shape \(32, 5\) and responses of shape \(32, 6\) must have the same"),
    ({"values": torch.zeros(32)}, r"values of shape \(32,\) and responses of shape \(32, 6\)"),
    ({"scores": torch.zeros(31)}, r"scores of shape \(31,\) and responses of shape \(32, 6\) must have the same B"),
])  # fmt: skip
def test_shapes_that_do_not_fit_are_refused(changed, words, batch):
    with pytest.raises(ValueError, match=words):
        checkup(batch | changed)


@pytest.mark.parametrize(("field", "words"), [
    ({"eos_id": [1, 2]}, r"eos_id must be a token id, got \[1, 2\]"), ({"eos_id": float("nan")}, "eos_id must be"),
    ({"kl_coef": "low"}, "kl_coef must be number, got 'low'"), ({"values": "abc"}, "values must be .*, got 'abc'"),
    ({"values": [[1.0, 2.0], [1.0]]}, "values must be "), ({"log_probs_old": len}, "log_probs_old must be "),
    ({"policy_loss": 0.5}, "policy_loss must be a function of .*, got float"),
    ({"policy_loss": lambda *given: None}, "a loss must be a scalar tensor, got None"),
    ({"value_loss": lambda new, G, old, mask: (new - G) ** 2}, "a loss must be a scalar tensor, got tensor"),
    ({"values": torch.zeros(1, 2, 3)}, r"^values of shape \(1, 2, 3\) must have a shape \[B, T\]$"),
])  # fmt: skip
def test_a_field_that_holds_something_else_is_named(field, words):
    with pytest.raises(ValueError, match=words):
        checkup(field)


@pytest.mark.filterwarnings("error")
def test_arrays_may_be_read_only_or_reversed(batch):
    arrays = {key: value.numpy()[::-1] for key, value in batch.items() if isinstance(value, torch.Tensor)}
    for array in arrays.values():
        array.flags.writeable = False
    assert names(batch | arrays) == []


def test_something_else_is_refused():
    with pytest.raises(ValueError, match="batch must be a dict or a dataclass of tensors, got type"):
        checkup(pt.Rollout)
    with pytest.raises(ValueError, match="batch must be a dict or a dataclass of tensors, got list"):
        checkup([1, 2])


def test_a_finding_reads_as_a_sentence():
    text = str(pt.Finding("KL is no estimate", "kl is odd.", ("kl_sign",)))
    assert text == "KL is no estimate: kl is odd. Resembles: the sign of the KL."


def test_a_score_in_the_cell_after_the_last_token_is_no_fault(batch):
    """So does TRL. One more cell away is a fault again."""
    rewards, mask = pt.shape_rewards(torch.zeros(len(batch["mask"])), batch["log_probs_old"], batch["log_probs_ref"],
                                     batch["kl_coef"], batch["mask"])[0], batch["mask"] != 0  # fmt: skip
    width, last = mask.shape[1], mask.sum(1) - 1
    assert (last < width - 2).any()
    for away, found in ((0, []), (1, []), (2, ["rewards do not add up"])):
        moved = rewards.clone()
        moved[torch.arange(len(mask)), (last + away).clamp(max=width - 1)] += batch["scores"]
        given = {name: batch[name] for name in ("log_probs_old", "log_probs_ref", "kl_coef", "scores", "mask")}
        assert names(given | {"rewards": moved}) == found, away
