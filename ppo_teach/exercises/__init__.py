"""The exercises of the notebooks (layer 6): cases, right answers, and the mistakes they recognise.

`check_*(answer)` returns a Verdict that displays itself, `hint(name, level)` gives one of three hints, and
`solution(name)` shows the package's own function. One module a notebook; the machinery is in `checker.py`.
"""

from IPython.display import display

from ..checker import Hint
from ..notebook import show_source
from . import clinic, clipping, gae, hacking, how_far, kl, policy, rewards, run, step
from .clinic import check_broken_lines, check_patients, check_reward_gap
from .clipping import check_clip_fraction, check_clipped_policy_loss, check_quadrants
from .gae import check_gae, check_masked_whiten, check_td_errors
from .hacking import check_leash_and_stop, check_own_reward, check_stop_by_signs
from .how_far import check_kl_budget, check_optimal_policy, check_soft_values
from .kl import check_kl_controller, check_kl_estimate, check_shape_rewards
from .policy import check_response_log_probs, check_response_mask, check_stored_log_prob
from .rewards import check_bradley_terry, check_place_scores
from .run import check_first_at_90, check_reward_under_budget, check_useless_critic
from .step import check_invariants, check_training_step

TASKS = {task.name: task for module in (clinic, clipping, gae, hacking, how_far, kl, policy, rewards, run, step) for task in module.EXERCISES}


def hint(name: str, level: int = 1) -> None:
    """Show hint 1, 2 or 3 of an exercise; each gives away more. Errors: ValueError for an unknown one.

    Taught in: notebooks/01_language_model_as_policy.ipynb
    """
    if name not in list(TASKS):
        raise ValueError(f"name must be one of {sorted(TASKS)}, got {name!r}")
    if not isinstance(level, int) or level not in (1, 2, 3):
        raise ValueError(f"level must be 1, 2 or 3, got {level!r}")
    display(Hint(False, False, None, TASKS[name].hints[level - 1], f"Hint {level} of 3"))


def solution(name: str) -> None:
    """Show the package function that answers an exercise. Errors: ValueError for an unknown name.

    Taught in: notebooks/01_language_model_as_policy.ipynb
    """
    if name not in list(TASKS):
        raise ValueError(f"name must be one of {sorted(TASKS)}, got {name!r}")
    for function in TASKS[name].source:
        show_source(function)
