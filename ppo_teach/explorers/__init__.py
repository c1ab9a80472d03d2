"""Interactive figures (layer 6): frames computed by the package's own functions, sliders over them.

Every explorer is a function that returns an `Explorer` (a widget) with `.sliders`, `.drawn()` and `.close()`.
All it needs is passed in or made inside: no notebook variable can break it. One module a notebook.
"""

from .clinic import clinic_explorer
from .clipping import clip_explorer
from .gae import gae_explorer
from .hacking import hacking_explorer
from .how_far import frontier_explorer
from .kl import kl_explorer
from .policy import sampling_explorer
from .rewards import reward_model_explorer
from .step import step_explorer
from .run import training_lab

__all__ = [
    "clinic_explorer",
    "clip_explorer",
    "frontier_explorer",
    "gae_explorer",
    "hacking_explorer",
    "kl_explorer",
    "reward_model_explorer",
    "sampling_explorer",
    "step_explorer",
    "training_lab",
]
