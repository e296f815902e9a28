"""Unique segments: their number, keys, names, blocks and seconds. No device runs anything."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from jax.sharding import PartitionSpec as P

import partir_search as ps
from partir_search.segments.atoms import atoms_of
from partir_search.segments.cut import Cutter
from tests.segments.programs import DP, ZERO3, known, named, perceptron, transformer


def test_segments_of_a_transformer() -> None:
    """Layers repeat; head, loss and the loss's gradient are one segment."""
    found = transformer(3).segments()
    assert [(each.name, each.instances) for each in found.unique] == [
        ("forward of embed", 1),
        ("forward of layer_0..2", 3),
        ("embed.attend and loss", 1),
        ("backward of layer_0..2", 3),
        ("update of step", 1),
        ("update", 3),
        ("update of embed/embedding", 1),
        ("update of layer_0..2", 3),
    ]
    assert found.complete
    assert sorted(found.sequence) == sorted(
        (i, copy) for i, each in enumerate(found.unique) for copy in range(each.instances)
    )
    ran = {x.op.id for each in found.unique for copy in each.copies for x in copy.steps if x.op}
    assert ran == {op.id for op in transformer(3).module.body.ops}


def test_seconds_add_up() -> None:
    """All segments' simulated seconds are the plan's."""
    for plan in (perceptron(3)[DP], perceptron(3)[ZERO3], transformer(3)):
        found = plan.segments()
        total = sum(each.instances * each.simulated.seconds for each in found.unique)
        assert total == pytest.approx(plan.cost.seconds, rel=0.02)
        assert found.whole.simulated.seconds == pytest.approx(plan.cost.seconds, rel=1e-6)


def test_between_layers_one_activation_passes() -> None:
    """The cut is where the fewest bytes cross: [8 / 4, 16, 32] floats on a device."""
    found = transformer(3).segments()
    layer = named(found, "forward of layer")
    assert [x.type for x in layer.entry if not x.argument] == ["f32[2,16,32]"]
    assert [str(x.spec) for x in layer.entry if not x.argument] == [str(P("data"))]
    assert sum(x.nbytes for x in named(found, "embed.attend").entry if not x.argument) == 4096


def layers_of(plan: ps.Plan) -> dict[str, int]:
    """Runs of the segments that repeat, by key."""
    return {each.key: each.instances for each in plan.segments().unique if each.instances > 1}


def test_keys_do_not_depend_on_depth() -> None:
    three, four = perceptron(3)[DP], perceptron(4)[DP]
    assert layers_of(three).keys() == layers_of(four).keys()
    assert [*layers_of(three).values()] == [3, 3]
    assert [*layers_of(four).values()] == [4, 4]
    assert len(three.segments().unique) == len(four.segments().unique)
    assert three.segments().whole.key != four.segments().whole.key


@pytest.mark.long
def test_keys_of_a_transformer() -> None:
    three, four = transformer(3).segments(), transformer(4).segments()
    for name in ("forward of layer", "embed.attend", "backward of layer", "update of layer"):
        assert named(three, name).key == named(four, name).key
    assert len(three.unique) == len(four.unique)


def test_keys_depend_on_the_plan() -> None:
    assert not layers_of(perceptron(3)[DP]).keys() & layers_of(perceptron(3)[ZERO3]).keys()


def test_blocks() -> None:
    """ParallelBlocks of a layer, as CFP counts them: attention, its output, and two of the MLP."""
    layer = named(transformer(3).segments(), "forward of layer")
    assert [block.path.rpartition("/")[2] for block in layer.blocks] == [
        *("qkv", "out", "mlp_in", "mlp_out")
    ]
    assert [block.products for block in layer.blocks] == [1, 1, 1, 1]
    assert not named(transformer(3).segments(), "backward of layer").blocks


def test_table() -> None:
    found = transformer(3).segments()
    text = str(found)
    assert all(each.key[:8] in text for each in found.unique)
    assert "<table" in found._repr_html_() or "<pre" in found._repr_html_()


def test_loops_around_layers() -> None:
    """Tokens are decoded in a loop: its layers are segments, once per token and layer."""
    found = known("decoding-tiny")[DP].segments()
    assert not found.complete
    layers = [each for each in found.unique if each.trips > 1 and len(each.copies) > 1]
    assert [each.instances for each in layers] == [8]  # two layers, four tokens


def test_fewest_bytes_enter() -> None:
    """Values that a compiler recomputes in readers are made again, from fewer bytes."""
    plan = perceptron(3)[DP]
    body, stored = plan.program.body, plan.planned.model.memory.stored
    atoms = atoms_of(body.steps)
    halves = [range(len(atoms) // 2), range(len(atoms) // 2, len(atoms))]
    inlined = {x.id for x in plan.program.constants.values()}

    def second(stored: Sequence[int]) -> tuple[int, int]:
        region = Cutter(body, atoms, inlined, stored).cut(halves)[1].region
        made = [x for x in region.args if x.id not in {arg.id for arg in body.args}]
        return sum(x.nbytes for x in made), len(region.steps)

    (fewer, more), (most, least) = second(stored), second([1] * len(stored))
    assert fewer < most
    assert more > least
