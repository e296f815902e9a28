"""Arguments of a call: types, placement, and checks before execution."""

from partir_search.arguments.buffers import Buffers, Returned, check_alive
from partir_search.arguments.moves import Moves

__all__ = ["Buffers", "Moves", "Returned", "check_alive"]
