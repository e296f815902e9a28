"""Rewriting of modules, region by region and op by op."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from partir_search.ir.core import Module, Value
from partir_search.ir.numbering import number
from partir_search.ir.rewriter import RegionRewriter


class Rewriter(RegionRewriter):
    """Copy of a module; subclasses override the copy of regions, ops or values.

    Attributes:
      module: the module to rewrite.
    """

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.module = module

    def run(self) -> Module:
        """Returns the rewritten module, without ops whose results are unused."""
        module = self.module
        body = self.region(module.body)
        new = dataclasses.replace(module, body=body, values=[], ops=[], constants={})
        number(new, self.constants())
        return new

    def constants(self) -> Mapping[int, tuple[Value, Any]]:
        """Returns the new module's constants, (value, array) by any distinct keys."""
        module = self.module
        return {i: (self.value(module.values[i]), a) for i, a in module.constants.items()}
