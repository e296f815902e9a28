"""16 CPU devices, warnings as errors, goldens. The environment is set before jax starts."""
# ruff: noqa: E402  (what jax and its imports read is set before)

from __future__ import annotations

import gc
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterator

# Tests allocate many small objects that live on: the collector took a fifth of the suite's time.
gc.set_threshold(50_000, 20, 50)

# Where no bytecode may be written beside the sources, the workers and the processes that tests
# start would compile jax and this package each time, for 2.5 s: they share a folder of their own.
if sys.dont_write_bytecode:
    sys.pycache_prefix = str(pathlib.Path(__file__).parent.parent / ".pytest_cache" / "bytecode")
    sys.dont_write_bytecode = False
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=16"
    " --xla_cpu_collective_call_terminate_timeout_seconds=300"
    # Tests compile much and run little: half the compile time.
    " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("NPROC", "16")  # fewer threads can deadlock collectives on two cores

import jax
import pytest

from partir_search.lowering.local_ir import LocalProgram
from partir_search.lowering.scheduling.schedule import SCHEDULING, SchedulingPass
from partir_search.lowering.traits import LoweringTraits
from partir_search.lowering.verify_local import verify_local
from tests.support import FASTER

flags = os.environ["XLA_FLAGS"]
os.environ["XLA_FLAGS"] += FASTER
jax.devices()  # reads the flags, once; libtpu, which does not know them all, reads them later
os.environ["XLA_FLAGS"] = flags

GOLDEN = pathlib.Path(__file__).parent / "golden"


def verified(run: SchedulingPass) -> SchedulingPass:
    """A scheduling pass whose results are verified."""

    def checked(program: LocalProgram, traits: LoweringTraits) -> LocalProgram:
        after = run(program, traits)
        verify_local(after)
        return after

    return checked


SCHEDULING.update({name: verified(run) for name, run in SCHEDULING.items()})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/*.txt")
    parser.addoption("--programs", type=int, default=12, help="programs of the property test")
    parser.addoption("--long", action="store_true", help="run what is marked long, too")
    parser.addoption("--plans", type=int, default=0, help="random plans of each model")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked `long`: the suite is to run in minutes on two cores."""
    if not config.getoption("--long"):
        left = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Compares a text with tests/golden/<test>.txt; a missing file fails with what to run."""
    name = re.sub(r"[^\w.-]+", "_", request.node.name).strip("_")
    path = GOLDEN / f"{request.node.path.stem}.{name}.txt"

    def check(text: str) -> None:
        text = text.rstrip() + "\n"
        if request.config.getoption("--update-golden"):
            GOLDEN.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no golden; run pytest {request.node.nodeid} --update-golden"
        assert text == path.read_text()

    return check


@pytest.fixture
def young_heap() -> Iterator[None]:
    """Leaves the objects of earlier tests, millions of them, out of collections."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def mesh() -> jax.sharding.Mesh:
    """batch:2, model:4 over 8 of the virtual devices."""
    return jax.make_mesh((2, 4), ("batch", "model"), devices=jax.devices()[:8])
