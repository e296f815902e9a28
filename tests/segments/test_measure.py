"""Measured seconds of segments: clocks, stand-ins of collectives, devices and compilers."""

from __future__ import annotations

import functools

import jax
import pytest

import partir_search as ps
from models.catalog import MODELS
from partir_search.lowering.local_ir import Reshard
from partir_search.lowering.reshard_steps import COLLECTIVES
from partir_search.segments.measure.ahead_of_time import ahead_of_time
from partir_search.segments.measure.clock import timings
from partir_search.segments.measure.measured import unmeasured
from partir_search.segments.measure.on_devices import on_devices
from partir_search.segments.measure.one_device import on_one_device, stubs_alone
from partir_search.segments.measure.stubs import stub_step
from tests.segments.programs import DP, ZERO3, mesh, perceptron


def test_timings() -> None:
    """Least, median and quartiles of samples of each program, taken in turns."""
    now = 0.0
    lengths = iter([0.0, 0.0, *[1.0] * 64, *[5.0] * 64, *[2.0] * 64, *[3.0] * 64])

    def program() -> None:
        nonlocal now
        now += next(lengths)

    (found,) = timings([program], 4, lambda: now)
    assert (found.least, found.median, found.runs) == (1.0, 2.5, 4)
    assert found.spread == pytest.approx((3.5 - 1.75) / 2.5)


def test_stand_ins_have_the_shapes_of_collectives() -> None:
    seen = set()
    plans = perceptron(3)[ZERO3], perceptron(3)["BP(data)+MP(model)+SP"]
    for item in (item for plan in plans for item in plan.program.body.steps):
        if isinstance(item, Reshard) and item.step.communicates:
            tile = jax.ShapeDtypeStruct(item.source.shape, item.source.value.type.dtype)
            run = functools.partial(stub_step, plans[0].partition.mesh, item.step)
            assert jax.eval_shape(run, tile).shape == item.target.shape
            seen.add(item.step.kind)
    assert len(seen & {*COLLECTIVES}) >= 3


def test_stand_ins_alone() -> None:
    """Each collective of a segment once, of an argument of its own."""
    layer = max(perceptron(3)[ZERO3].segments().unique, key=lambda each: each.instances)
    alone = stubs_alone(layer.body)
    moves = [x for x in layer.steps if isinstance(x, Reshard) and x.step.communicates]
    assert [x.step for x in moves] == [x.step for x in alone.steps if isinstance(x, Reshard)]
    assert len({x.id for x in alone.args}) == len(moves) == len(alone.results)


def test_on_devices_and_on_one() -> None:
    found = perceptron(3)[ZERO3].segments(mesh())
    layer = max(found.unique, key=lambda each: each.simulated.seconds)
    names: list[str] = []
    (many,) = on_devices([layer], mesh(), runs=2, clock="cpu", done=names.append).values()
    (one,) = on_one_device([layer], runs=2, clock="cpu", done=names.append).values()
    assert names == [layer.name] * 2
    assert 0 < many.seconds < 1
    assert many.runs == one.runs == 2
    assert one.seconds - one.compute == pytest.approx(
        layer.simulated.seconds - layer.simulated.compute
    )
    assert one.temp_bytes > 0


def test_composed() -> None:
    """The sum over all runs; segments of known content are not measured again."""
    found = perceptron(3)[DP].segments()
    seconds = {each.key: float(i + 1) for i, each in enumerate(found.unique)}
    want = sum((i + 1) * each.instances for i, each in enumerate(found.unique))
    assert found.composed(seconds) == want
    rest = unmeasured([*found.unique, *found.unique], lambda key: key == found.unique[0].key)
    assert rest == list(found.unique[1:])
    with pytest.raises(KeyError):
        found.composed({})


@pytest.mark.long
def test_ahead_of_time() -> None:
    """A layer of a TPU's plan, by the compiler: kernels take part of the seconds."""
    pytest.importorskip("libtpu")
    target = ps.Target.parse("tpu_v5e:2x4")
    shape = ps.MeshShape(("data", "model"), (4, 2))
    entry = MODELS["transformer-tiny"].resized(layers=2, d_model=128, heads=2, d_ff=256, seq=128)
    step = ps.auto_partition(
        jax.sharding.AbstractMesh(shape.sizes, shape.names), machine="tpu_v5e", progress=False
    )(entry.step)
    plan = step.known_plans(*entry.abstract_args(16))["BP(data)+MP(model)"]
    layer = next(x for x in plan.segments(target.mesh(shape)).unique if x.instances == 2)
    (found,) = ahead_of_time([layer], target).values()
    assert 0 < found.compute < found.seconds
    assert (found.runs, found.spread) == (0, 0.0)
    assert found.temp_bytes == 0  # all temporaries of a small layer are in VMEM
