"""Where text and reward come from: ReviewWorld (readable) and ChainWorld (exact)."""

from .chain import ChainWorld
from .review import ReviewWorld

__all__ = ["ChainWorld", "ReviewWorld"]
