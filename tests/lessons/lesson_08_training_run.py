from ppo_teach.explorers import training_lab
from ppo_teach.explorers.run import CURVES, KNOBS

from . import Case

EMPTY = (*CURVES, *(f"kept_{name}" for name in CURVES), "turned", *(f"turned_{panel}" for panel in range(5)))
EXPLORERS = {
    "training_lab": Case(  # its curves move when it trains: tests/test_training_lab.py
        build=training_lab,
        moves=dict.fromkeys((*KNOBS, "seed", "score", "colour"), ()) | {"kl_coef": ("optimum", "optimum_x")},
        fixed=("frontier", "frontier_x", "now"),
        gaps=("optimum", "optimum_x", *EMPTY, *(f"{name}_x" for name in EMPTY)),
    )
}
BROWSER = ()  # the lab has tests of its own: tests/browser/test_training_lab_browser.py
ANSWERS = {
    "def first_at_90_percent(": (
        "    bar = rewards[0] + 0.9 * (rewards[-1] - rewards[0])\n"
        "    return next(i for i, reward in enumerate(rewards) if reward >= bar)",
        "    return next(i for i, reward in enumerate(rewards) if reward >= 0.9 * rewards[-1])",
        "the first value that is 90% of the last one",
    ),
    "my_kl_coef = ": ("my_kl_coef = 0.3", "my_kl_coef = 0.02", "Must a nat become dearer or cheaper?"),
    "my_values = ": ("my_values = [4, 8, 12]", "my_values = [4, 4, 4]", "All three are equal."),
}  # fmt: skip
