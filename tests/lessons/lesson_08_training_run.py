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
BROWSER = ()
ANSWERS = {}
