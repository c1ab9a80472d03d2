"""Where text and reward come from: ReviewWorld (readable) and ChainWorld (exact)."""

from .chain import ChainWorld
from .review import ReviewWorld

try:
    from .chain import ChainWorld
except ModuleNotFoundError:
    ChainWorld = None

__all__ = ["ChainWorld", "ReviewWorld"]
