"""Module rewriters: a module in, a module out, region by region and op by op."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from partir_search.ir.core import Module, Value
from partir_search.ir.numbering import number
from partir_search.ir.rewriter import RegionRewriter


class Rewriter(RegionRewriter):
    """Writes a module anew.

    Attributes:
      module: the module that is rewritten.
    """

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.module = module

    def run(self) -> Module:
        """The rewritten module; ops whose results nothing uses are dropped."""
        module = self.module
        body = self.region(module.body)
        new = dataclasses.replace(module, body=body, values=[], ops=[], constants={})
        number(new, self.constants())
        return new

    def constants(self) -> Mapping[int, tuple[Value, Any]]:
        """Arrays that the new module closes over, with their values, by any distinct keys."""
        module = self.module
        return {i: (self.value(module.values[i]), a) for i, a in module.constants.items()}
