"""Interactive figures (layer 6): frames computed by the package's own functions, sliders over them.

Every explorer is a function that returns an `Explorer` (a widget) with `.sliders`, `.drawn()` and `.close()`.
All it needs is passed in or made inside: no notebook variable can break it. One module a notebook.
"""

from .how_far import frontier_explorer

__all__ = ["frontier_explorer"]
