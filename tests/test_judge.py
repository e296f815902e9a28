"""The judge of seconds on a schedule written by hand."""

from __future__ import annotations

import dataclasses

import pytest

import partir_search as ps
from partir_search.aot.judge import judge
from tests.support import ROUND

MESH = ps.MeshShape(("data", "model"), (2, 4))
MACHINE = dataclasses.replace(
    ps.MACHINES["tpu_v5e"],
    link_bytes_per_s=1e6,
    hop_seconds=0.0,
    hbm_bytes_per_s=1e6,
    hbm_efficiency=1.0,
)

# ruff: noqa: E501
SCHEDULE = """
%fused (p: f32[8]) -> f32[8] {
  ROOT %mul = f32[8] multiply(%p, %p), backend_config={"estimated_cycles":"900"}
}

%gathering (p: f32[500]) -> f32[1000] {
  ROOT %all-gather.1 = f32[1000] all-gather(%p), replica_groups={{0,4},{1,5},{2,6},{3,7}}, dimensions={0}
}

ENTRY %main (x: f32[500]) -> f32[1000] {
  %async-collective-start = f32[1000] fusion(%x), kind=kCustom, calls=%gathering
  %fusion.1 = f32[8] fusion(%x), kind=kLoop, calls=%fused, backend_config={"estimated_cycles":"1500000"}
  %async-collective-done = f32[1000] fusion(%async-collective-start), kind=kCustom, calls=%gathering
  %all-reduce.1 = f32[1000] all-reduce(%fusion.1), replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%add
  %fusion.2 = f32[100] fusion(%x), kind=kCustom, calls=%fused
  ROOT %copy = f32[1000] copy(%all-reduce.1), backend_config={"estimated_cycles":"9223372036854775807"}
}
"""


def test_elements_of_tuples_are_priced_alone() -> None:
    """A gather without cycles that reads an element of a tuple: 400 bytes of 40,400."""
    tuples = '  %pair = (f32[100], f32[10000]) custom-call(), custom_call_target="x"\n  %fusion.2'
    text = SCHEDULE.replace("  %fusion.2", tuples).replace(
        "f32[100] fusion(%x), kind=kCustom", "f32[1000] fusion(%pair#0), kind=kCustom"
    )
    assert text.count("%pair") == 2
    found, plain = (judge(each, MESH, MACHINE).compute for each in (text, SCHEDULE))
    assert found - plain == pytest.approx(4.4e-3 - 0.4e-3)


def test_schedule_by_hand() -> None:
    """1 ms of kernel hides half of the 2 ms gather; 4 ms of all_reduce are not hidden; a gather
    without cycles writes 400 bytes at 1 MB/s (its operand is no op of the schedule); unknown
    cycles do not count.
    """
    found = judge(SCHEDULE, MESH, MACHINE)
    assert found.compute == pytest.approx(1e-3 + 0.4e-3)
    assert found.total == pytest.approx(2e-3 + 4e-3 + 0.4e-3)


KERNELS = """
%gemm (p: bf16[100,50], q: bf16[50,20]) -> bf16[100,20] {
  %p = bf16[100,50] parameter(0)
  %q = bf16[50,20] parameter(1)
  ROOT %dot.1 = bf16[100,20] dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (x: bf16[100,50], w: bf16[50,20]) -> f32[1000] {
  %x = bf16[100,50] parameter(0)
  %w = bf16[50,20] parameter(1)
  %g = f32[1000] constant(0)
  %all-reduce-start = f32[1000] all-reduce-start(%g), replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%add
  %gemm_fusion = bf16[100,20] fusion(%x, %w), kind=kCustom, calls=%gemm
  ROOT %all-reduce-done = f32[1000] all-reduce-done(%all-reduce-start)
}
"""


def test_kernels_without_cycles() -> None:
    """XLA:GPU's: a product of 200,000 operations at 0.1 GFLOP/s hides half of an all_reduce; its
    16,000 bytes at 10 MB/s would take less.
    """
    machine = dataclasses.replace(ROUND, flops_per_s={"default": 1e8}, hbm_bytes_per_s=1e7)
    found = judge(KERNELS, MESH, machine)
    assert found.compute == pytest.approx(2e-3)
    assert found.total == pytest.approx(4e-3)


def test_a_tpu_without_a_clock_is_an_error() -> None:
    with pytest.raises(KeyError, match="tpu_v6e"):
        judge(SCHEDULE, MESH, ps.MACHINES["tpu_v6e"])
