"""Train state whose layers lie by stage of a pipeline between steps."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class LayerOrder:
    """Order of the elements of layers in arrays, such that tiles of stages hold whole layers.

    For p stages, v chunks and n layers of a chunk, layer (c p + s) n + j is layer j of chunk c of
    stage s.

    Attributes:
      stages, chunks: their numbers.
      dim: None for one array [layers, ...], whose rows are in the order of (s, c, j). Otherwise a
        dim of arrays of one layer each. The dim of size p b has elements (e, t), t < p, in the
        layers' order; array (c n + j) p + t then holds elements (s, e) of stage s in the place of
        (e, t), so that tile s of p tiles is of layers of stage s alone.
    """

    stages: int
    chunks: int
    dim: int | None

    def __str__(self) -> str:
        chunks = f" chunks:{self.chunks}" if self.chunks > 1 else ""
        dim = f" dim:{self.dim}" if self.dim is not None else ""
        return f"layers<stages:{self.stages}{chunks}{dim}>"


@dataclasses.dataclass(frozen=True, slots=True)
class StagedArguments:
    """Arguments whose elements are exchanged with one another's.

    Attributes:
      arguments: positions, in the order of the layers; one array with rows for all layers.
    """

    arguments: tuple[int, ...]
    order: LayerOrder


@dataclasses.dataclass(frozen=True, slots=True)
class StagedState:
    """Arguments and tied results by stage.

    Attributes:
      groups: arguments of one kind each.
      edges: of other kinds of layers' arguments, which keep the layers' order, an argument and the
        reason.
    """

    groups: tuple[StagedArguments, ...] = ()
    edges: tuple[str, ...] = ()

    def of_argument(self, position: int) -> LayerOrder | None:
        """Order of an argument; None for the usual order."""
        found = (g.order for g in self.groups if position in g.arguments)
        return next(found, None)


IN_LAYERS_ORDER = StagedState()
