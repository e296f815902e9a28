"""Kernels of `experiments.one_device`: events of a device with the work that the HLO text says."""

from __future__ import annotations

import pytest

from experiments.one_device.kernels import Event, Kernel, kernels_of
from partir_search.aot.computations import computations, dots

TEXT = """HloModule step

%fused_tanh (p0: f32[64,32]) -> f32[64,32] {
  %p0 = f32[64,32]{1,0} parameter(0)
  ROOT %t = f32[64,32]{1,0} tanh(%p0)
}

%fused_dot (p0: bf16[4,64,16], p1: bf16[4,16,8]) -> bf16[4,64,8] {
  %p0 = bf16[4,64,16]{2,1,0} parameter(0)
  %p1 = bf16[4,16,8]{2,1,0} parameter(1)
  ROOT %d = bf16[4,64,8]{2,1,0} dot(%p0, %p1), lhs_batch_dims={0}, lhs_contracting_dims={2}, \
rhs_batch_dims={0}, rhs_contracting_dims={1}
}

ENTRY %main (a: f32[64,128], w: f32[128,32], x: bf16[4,64,16], y: bf16[4,16,8]) -> f32[64,32] {
  %a = f32[64,128]{1,0} parameter(0)
  %w = f32[128,32]{1,0} parameter(1)
  %x = bf16[4,64,16]{2,1,0} parameter(2)
  %y = bf16[4,16,8]{2,1,0} parameter(3)
  %custom-call.1 = (f32[64,32]{1,0}, s8[4096]{0}) custom-call(%a, %w), \
custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":\
{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  %get-tuple-element.1 = f32[64,32]{1,0} get-tuple-element(%custom-call.1), index=0
  %gemm_fusion_dot.2 = bf16[4,64,8]{2,1,0} fusion(%x, %y), kind=kCustom, calls=%fused_dot
  ROOT %loop_tanh_fusion = f32[64,32]{1,0} fusion(%get-tuple-element.1), kind=kLoop, \
calls=%fused_tanh
}
""".replace("\\\n", "")

NAMES = ("nvjet_tst_256x128", "gemm_fusion_dot_2", "loop_tanh_fusion", "Memset 0")
GEMM, DOT, TANH = 2 * 64 * 128 * 32, 2 * 4 * 64 * 16 * 8, 2 * 64 * 32 * 4


def events(*names: str) -> list[Event]:
    return [Event(name, float(i), 1e-6) for i, name in enumerate(names)]


def test_work_of_kernels() -> None:
    """Fusions by name, a library's call by order, its scratch memory not counted."""
    gemm, dot, tanh, other = kernels_of(TEXT, events(*NAMES))
    nbytes = 4 * (64 * 128 + 128 * 32 + 64 * 32)
    assert gemm == Kernel("product, f32", 1e-6, nbytes, GEMM)
    assert dot.kind == "Triton product, bf16"
    assert dot.flops == DOT
    assert tanh == Kernel("elementwise, f32", 1e-6, TANH, 0.0)
    assert other.kind == "other"


def test_calls_of_libraries_that_do_not_match() -> None:
    """Twice as many library kernels as calls, as in a loop: none is given a call's work."""
    gemm, *_ = kernels_of(TEXT, events(NAMES[0], *NAMES))
    assert gemm == Kernel("library", 1e-6)


def test_calls_of_libraries_by_instruction() -> None:
    """The profiler names the instruction of each run of a loop's call."""
    runs = [Event(NAMES[0], float(i), 1e-6, "custom-call.1") for i in range(2)]
    assert [each.flops for each in kernels_of(TEXT, runs)] == [GEMM, GEMM]


def test_dots_of_a_computation() -> None:
    (part,) = [c for c in computations(TEXT) if c.name == "fused_dot"]
    assert list(dots(part)) == [(pytest.approx(DOT), "bf16")]
