"""Closed forms of the theory against the simulator: tensor parallelism, memory, whole runs."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from models.catalog import MODELS
from partir_search.ir.mesh import MeshShape
from partir_search.passes.attention import with_attention
from partir_search.plan.theory_bound import LinkSeconds, TheoryBound
from partir_search.planning.planner import Planner
from partir_search.rules.registry import RuleTable
from partir_search.theory import fsdp, links, memory, tensor, training
from partir_search.theory.model_sizes import MODEL_SIZES, ModelSizes, find_model

H100 = ps.MACHINES["h100"]
BF16, F32 = jnp.bfloat16, jnp.float32


# A language model --------------------------------------------------------------------------------

SMALL = ModelSizes(2, 512, 8, 8, 2048, 512, sequence=512)


@functools.cache
def _known(
    layers: int,
    mesh: tuple[int, ...],
    batch: int,
    sequence: int = SMALL.sequence,
    dtype: Any = BF16,
) -> Any:
    """Plans of known strategies of a small LLaMA."""
    config = {"d_model": SMALL.width, "d_ff": SMALL.ffn, "heads": SMALL.heads}
    entry = MODELS["llama3-405b"].resized(
        **config,
        layers=layers,
        kv_heads=SMALL.kv_heads,
        vocab=SMALL.vocab,
        seq=sequence,
        dtype=dtype,
    )
    step = ps.auto_partition(
        AbstractMesh(mesh, ("data", "model")[: len(mesh)]),
        machine=dataclasses.replace(H100, hop_seconds=0.0),
        donate_argnums=0,
        remat=False,
        schedule=[],
        progress=False,
        on_overflow="warn",
    )(entry.step)
    return step.known_plans(*entry.abstract_args(batch))


@pytest.mark.parametrize("name", ["llama2-7b", "llama2-70b", "llama3-8b", "llama3-405b"])
def test_parameters_of_models(name: str) -> None:
    params = MODELS[name].resized(layers=1).abstract_args(1)[0].params
    count = sum(x.size for x in jax.tree.leaves(params))
    assert dataclasses.replace(MODEL_SIZES[name], layers=1).parameters == count


def test_parameters_of_published_models() -> None:
    per_layer = MODEL_SIZES["llama3-405b"].layer_parameters / 16384**2
    assert per_layer == pytest.approx(11.875, rel=1e-4)  # 10 in the lecture
    billions = {"gpt3-175b": 175, "opt-175b": 175, "bloom-176b": 176, "llama3-405b": 405.85}
    for name, wanted in billions.items():
        assert MODEL_SIZES[name].parameters == pytest.approx(wanted * 1e9, rel=0.01)


def test_flops_of_a_layer() -> None:
    """6 n T, and attention's scores, here without a skipped half."""
    batch = 4
    tokens = batch * SMALL.sequence
    few, many = (_known(layers, (2,), batch)["BP(data)"].cost.flops for layers in (2, 4))
    wanted = training.step_flops(SMALL.layer_parameters, tokens)
    wanted += 2 * training.attention_flops(1, SMALL.width, SMALL.sequence, tokens)
    assert (many - few) / 2 * 2 == pytest.approx(wanted, rel=0.02)


def test_state_of_a_layer_by_zero_stage() -> None:
    """Few tokens: at the peak all gradients are there, and hardly more than the state."""
    n = SMALL.layer_parameters
    for stage, name in ((0, "BP(data)"), (2, "BP(data)+Z2"), (3, "BP(data)+Z3")):
        few, many = (_known(n, (2,), 8, 16, F32)[name].cost.peak_bytes for n in (2, 4))
        wanted = memory.state_bytes(n, 2, stage, memory.FLOAT32)
        assert (many - few) / 2 == pytest.approx(wanted, rel=2e-3)
    assert memory.state_bytes(100, 4, 1) == 100 * (2 + 4 + 12 / 4)


def test_collectives_of_tensor_parallelism() -> None:
    """Ten of a layer's activations: four forward, six backward."""
    mesh, batch = (2, 4), 4
    few, many = (_known(n, mesh, batch)["BP(data)+MP(model, head)+SP"] for n in (2, 4))
    tokens = batch / mesh[0] * SMALL.sequence

    def seconds(plan: Any) -> float:
        return sum(e.seconds for e in plan.timeline.events if e.lane == "model")

    link = dataclasses.replace(links.link_inside(H100), hop_seconds=0.0)
    wanted = sum(
        tensor.activation_seconds(tokens, SMALL.width, mesh[1], link, collectives=count)
        for count in (tensor.FORWARD_COLLECTIVES, tensor.BACKWARD_COLLECTIVES)
    )
    assert (seconds(many) - seconds(few)) / 2 == pytest.approx(wanted, rel=1e-3)


def test_devices_of_tensor_parallelism() -> None:
    """At the limit products and collectives of a block take equally long."""
    model, link = MODEL_SIZES["llama3-405b"], links.Link("fast", 450e9, 0.0)
    rate, tokens = 692e12, 8192
    most = tensor.devices_at_most(model.layer_parameters, model.width, link, rate)
    assert 30 < most < 35  # four times a node of 8
    n, d = model.layer_parameters, model.width
    for devices, slower in ((int(most), False), (int(most) + 1, True)):
        products = fsdp.product_seconds(n / devices, tokens, rate)
        sent = tensor.activation_seconds(tokens, d, devices, link)
        assert (sent > products) == slower


def _peak_of_a_layer(model: ModelSizes, batch: int, *, remat: bool) -> float:
    """Peak bytes per further layer of a simulated step on one device, attention as one op."""
    found = []
    for layers in (2, 4):
        entry = MODELS["llama3-405b"].resized(
            layers=layers,
            d_model=model.width,
            d_ff=model.ffn,
            heads=model.heads,
            kv_heads=model.kv_heads,
            vocab=model.vocab,
            seq=model.sequence,
            remat=remat,
        )
        step = ps.auto_partition(
            AbstractMesh((1,), ("x",)),
            machine=H100,
            donate_argnums=0,
            remat=False,
            schedule=[],
            progress=False,
            on_overflow="warn",
        )(entry.step)
        module, _ = with_attention(step.plan(*entry.abstract_args(batch)).module, RuleTable())
        planner = Planner(module, MeshShape(("x",), (1,)), H100)
        found.append(planner.run([]).cost.peak_bytes)
    return (found[1] - found[0]) / 2


def test_activations_of_a_layer() -> None:
    """All that is kept: the formula, sums of norms, and the reciprocal of each softmax's sum."""
    model, batch = ModelSizes(2, 256, 4, 2, 1024, 256, sequence=256), 64
    n, tokens = model.layer_parameters, batch * model.sequence
    arguments = memory.StateBytes(4, 0, 8)  # gradients are made after the peak
    state = memory.state_bytes(n, per_parameter=arguments)
    more = tokens * (4 * model.heads + 2 * 4)
    casts = 2 * n  # of weights
    wanted = memory.activation_bytes(model, tokens) + more + casts + state
    assert _peak_of_a_layer(model, batch, remat=False) == pytest.approx(wanted, rel=1e-3)
    wanted = memory.activation_bytes(model, tokens, memory.OPERAND) + state
    assert _peak_of_a_layer(model, batch, remat=True) == pytest.approx(wanted, rel=1e-3)
    assert memory.activation_bytes(MODEL_SIZES["llama3-405b"], 1) / 16384 == pytest.approx(31.8125)
    plain = ModelSizes(1, 64, 4, 4, 256, 100, gated=False)
    assert memory.activation_bytes(plain, 1) == 2 * (8 * 64 + 2 * 256) + 8 * 4


def test_bounds_in_words() -> None:
    compute = {"matrix units": 1.0, "memory traffic": 0.5}

    def words(**links: LinkSeconds) -> str:
        bound = TheoryBound(10.0, compute, links)
        assert bound.seconds == max(1.0, *(x.total for x in links.values()), 0.0)
        return str(bound).partition("overlapped, ")[2]

    assert words() == "set by matrix units"
    assert words(x=LinkSeconds(0.1, 0.1)) == "set by matrix units"  # weights are too little to name
    assert words(x=LinkSeconds(0.5, 0.25)) == (
        "set by matrix units; computation hides the collectives of weights along 'x' from 0.33 of"
        " the batch on"
    )
    assert words(x=LinkSeconds(2.0, 1.8)).startswith("set by links of 'x'; computation hides")
    assert words(x=LinkSeconds(4.0, 1.8)) == (
        "set by links of 'x': activations, which wider layers or fewer devices on 'x' would hide"
    )
    assert words(x=LinkSeconds(4.0, 3.9, 3.0)) == (
        "set by links of 'x': latency of its collectives, whatever their bytes"
    )


# Whole runs --------------------------------------------------------------------------------------


def test_serial_steps_and_utilization() -> None:
    model = MODEL_SIZES["llama3-405b"]
    n, tokens = model.parameters, 2**24
    assert training.serial_steps(n, tokens) == pytest.approx(20 * n / 2**24)
    # Llama 3's table 4: 430 TFLOP/s of a device are 43 % of the peak.
    seconds = training.step_flops(n, tokens) / (8192 * 430e12)
    assert training.utilization(n, tokens, 8192, seconds, 989e12) == pytest.approx(0.43, abs=0.005)


def test_models_of_the_command() -> None:
    given = find_model("layers:32,width:4096,heads:32,kv_heads:8,ffn:14336,vocab:128256")
    assert given.parameters == MODEL_SIZES["llama3-8b"].parameters
    assert find_model("layers:1,width:8,heads:2,ffn:32,vocab:10,gated:0,tied:1") == ModelSizes(
        1, 8, 2, 2, 32, 10, gated=False, tied=True
    )


MISTAKES = [
    ("llama3-405", r"unknown model 'llama3-405'; .*did you mean 'llama3-405b'"),
    ("layers:1,with:8", r"a model has no size 'with'; did you mean 'width'\?"),
    ("layers:x", r"size 'layers:x' of a model is no integer"),
    ("layers:1,width:8", r"sizes of the model are missing: heads, ffn, vocab"),
    ("layers:1,width:9,heads:2,ffn:8,vocab:8", r"width 9 of a model must split into 2 heads"),
    ("layers:0,width:8,heads:2,ffn:8,vocab:8", r"layers of a model is at least 1, not 0"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_mistakes_in_models(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_model(text)
