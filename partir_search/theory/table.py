"""The theory's table of a model on a number of devices."""

from __future__ import annotations

from collections.abc import Iterator

from partir_search.ir.pipeline_schedule import PipelineSchedule
from partir_search.theory import fsdp, memory, pipelines, tensor, training
from partir_search.theory.links import Link, all_gather_seconds, permute_seconds
from partir_search.theory.pipelines import StageSeconds
from partir_search.theory.rows import BYTES, RATE, SECONDS, SHARE, Row
from partir_search.theory.setting import Setting

CHUNKS = (1, 2, 4, 8)


def theory_rows(setting: Setting) -> list[Row]:
    """All rows: the model and its run, links, FSDP, tensor parallelism, pipelines, memory."""
    rows = [*_run(setting)]
    for link in setting.links:
        rows += _link(setting, link)
    rows += _fsdp(setting, setting.far)
    if setting.stages > 1:
        rows += _pipeline(setting, setting.far)
    return [*rows, *_memory(setting)]


def _run(s: Setting) -> Iterator[Row]:
    topic, model = "the run", s.model
    flops = training.step_flops(model.parameters, s.tokens)
    scores = training.attention_flops(model.layers, model.width, model.sequence, s.tokens)
    peak = s.rate / s.machine.matmul_efficiency
    yield Row(topic, "parameters", model.parameters, "parameters", "N")
    yield Row(
        *(topic, "parameters of a layer", model.layer_parameters, "parameters"),
        *("n = 2 d^2 + 2 d kv + 3 d f + 2 d", f"10 d^2 = {10 * model.width**2 / 1e9:.3g} G"),
    )
    yield Row(
        *(topic, "operations of a step", flops, "flops", "6 N T"),
        "L d^2 m forward",
    )
    yield Row(topic, "of attention's scores, besides", scores, "flops", "6 L s d T")
    yield Row(
        *(topic, "least seconds of a step, at the peak", flops / s.devices / peak, SECONDS),
        f"6 N T / (G C), C = {peak / 1e12:.4g} TFLOP/s",
    )
    seconds = (flops + scores) / s.devices / s.rate
    formula = f"C = {s.rate / 1e12:.4g} TFLOP/s, used below"
    yield Row(topic, "at the attained rate, with scores", seconds, SECONDS, formula)
    yield Row(
        *(topic, "steps of a run", training.serial_steps(model.parameters, s.tokens), "steps"),
        *("20 N / T", "20 tokens per parameter"),
    )


def _link(s: Setting, link: Link) -> Iterator[Row]:
    topic, n = f"links {link.name}", s.model.layer_parameters
    yield Row(topic, "bandwidth of a device", link.bytes_per_s, RATE, "beta")
    yield Row(topic, "latency of a hop", link.hop_seconds, SECONDS, "alpha")
    hops = "(p - 1)" if link.torus else "ceil(log2 p)"
    yield Row(
        *(topic, f"gather of a layer by {s.groups:,} groups"),
        *(all_gather_seconds(2 * n / s.tensor, s.groups, link), SECONDS),
        *(f"alpha {hops} + (p - 1)/p 2 n/t / beta", "alpha log p + p N / beta"),
    )
    for of in fsdp.PASSES:
        yield Row(
            *(topic, f"tokens to hide it, {of.name}"),
            *(fsdp.tokens_needed(link, s.rate, of), "tokens"),
            f"{of.gathered + of.scattered:g}/{of.flops:g} C / beta",
            "(BS/C - 1/beta) n: B = O(10)" if of is fsdp.FORWARD else "",
        )
    yield Row(
        *(topic, "devices of tensor parallelism, at most"),
        *(tensor.devices_at_most(n, s.model.width, link, s.rate), "devices"),
        *("1 + n beta / (4 d C)", '"grow d"'),
    )


def _fsdp(s: Setting, link: Link) -> Iterator[Row]:
    topic, tokens = f"FSDP {link.name}, tensor parallel by {s.tensor}", s.tokens / s.groups
    n, layers = s.model.layer_parameters / s.tensor, s.model.layers
    most = fsdp.groups_at_most(s.tokens, link, s.rate)
    yield Row(topic, "tokens of a group", tokens, "tokens", "T / p")
    yield Row(
        *(topic, "devices at most", most * s.tensor, "devices"),
        *("t T beta / C", "where does it break? left open"),
    )
    passes = (fsdp.FORWARD, fsdp.BACKWARD)
    products = sum(fsdp.product_seconds(n, tokens, s.rate, of) for of in passes)
    sent = sum(fsdp.weight_seconds(n, s.groups, link, of) for of in passes)
    excess = sum(
        max(0.0, fsdp.excess_seconds(n, tokens, s.groups, link, s.rate, of)) for of in passes
    )
    yield Row(topic, "products of a step", layers * products, SECONDS, "6 L n/t T/p / C")
    yield Row(topic, "collectives of weights", layers * sent, SECONDS, "6 L n/t / beta + latency")
    yield Row(
        *(topic, "not hidden at least", layers * excess, SECONDS),
        "collectives - products, in each pass",
    )


def _pipeline(s: Setting, link: Link) -> Iterator[Row]:
    p, m = s.stages, s.microbatches
    topic = f"pipelines of {p} stages, {m} microbatches"
    if not m:
        return
    for v in CHUNKS:
        idle = pipelines.idle_fraction(p, m, v)
        lecture = f"p/(p + k) = {p / (p + m):.1%}" if v == 1 else ""
        yield Row(topic, f"idle, {_chunks(v)}", idle, SHARE, "(p - 1)/(v k + p - 1)", lecture)
    yield Row(
        *(topic, "serial factor", pipelines.serial_factor(p, m), "passes", "(k + p - 1)/p"),
        "3 for k = 3 p: without the one",
    )
    send = permute_seconds(2 * s.model.sequence * s.model.width / s.tensor, link)
    yield Row(topic, "sending a stage's result", send, SECONDS, "alpha + 2 s d/t / beta")
    for v in CHUNKS:
        if v > 1 and m % p:
            continue
        schedule, name = PipelineSchedule(p, m, v), _chunks(v)
        stage = _stage(s, v, send)
        yield Row(
            *(topic, f"seconds of a step, {name}"),
            *(pipelines.pipeline_seconds(schedule, stage), SECONDS),
            f"{s.stage_layers(v)} layers a stage; sums of gradients, sends",
        )
        kept = schedule.in_flight() / v
        lecture = f"k = {m}" if v == 1 else ""
        formula = "min(k, p + (p - 1)/v)"
        name = f"microbatches kept, {name}"
        yield Row(topic, name, kept, "microbatches", formula, lecture)


def _chunks(v: int) -> str:
    return f"{v} chunk{'s' if v > 1 else ''}"


def _stage(s: Setting, chunks: int, send: float) -> StageSeconds:
    """Seconds of a stage for one sequence; the backward pass takes twice the forward pass."""
    model, sequence, layers = s.model, s.model.sequence, s.stage_layers(chunks)
    flops = training.step_flops(layers * model.layer_parameters, sequence)
    flops += training.attention_flops(layers, model.width, sequence, sequence)
    rate = s.tensor * s.rate
    head = training.step_flops(model.vocab * model.width, sequence) / (s.stages * rate)
    forward = flops / 3 / rate
    parameters = layers * model.layer_parameters / s.tensor
    accumulate = 2 * memory.MIXED.gradients * parameters / s.machine.attained_hbm_bytes_per_s
    return StageSeconds(
        forward,
        2 * forward,
        accumulate=accumulate,
        head=head,
        send_forward=send,
        send_backward=send,
    )


def _memory(s: Setting) -> Iterator[Row]:
    topic, model = "memory of a device", s.model
    n = model.parameters / s.tensor
    names = ("all on each group", "ZeRO 1", "ZeRO 2", "ZeRO 3 (FSDP)")
    for stage, name in enumerate(names):
        yield Row(
            *(topic, f"state, {name}", memory.state_bytes(n, s.groups, stage), BYTES),
            "18 N/t: 2 weights, 4 gradients, 12 optimizer" if not stage else "",
            "P + M_optimizer" if not stage else "",
        )
    if s.stages > 1:
        per_stage = memory.state_bytes(n / s.stages, s.pipelines, 1)
        yield Row(topic, "state of a pipeline's stage, ZeRO 1", per_stage, BYTES)
    kept = (
        ("kept by a layer for one sequence", memory.ALL, "2 s (6 d + 2 kv + 3 f)/t + softmax"),
        ("recomputed: its operand", memory.OPERAND, "2 s d/t"),
    )
    for name, what, formula in kept:
        nbytes = memory.activation_bytes(model, model.sequence, what) / s.tensor
        lecture = "2 S d a layer" if what == memory.OPERAND else ""
        yield Row(topic, name, nbytes, BYTES, formula, lecture)
    tokens = s.tokens / s.groups
    nbytes = model.layers * memory.activation_bytes(model, tokens) / s.tensor
    yield Row(topic, "activations of FSDP, all layers", nbytes, BYTES, "L T/p of a group")
    if s.stages > 1 and s.microbatches:
        chunks = s.chunks if s.microbatches % s.stages == 0 else 1
        in_flight = pipelines.in_flight(s.stages, s.microbatches, chunks)
        one = memory.activation_bytes(model, model.sequence) / s.tensor * s.stage_layers(chunks)
        yield Row(
            *(topic, f"activations of a pipeline, {_chunks(chunks)}", in_flight * one, BYTES),
            "all layers of a stage, microbatches kept",
        )
