"""The live lab without a browser: it trains, its knobs take effect at the next update, its buttons do what they say."""

import asyncio
import csv
import io
import re
import time
from base64 import b64decode

import numpy as np
import pytest

from ppo_teach import ChainWorld, PPOConfig
from ppo_teach.explorers import training_lab
from ppo_teach.explorers.run import CURVES, KNOBS, PRESETS, _room


def use(scenario, *args, **options):
    """Run a scenario with a lab on an event loop, as a kernel does."""
    async def inside():
        lab = training_lab(*args, **options)
        try:
            await scenario(lab)
        finally:
            lab.close()
            await asyncio.sleep(0.02)
            assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    asyncio.run(inside())


def test_it_trains_and_draws_what_the_log_says():
    async def scenario(lab):
        log = await lab.start(12)
        drawn = lab.drawn()
        for name, (metric, _, _) in CURVES.items():
            if name != "true_score":
                np.testing.assert_allclose(drawn[name], log.metrics[metric])
        assert log.metrics["mean_reward"][-1] > log.metrics["mean_reward"][0] + 1
        assert drawn["now_x"][0] == pytest.approx(np.mean(log.metrics["kl_per_response"][-3:]))
        assert "Update 12 (finished)" in lab.words and f"{log.metrics['mean_reward'][-1]:+.2f}" in lab.words
        assert len(await lab.start()) == 60 and len(lab.drawn()["reward"]) == 60

    use(scenario)


def test_a_knob_takes_effect_at_the_next_update_and_is_marked():
    async def scenario(lab):
        await lab.start(3)
        lab.sliders["kl_coef"].value = 2
        lab.sliders["num_epochs"].value = 8
        log = await lab.start(5)
        assert log.metrics["kl_coef"] == [0.1, 0.1, 0.1, 2, 2] and log.metrics["num_steps"] == [8, 8, 8, 16, 16]
        assert lab.changes == [(3, "β 2"), (3, "epochs 8")]
        drawn = lab.drawn()
        assert all(list(drawn[f"turned_{panel}"]) == [3, 3] for panel in range(5))
        lab.restart()
        assert lab.changes == [] and np.isnan(lab.drawn()["turned_0"]).all()

    use(scenario, ChainWorld())


@pytest.mark.parametrize("name", KNOBS)
def test_every_knob_reaches_the_trainer(name):
    async def scenario(lab):
        for value in (lab.canvas.sliders[[s.name for s in lab.canvas.sliders].index(name)].positions[0],):
            lab.sliders[name].value = value
            lab.step()
            assert getattr(lab.run.trainer.config, name) == value

    use(scenario, ChainWorld())


def test_buttons():
    async def scenario(lab):
        press = lab.canvas.actions
        press["Step"]()
        assert len(lab.log) == 1
        press["Start"]()
        await asyncio.sleep(0.3)
        press["Pause"]()
        at = len(lab.log)
        await asyncio.sleep(0.3)
        assert 1 < at == len(lab.log) and "(paused)" in lab.words
        press["Keep this run"]()
        assert lab.words == "This run stays in the picture, dotted."
        press["Reset"]()
        drawn = lab.drawn()
        assert len(lab.log) == 0 and len(drawn["kept_reward"]) == at and np.isnan(drawn["reward"]).all()
        press["Keep this run"]()
        assert np.isnan(lab.drawn()["kept_reward"]).all()
        press["Large type"]()
        assert "ppo-large" in lab._dom_classes
        press["Large type"]()
        assert "ppo-large" not in lab._dom_classes

    use(scenario, ChainWorld())


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    async def scenario(lab):
        runs = []
        for seed in (0, 0, 1):
            lab.sliders["seed"].value = seed
            lab.restart()
            runs.append((await lab.start(3)).metrics)
        assert runs[0] == runs[1] != runs[2]

    use(scenario, ChainWorld())


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_sets_its_knobs_and_asks(preset):
    async def scenario(lab):
        lab.sliders["gamma"].value = 0.5
        lab.load(preset)
        values, value_coef, question = PRESETS[preset]
        assert question in lab.words and lab.run.trainer.config.value_coef == value_coef
        assert all(lab.sliders[name].value == value for name, value in values.items())
        assert "gamma" in values or lab.sliders["gamma"].value == 1.0
        assert (lab.run.trainer.score is lab.learned) == ("score" in values)
        lab.step()
        assert len(lab.log) == 1 and ("The critic learns nothing" in lab.words) == (preset == "No critic")

    use(scenario)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_works_in_the_other_world_too(preset):
    async def scenario(lab):
        lab.load(preset)
        lab.step()
        assert len(lab.log) == 1 and lab.canvas.error == ""

    use(scenario, ChainWorld())


def test_a_closed_lab_leaves_no_widget():
    from ipywidgets.widgets.widget import _instances

    before = set(_instances)
    training_lab(ChainWorld()).close()
    assert set(_instances) <= before


def test_an_unknown_preset_is_refused():
    async def scenario(lab):
        with pytest.raises(ValueError, match="preset must be one of .*Healthy.*, got 'x'"):
            lab.load("x")

    use(scenario, ChainWorld())


def test_save_offers_picture_and_log():
    async def scenario(lab):
        await lab.start(2)
        lab.save()
        links = dict(re.findall(r'download="training_lab.(\w+)" href="data:[\w/+]+;base64,([^"]+)"', lab.links.value))
        assert b64decode(links["png"]).startswith(b"\x89PNG") and b"<svg" in b64decode(links["svg"])
        rows = list(csv.DictReader(io.StringIO(b64decode(links["csv"]).decode())))
        assert [float(row["mean_reward"]) for row in rows] == lab.log.metrics["mean_reward"]

    use(scenario, ChainWorld())


def test_an_error_is_shown_and_the_lab_stays_usable():
    async def scenario(lab):
        sample = lab.run.trainer.sample
        lab.run.trainer.sample = lambda: 1 / 0
        with pytest.raises(ZeroDivisionError):
            await lab.start(2)
        assert "ZeroDivisionError" in lab.canvas.error and len(lab.log) == 0
        lab.run.trainer.sample = sample
        assert len(await lab.start(2)) == 2 and lab.canvas.error == ""

    use(scenario, ChainWorld())


def test_a_second_lab_stops_the_first():
    async def scenario(lab):
        lab.start(1000)
        await asyncio.sleep(0.2)
        second = training_lab(ChainWorld())
        at = len(lab.log)
        await asyncio.sleep(0.2)
        assert lab.run.status == "paused" and len(lab.log) == at
        second.close()

    use(scenario, ChainWorld())


def test_reviews_are_coloured_and_escaped():
    async def scenario(lab):
        lab.world.decode = lambda ids: "<script>"
        await lab.start(1)
        advantage = lab.reviews.value
        lab.sliders["colour"].value = "KL"
        assert "#E69F00" in advantage and "#D55E00" in lab.reviews.value and "#E69F00" not in lab.reviews.value
        assert "<script" not in advantage and "&lt;script&gt;" in advantage

    use(scenario, ChainWorld())


def test_a_picture_costs_less_than_a_tenth_of_an_update():
    """A ratio within one run: the fastest of several, so that a busy machine does not decide."""
    async def scenario(lab):
        await lab.start(20)
        updates, pictures = [], []
        for _ in range(10):
            start = time.process_time()
            lab.run.trainer.step()
            updates.append(time.process_time() - start)
            start = time.process_time()
            lab.draw()
            pictures.append(time.process_time() - start)
        assert min(pictures) < 0.1 * min(updates)

    use(scenario)


def test_axes_grow_by_doubling_and_never_cut():
    assert _room((0, 5), [1, 4.9]) == (0, 5) and _room((0, 5), [11]) == (0, 20) and _room((-1, 3), [-2.5]) == (-3, 3)
    assert _room((0, 5), [np.nan]) == (0, 5)


def test_it_starts_where_the_config_says():
    async def scenario(lab):
        assert lab.sliders["kl_coef"].value == 0.3 and lab.config().kl_coef == 0.3

    use(scenario, ChainWorld(), PPOConfig(kl_coef=0.3))


def test_a_config_between_the_positions_is_honoured():
    wanted = dict(kl_coef=0.07, clip_epsilon=0.25, gamma=0.97, lam=0.7, num_epochs=12, learning_rate=3e-4)

    async def scenario(lab):
        lab.step()
        used = lab.run.trainer.config
        assert {name: getattr(used, name) for name in wanted} == wanted and lab.changes == []
        assert used.num_minibatches == 4 and lab.sliders["seed"].value == 42
        lab.sliders["kl_coef"].value = 0.08
        assert lab.sliders["kl_coef"].value == 0.07
        lab.sliders["kl_coef"].value = 2
        lab.reset()
        assert lab.config().kl_coef == 0.07

    use(scenario, ChainWorld(), PPOConfig(**wanted, num_minibatches=4), seed=42)


def test_the_coefficient_can_be_turned_while_it_adapts():
    async def scenario(lab):
        lab.step()
        lab.sliders["kl_coef"].value = 1.5
        lab.step()
        lab.step()
        assert lab.log.metrics["kl_coef"][:2] == [0.1, 1.5] and lab.log.metrics["kl_coef"][2] != 1.5
        assert f"at β = {lab.log.metrics['kl_coef'][2]:.4g}" in lab.words

    use(scenario, ChainWorld(), PPOConfig(kl_target=2.0))


@pytest.mark.parametrize(
    ("name", "value"),
    [("world", "chain"), ("config", {"kl_coef": 0.1}), ("num_updates", 0), ("num_updates", 1.5), ("num_updates", "3"),
     ("num_updates", None), ("seed", -1), ("seed", 1.5), ("seed", "a")],
)  # fmt: skip
def test_what_the_lab_cannot_start_with_is_named(name, value):
    with pytest.raises(ValueError, match=f"^{name} must be .*, got {re.escape(repr(value))}"):
        training_lab(**{"world": ChainWorld(), name: value})
