"""Closed forms of the theory against the simulator: links and FSDP."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.ir.mesh import MeshShape
from partir_search.plan.report.summary import summary
from partir_search.plan.theory_bound import theory_bound
from partir_search.simulator.time.collectives import collective_seconds
from partir_search.theory import fsdp, links

H100 = ps.MACHINES["h100"]


# Links -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["h100", "tpu_v5e"])
@pytest.mark.parametrize("devices", [2, 3, 8, 64, 1024])
def test_collectives_take_the_simulators_seconds(name: str, devices: int) -> None:
    machine = ps.MACHINES[name].across_hosts("far")
    for axis, link in (
        ("near", links.link_inside(machine)),
        ("far", links.link_between(machine)),
    ):
        assert link
        mesh = MeshShape((axis,), (devices,))
        for nbytes in (1e3, 1e6, 1e9):
            found = functools.partial(
                collective_seconds, payload_bytes=nbytes, axes=(0,), mesh=mesh, machine=machine
            )
            gathered = links.all_gather_seconds(nbytes, devices, link)
            assert gathered == pytest.approx(found("all_gather"), rel=1e-12)
            assert gathered == pytest.approx(found("reduce_scatter"), rel=1e-12)
            reduced = links.all_reduce_seconds(nbytes, devices, link)
            assert reduced == pytest.approx(found("all_reduce"), rel=1e-12)
            sent = links.permute_seconds(nbytes, link)
            assert sent == pytest.approx(found("collective_permute"), rel=1e-12)


def test_no_link_between_where_none_is_known() -> None:
    assert links.link_between(ps.MACHINES["v100"]) is None


# FSDP --------------------------------------------------------------------------------------------

GROUPS, WIDTH, RATE = 16, 256, 1e12
LINK = links.Link("test", 1e9, 2e-6)
ALL_F32 = fsdp.Pass("backward, all f32", 4, 4, 4)
BF16, F32 = jnp.bfloat16, jnp.float32


def _loss(weights: list[Any], x: Any, *, dtype: Any, remat: bool) -> Any:
    """Loss of the lecture's linear network; with a tanh per layer where layers run again."""
    y = x
    for w in weights:
        layer = jax.checkpoint(lambda y, w: jnp.tanh(y @ w)) if remat else jnp.matmul
        y = layer(y, w.astype(dtype))
    return jnp.sum(y.astype(F32) ** 2)


def _plan(tokens: int, layers: int, weight: Any, dtype: Any, *, remat: bool, step: bool) -> Any:
    """Plan of the network under ZeRO 3, on a machine where products and links alone take time."""
    machine = dataclasses.replace(
        H100,
        flops_per_s={"default": RATE},
        matmul_efficiencies={},
        matmul_efficiency=1.0,
        hbm_bytes_per_s=1e18,
        link_bytes_per_s=LINK.bytes_per_s,
        hop_seconds=LINK.hop_seconds,
        kernel_seconds=0.0,
    )
    loss = functools.partial(_loss, dtype=dtype, remat=remat)

    def update(weights: list[Any], x: Any) -> list[Any]:
        found = jax.grad(loss)(weights, x)
        return [w - (0.1 * g).astype(w.dtype) for w, g in zip(weights, found, strict=True)]

    weights = [jax.ShapeDtypeStruct((WIDTH, WIDTH), weight)] * layers
    x = jax.ShapeDtypeStruct((tokens * GROUPS, WIDTH), dtype)
    made = ps.auto_partition(
        AbstractMesh((GROUPS,), ("data",)),
        machine=machine,
        donate_argnums=0 if step else None,
        remat=False,
        schedule=[ps.ManualPartition({each: 0}, axis="data") for each in ("x", "weights")],
        progress=False,
        on_overflow="warn",
    )(update if step else loss)
    return made.known_plans(weights, x)["BP(data)+Z3"] if step else made.plan(weights, x)


def _layer(tokens: int, weight: Any, dtype: Any, *, remat: bool = False, step: bool = True) -> Any:
    """Seconds of a further layer under ZeRO 3: exposed, on links, of compute.

    Args:
      tokens: of a group.
      weight / dtype: of weights as arguments, and in products.
      step: the whole step; without, the loss alone.
    """
    found = []
    for layers in (6, 12):
        plan = _plan(tokens, layers, weight, dtype, remat=remat, step=step)
        sent = sum(e.seconds for e in plan.timeline.events if e.lane != "compute")
        found.append((plan.cost.collective_seconds, sent, plan.cost.compute_seconds))
    return [(many - few) / 6 for few, many in zip(*found, strict=True)]


@pytest.mark.parametrize(
    ("dtype", "of"), [(BF16, fsdp.FORWARD), (F32, fsdp.FORWARD_F32)], ids=["bf16", "f32"]
)
@pytest.mark.parametrize("share", [0.4, 0.8, 1.05])
def test_forward_passes_of_fsdp_expose_the_excess(dtype: Any, of: fsdp.Pass, share: float) -> None:
    """The excess of collectives over products, and nothing beyond the threshold."""
    n = WIDTH * WIDTH
    needed = fsdp.tokens_needed(LINK, RATE, of, groups=GROUPS, parameters=n)
    tokens = int(share * needed)
    excess = fsdp.excess_seconds(n, tokens, GROUPS, LINK, RATE, of)
    assert (excess > 0) == (share < 1)
    exposed, sent, computed = _layer(tokens, dtype, dtype, step=False)
    assert exposed == pytest.approx(max(0.0, excess), rel=1e-6, abs=1e-12)
    assert sent == pytest.approx(fsdp.weight_seconds(n, GROUPS, LINK, of), rel=1e-6)
    assert computed == pytest.approx(fsdp.product_seconds(n, tokens, RATE, of), rel=1e-2)


STEPS = [
    (BF16, BF16, False, (fsdp.FORWARD, fsdp.BACKWARD)),
    (F32, F32, False, (fsdp.FORWARD_F32, ALL_F32)),
    (F32, BF16, False, (fsdp.FORWARD, fsdp.BACKWARD)),
    (BF16, BF16, True, (fsdp.FORWARD, fsdp.BACKWARD_REMAT)),
]


@pytest.mark.parametrize(("weight", "dtype", "remat", "passes"), STEPS)
def test_steps_of_fsdp(weight: Any, dtype: Any, remat: bool, passes: tuple[fsdp.Pass, ...]) -> None:
    """Seconds on links and of products; nothing exposed from the threshold of arguments on."""
    n = WIDTH * WIDTH
    needed = [fsdp.tokens_needed(LINK, RATE, of, groups=GROUPS, parameters=n) for of in passes]
    for share in (0.8, 1.1):
        tokens = int(share * max(needed))
        exposed, sent, computed = _layer(tokens, weight, dtype, remat=remat)
        wanted = sum(fsdp.weight_seconds(n, GROUPS, LINK, of) for of in passes)
        assert sent == pytest.approx(wanted, rel=1e-6)
        wanted = sum(fsdp.product_seconds(n, tokens, RATE, of) for of in passes)
        assert computed == pytest.approx(wanted, rel=1e-2)
        # A layer that runs again gathers weights behind a barrier, and XLA:GPU gathers arguments
        # early but no casts.
        if weight == dtype and not remat:
            assert (exposed > 1e-9) == (share < 1)


@pytest.mark.parametrize("share", [0.3, 0.5, 1.5])
def test_plans_name_the_bound_of_fsdp(share: float) -> None:
    """A plan's report names the batch from which weights hide: the formula's tokens."""
    n = WIDTH * WIDTH
    needed = fsdp.tokens_needed(LINK, RATE, groups=GROUPS, parameters=n)
    tokens = int(share * needed)
    plan = _plan(tokens, 24, BF16, BF16, remat=False, step=True)
    bound = theory_bound(plan)
    hidden = bound.batch_that_hides("data")
    assert hidden
    assert hidden * tokens == pytest.approx(needed, rel=0.01)
    assert bound.link == ("data" if share < 1 else None)
    text = dict(summary(plan))["in theory"]
    slowest = "links of 'data'" if share < 1 else "matrix units"
    batch = {0.3: "3.3 times", 0.5: "2 times", 1.5: "0.67 of"}[share]
    assert f"if everything overlapped, set by {slowest}; computation hides the" in text
    assert text.endswith(f"collectives of weights along 'data' from {batch} the batch on")


def test_thresholds_of_the_lecture() -> None:
    """B of about 10 sequences in the lecture; 30,000 tokens of its figures are 3.7 of 8,192."""
    lecture = links.Link("InfiniBand", 50e9, 1e-6)
    assert fsdp.tokens_needed(lecture, 1500e12) == pytest.approx(30_000)
    assert fsdp.tokens_needed(lecture, 989e12) == pytest.approx(19_780)
    between = links.link_between(H100)
    assert between
    attained = H100.matmul_flops_per_s("bfloat16")
    assert fsdp.tokens_needed(between, attained) == pytest.approx(15_230.6)
    assert fsdp.tokens_needed(links.link_inside(H100), attained) == pytest.approx(1_692, rel=1e-3)
    of_passes = [fsdp.tokens_needed(between, attained, of) / 15_230.6 for of in fsdp.PASSES]
    assert of_passes == pytest.approx([1, 2, 1, 1.5, 2 / 3])
    groups = fsdp.groups_at_most(2**24, between, attained)
    assert groups == pytest.approx(1_102, abs=1)
    assert 8 * groups == pytest.approx(8_812, abs=1)
    # Exactly at the threshold collectives and products take equally long.
    n, p = 3.19e9 / 8, 1024
    tokens = fsdp.tokens_needed(between, attained, groups=p, parameters=n)
    assert fsdp.excess_seconds(n, tokens, p, between, attained) == pytest.approx(0, abs=1e-12)
