"""Actions: each kind prints, serializes and plays itself."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import pytest

import partir_search as ps
from partir_search.ir.axis_options import NO_MODES
from partir_search.ir.skewed_schedule import FORMER_FORMS
from partir_search.propagation.actions import KINDS, Action, action_from_json, tilings
from partir_search.propagation.apply import apply_compatible, apply_fixed
from partir_search.propagation.contradictions import IllegalAction
from partir_search.propagation.state import State
from tests.support import module_of, state_of

DOT = "dot_general"  # names of values are those of their ops
EXAMPLES: list[tuple[Action, str]] = [
    (ps.Tile("a0", 0, "batch"), "Tile(value='a0', dim=0, axis='batch')"),
    (
        ps.Tile("a0", 0, "batch", ("a1",), ("a2",)),
        "Tile(value='a0' and 1 alike, dim=0, axis='batch', barriers=1)",
    ),
    (ps.Replicate("a0", "batch", ("a1",)), "Replicate(value='a0' and 1 alike, axis='batch')"),
    (ps.Close("a0", 1, "model"), "Close(value='a0', dim=1, axis='model')"),
    (ps.WindowedEinsum("model"), "WindowedEinsum(axis='model')"),
    (ps.WindowedEinsum("model", True), "WindowedEinsum(axis='model', zigzag=True)"),
    (ps.KeepGathered("model"), "KeepGathered(axis='model')"),
    (ps.RingSchedule("model", "min_traffic"), "RingSchedule(axis='model', form='min_traffic')"),
    (ps.AxisOrder("model+batch"), "AxisOrder(axis='model+batch')"),
    (ps.Enter(0, ("batch", "")), "Enter(argument=0, layout=('batch', ''))"),
    (ps.Leave(0, ("", "model")), "Leave(result=0, layout=('', 'model'))"),
    (ps.FixLoop(DOT, 2, "batch"), "FixLoop(value='dot_general', factor=2, axis='batch')"),
    (
        ps.FixLoop(DOT, -1, "batch", (f"{DOT}_1",)),
        "FixLoop(value='dot_general' and 1 alike, no loop, axis='batch')",
    ),
]
ACTIONS = [action for action, _ in EXAMPLES]


def new_state() -> State:
    def fn(x: jax.Array, y: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x @ w, y @ w

    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    return state_of(module_of(fn, shape, shape, shape))


def test_every_kind_has_an_example() -> None:
    assert {type(a) for a in ACTIONS} == set(KINDS.values())


@pytest.mark.parametrize(("action", "text"), EXAMPLES, ids=lambda x: str(x))
def test_printed_and_saved(action: Action, text: str) -> None:
    assert str(action) == text
    data = json.loads(json.dumps(action.to_json()))
    assert action_from_json(data) == action
    assert next(iter(data)) == action.kind
    with pytest.raises((KeyError, TypeError, ValueError)):
        action_from_json({**data, action.kind: [None], "dim": None, "layout": None, "form": None})


def test_forms_of_earlier_files() -> None:
    """Plan files name actions by kinds, which stay when classes are renamed."""
    assert action_from_json({"bar": "a0", "dim": 1, "axis": "model"}) == ACTIONS[3]
    assert action_from_json({"stream": "model", "zigzag": True}) == ACTIONS[5]
    assert action_from_json({"nest": "model+batch"}) == ACTIONS[8]
    assert action_from_json({"ring": "model", "form": "least"}) == ACTIONS[7]
    with pytest.raises(ValueError, match="not an action"):
        action_from_json({"shard": "x"})


@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_played_once(action: Action) -> None:
    """Actions on values know their effect; actions on axes change the state's modes."""
    state = new_state()
    assert not action.is_applied(state)
    action.apply(state)
    assert action.is_applied(state) == (action in tilings(ACTIONS))
    assert (state.modes == NO_MODES) == (action in tilings(ACTIONS))
    if action.values:
        assert apply_compatible(state, [action]) == ([], [])


def test_renamed() -> None:
    assert ACTIONS[1].renamed(str.upper) == ps.Tile("A0", 0, "batch", ("A1",), ("A2",))
    assert ACTIONS[4].renamed(str.upper) is ACTIONS[4]


def test_actions_on_the_values_of_a_program() -> None:
    """Values that a program lacks are left out; an action without any value is not applied."""
    module = new_state().graph.module
    gone = ("gone", "gone_1")
    tile = ps.Tile(gone[0], 0, "batch", ("a0", gone[1], "a1"), ("a2", gone[0]))
    assert tile.within(module) == ps.Tile("a0", 0, "batch", ("a1",), ("a2",))
    assert ps.FixLoop(gone[0], -1, "batch", (DOT,)).within(module) == ps.FixLoop(DOT, -1, "batch")
    assert ps.Replicate("a0", "batch").within(module) == ps.Replicate("a0", "batch")
    assert ps.Replicate(gone[0], "batch", gone[1:]).within(module) is None
    assert ps.AxisOrder("model+batch").within(module) == ps.AxisOrder("model+batch")
    lost = ps.Close(gone[0], 1, "model")
    played, dropped = apply_compatible(new_state(), [tile, lost])
    assert played == [tile.within(module)]
    assert [action for action, _ in dropped] == [lost]


def test_fixed_actions_that_contradict() -> None:
    """A value that `also` would skip is an error where the user fixed it."""
    earlier = ps.Replicate("a1", "batch")
    both = ps.Tile("a0", 0, "batch", ("a1",))
    state = new_state()
    assert apply_compatible(state, [earlier, both]) == ([earlier, both], [])
    with pytest.raises(
        IllegalAction, match=r"^a1 cannot be tiled on dim 0 along axis 'batch': ano"
    ):
        apply_fixed(new_state(), [earlier, both])
    with pytest.raises(IllegalAction) as error:
        ps.Tile("a1", 0, "batch").apply(state)
    assert error.value.claim == "a1 cannot be tiled on dim 0 along axis 'batch'"


def test_nearest_tilings() -> None:
    """Of a tiling that does not divide: on fewer devices; of other actions: none."""
    state = new_state()
    found = list(ps.Tile("a1", 0, "batch+model").nearest(new_state()))
    assert found[0] == ps.Tile("a1", 0, "batch+model")
    assert {f.axis for f in found[1:]} == {"batch", "model"}
    assert not list(ACTIONS[6].nearest(state))


def test_former_names() -> None:
    for old, new in (("Bar", ps.Close), ("Hold", ps.KeepGathered), ("Stream", ps.WindowedEinsum)):
        with pytest.warns(DeprecationWarning, match=f"partir_search.{old} is now {new.__name__}"):
            assert getattr(ps, old) is new
    for former, form in FORMER_FORMS.items():
        with pytest.warns(DeprecationWarning, match=f"form='{former}' is now '{form}'") as warned:
            assert ps.RingSchedule("r~c", former) == ps.RingSchedule("r~c", form)
        with pytest.warns(DeprecationWarning, match=f"form='{former}' is now '{form}'") as more:
            tactic = ps.SpatialTemporal(("r", "c"), form=former)  # type: ignore[arg-type]
        assert tactic == ps.SpatialTemporal(("r", "c"), form=form)  # type: ignore[arg-type]
        assert [w.filename for w in (*warned, *more)] == [__file__] * 2
    with pytest.raises(ValueError, match="form is one of output_stationary"):
        ps.RingSchedule("r~c", "short")
    with pytest.raises(AttributeError, match="has no attribute 'Sheet'"):
        ps.Sheet  # noqa: B018
