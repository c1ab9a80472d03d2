from ppo_teach.explorers import step_explorer

from . import Case

EXPLORERS = {
    "step_explorer": Case(
        build=step_explorer,
        moves={"stage": ("now",), "tensor": ("chosen", "shown")},
        changes={"review": ("shown", "numbers"), "steps": ("clipped",)},
        fixed=("frozen", "with_graph", "border", "tokens_x", "table_x"),
    )
}
BROWSER = (("stage", "review", "steps"), "now.lo")
ANSWERS = {}
