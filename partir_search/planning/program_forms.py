"""Forms of a traced program: iterations in parts, attention as one op, equal layers as scans."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.passes.attention import with_attention
from partir_search.passes.block_scans import with_block_scans
from partir_search.passes.block_selections import with_block_selections
from partir_search.passes.kept_values import without_kept
from partir_search.plan.plan import Plan
from partir_search.plan.rewrites import Rewrites
from partir_search.plan.spec import PlanSpec
from partir_search.planning.iteration_forms import iteration_forms
from partir_search.planning.layer_forms import layer_forms
from partir_search.planning.options import Options
from partir_search.planning.parallelism import ContextParallel
from partir_search.planning.stage import Stage
from partir_search.planning.trace import Traced
from partir_search.rules.registry import RuleTable


def first_stage(traced: Traced, mesh: MeshShape) -> Stage:
    """First stage of a traced program: cumulative ops and selections in blocks for the mesh."""
    stage = Stage(traced.module, traced.rewrites, traced.passes)
    stage = stage.run("block_scans", lambda module: with_block_scans(module, mesh))
    return stage.run("block_selections", lambda module: with_block_selections(module, mesh))


def program_forms(
    traced: Traced,
    known: Rewrites | None,
    options: Options,
    is_short: Callable[[], bool] = lambda: True,
) -> Iterator[Stage]:
    """Forms of a program to plan: with and without iterations in parts, each attention as one op,
    and scans.

    Args:
      traced: the traced program.
      known: rewrites of a plan to replay, whose form is the only one.
      options: options of `auto_partition`.
      is_short: False if no plan of the forms so far lacks memory.
    """
    wanted = known.scan_layers if known else options.scan_layers
    parts = known.parallel_iterations if known else None
    first = first_stage(traced, options.shape)
    forms: Iterable[Stage] = [first]
    if not traced.rewrites.pipeline:
        forms = iteration_forms(first, options.shape, parts, is_short)
    for stage in forms:
        for fused in attention_forms(stage, known, options):
            yield from layer_forms(fused, wanted)


def attention_forms(plain: Stage, known: Rewrites | None, options: Options) -> list[Stage]:
    """A form of the program unchanged, with each attention as one op, or both.

    Stages of a pipeline have each attention as one op: scores in slots would fill the memory. A
    step that competes with pipelines is planned in both forms.
    """
    given = options.schedule
    tactics = () if given is None or isinstance(given, Plan | PlanSpec) else given
    wanted = any(isinstance(t, ContextParallel) for t in tactics)
    staged = bool(plain.rewrites.pipeline)
    fused = wanted or staged or options.rings or options.beside_pipelines
    if not (known.attention if known else fused):
        return [plain]
    reasons: list[str] = []

    def rewrite(module: Module) -> Module:
        found, refused = with_attention(module, RuleTable())
        reasons.extend(refused)
        return without_kept(found, RuleTable())

    rewrites = dataclasses.replace(plain.rewrites, attention=True)
    stage = plain.run("recognize_attention", rewrite, rewrites)
    if stage.module is plain.module:
        if wanted:
            raise ValueError(
                "ContextParallel: the program has no attention that can go over its keys block"
                " by block: a product, masks, a softmax over keys, a product"
                + "".join(f"; {r}" for r in reasons[:3])
            )
        return [dataclasses.replace(stage, rewrites=plain.rewrites)]
    return [stage] if known or wanted or staged else [plain, stage]
