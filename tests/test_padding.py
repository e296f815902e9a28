"""Uneven dims: found where padding pays, and padded programs compute what the plain ones do."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.ir.mesh import MeshShape
from partir_search.ir.verify import verify
from partir_search.passes.pad import pad_module
from partir_search.passes.pad_choice import Pad, find_pads
from partir_search.plan.plan_bound import PlanBound
from partir_search.plan.report.cells import padding_in_words
from partir_search.rules import RuleTable
from tests.support import check_partition, module_of, state_of

FOUR = MeshShape(("x",), (4,))


def _language_loss(params: Any, tokens: Any) -> Any:
    """An embedding of 21 words, tied to the head: gathers, scatters, a softmax over words."""
    x = params["embed"][tokens[:, :-1]]
    logits = jnp.tanh(x @ params["w"]) @ params["embed"].T
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    return losses.mean()


def _language_args() -> tuple[Any, Any]:
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "embed": jax.random.normal(keys[0], (21, 8)),
        "w": jax.random.normal(keys[1], (8, 8)),
    }
    return params, jax.random.randint(keys[2], (2, 7), 0, 21)


def _step(params: Any, tokens: Any) -> Any:
    loss, grads = jax.value_and_grad(_language_loss)(params, tokens)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


@pytest.mark.devices
def test_padded_vocabulary() -> None:
    """Words tiled by four: masked before sums and maxima, never read beyond their end."""
    params, tokens = _language_args()

    def flat(embed: Any, w: Any, tokens: Any) -> Any:
        return _step({"embed": embed, "w": w}, tokens)

    args = (params["embed"], params["w"], tokens)
    module = module_of(flat, *args)
    rules = list(map(RuleTable(), module.ops))
    padded = pad_module(module, rules, [Pad("a0", 0, 24)])
    verify(padded)
    assert [v.type.shape for v in padded.body.args] == [(21, 8), (8, 8), (2, 7)]
    longer = [v for v in padded.values if 24 in v.type.shape]
    assert not [v for v in padded.values if 21 in v.type.shape and len(v.type.shape) > 2]
    state = state_of(padded, FOUR)
    logits = max(longer, key=lambda v: v.type.nbytes)
    cls = state.graph.class_of[logits.id]
    state.tile(cls, logits.type.shape.index(24), (0,))
    partition = state.partition()
    tiled = [v for v in longer if 0 in sum(partition.layout(v), ())]
    assert len(tiled) > len(longer) / 2
    check_partition(partition, flat, args)


def _narrow(x: Any, w1: Any, w2: Any) -> Any:
    """One step of a small network."""

    def loss(w: Any) -> Any:
        return ((jax.nn.softplus(x @ w[0]) @ w[1]) ** 2).mean()

    value, grads = jax.value_and_grad(loss)((w1, w2))
    return w1 - 0.1 * grads[0], w2 - 0.1 * grads[1], value


def test_which_dims_are_padded() -> None:
    shapes = [jnp.zeros(s) for s in ((1, 64), (64, 1001), (1001, 64))]
    module = module_of(_narrow, *shapes)
    rules = list(map(RuleTable(), module.ops))
    assert find_pads(module, rules, FOUR) == (Pad("a1", 1, 1004),)
    pads = find_pads(module, rules, MeshShape(("x",), (7,)))
    assert {p.size for p in pads} == {70}  # 1001 divides by 7
    even = [jnp.zeros(s) for s in ((1, 64), (64, 1000), (1000, 64))]
    module = module_of(_narrow, *even)
    assert not find_pads(module, list(map(RuleTable(), module.ops)), FOUR)


def test_what_each_axis_divides_is_not_padded_for_all_of_them() -> None:
    """1,016 is 8 times a prime: it divides by 4 and by 8, and 1,024 by both together; 1,004 does
    not divide by 8.
    """
    mesh, found = MeshShape(("x", "y"), (4, 8)), []
    for n in (1016, 1004):
        shapes = [jnp.zeros(s) for s in ((1, 64), (64, n), (n, 64))]
        module = module_of(_narrow, *shapes)
        found.append({p.size for p in find_pads(module, list(map(RuleTable(), module.ops)), mesh)})
    assert found == [set(), {1024}]


@pytest.mark.devices
def test_search_pads_where_it_pays(tmp_path: pathlib.Path) -> None:
    """A batch of 16382 on four devices: the plan is faster than any without padding; it runs, is
    saved and is replayed.
    """
    mesh = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4])
    keys = jax.random.split(jax.random.key(0), 3)
    args = tuple(
        jax.random.normal(k, s) / 30
        for k, s in zip(keys, ((16382, 255), (255, 511), (511, 255)), strict=True)
    )
    plain = ps.auto_partition(mesh, machine="tpu_v5e", pad=False)(_narrow).plan(*args)
    step = ps.auto_partition(mesh, machine="tpu_v5e")(_narrow)
    plan = step.plan(*args)
    assert Pad("x", 0, 16384) in plan.padding
    assert plan.cost.seconds < 0.6 * plain.cost.seconds
    want = jax.jit(_narrow)(*args)
    for a, b in zip(step(*args), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    caption = str(ps.report.arguments_table(plan).caption)
    assert "padded inside of the program: dim 0 of x to 16384" in caption
    plan.save(tmp_path / "plan.json")
    saved = ps.load_plan(tmp_path / "plan.json")
    assert saved.padding == plan.padding
    again = ps.auto_partition(mesh, machine="tpu_v5e", schedule=saved)(_narrow)
    assert again.plan(*args).cost == plan.cost
    for a, b in zip(again(*args), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_padded_plans_without_a_bound_have_that_of_plans_without_padding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exact steps on a form behind the plan without padding end before a bound."""
    args = [jax.ShapeDtypeStruct(s, "float32") for s in ((16382, 255), (255, 511), (511, 255))]
    mesh = AbstractMesh((4,), ("x",))
    bound = ps.auto_partition(mesh, machine="tpu_v5e", pad=False)(_narrow).plan(*args).bound
    monkeypatch.setattr("partir_search.planning.exact_answer.BEHIND", -0.99)
    plan = ps.auto_partition(mesh, machine="tpu_v5e")(_narrow).plan(*args)
    assert plan.padding
    assert bound is not None
    assert plan.bound == PlanBound(bound.seconds, plan.searches[0].cost.seconds, ("padding",))
    assert plan.bound.nearness.endswith("less time")


def test_unknown_dim_is_refused() -> None:
    module = module_of(lambda x: x * 2, jnp.ones(6))
    with pytest.raises(ValueError, match="no dim 3 of a value 'a0'"):
        pad_module(module, list(map(RuleTable(), module.ops)), [Pad("a0", 3, 8)])


def test_reports_name_four_padded_dims() -> None:
    """Reports name the first padded dims and count the others: a cumulative op pads dozens."""
    pads = tuple(Pad(f"slice_{n}", 1, 2**n) for n in range(3, 9))
    assert padding_in_words(pads) == (
        "dim 1 of slice_3 to 8, dim 1 of slice_4 to 16, dim 1 of slice_5 to 32,"
        " dim 1 of slice_6 to 64 and 2 more"
    )
    assert padding_in_words(pads[:1]) == "dim 1 of slice_3 to 8"
