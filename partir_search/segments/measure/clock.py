"""Timing of compiled programs in turns, each against a program with nothing to compute."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from partir_search.segments.run import Runnable

ClockName = Literal["cpu", "wall"]
CLOCKS: dict[ClockName, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}
SAMPLE_SECONDS = 0.01  # of one sample: short programs run several times
MOST_REPEATS = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of runs of a program.

    Attributes:
      least / median: of all samples.
      spread: distance between the quartiles over the median.
      runs: number of samples.
    """

    least: float
    median: float
    spread: float
    runs: int


def timings(
    programs: Sequence[Callable[[], Any]], runs: int, clock: Callable[[], float]
) -> list[Timing]:
    """Times programs in turns, so that all meet the same load of the machine.

    Args:
      programs: functions without arguments; results are waited for.
      runs: samples of each.
      clock: seconds now.
    """
    if not programs:
        return []
    repeats = []
    for program in programs:
        jax.block_until_ready(program())
        begin = time.perf_counter()
        jax.block_until_ready(program())
        spent = max(time.perf_counter() - begin, 1e-6)
        repeats.append(min(MOST_REPEATS, math.ceil(SAMPLE_SECONDS / spent)))
    samples = np.zeros((len(programs), runs))
    for run in range(runs):
        for at, program in enumerate(programs):
            begin = clock()
            for _ in range(repeats[at]):
                jax.block_until_ready(program())
            samples[at, run] = (clock() - begin) / repeats[at]
    low, median, high = np.quantile(samples, (0.25, 0.5, 0.75), axis=1)
    spread = (high - low) / np.maximum(median, 1e-12)
    return [
        Timing(float(least), float(m), float(s), runs)
        for least, m, s in zip(np.min(samples, axis=1), median, spread, strict=True)
    ]


def null_program(part: Runnable) -> Any:
    """Program with the arguments of a segment and a number for each of its results, under jit."""

    def run(*tiles: Any) -> tuple[Any, ...]:
        return tuple(jnp.zeros(1) for _ in part.results)

    specs = tuple(PartitionSpec() for _ in part.results)
    mapped = jax.shard_map(
        run, mesh=part.mesh, in_specs=part.specs, out_specs=specs, check_vma=False
    )
    return jax.jit(mapped, keep_unused=True)


def filled(structs: Sequence[jax.ShapeDtypeStruct], seed: int = 0) -> list[Any]:
    """Arrays on devices: small random floats, zeros of integers, random keys."""
    rng = np.random.default_rng(seed)
    return [jax.device_put(_array(each, rng), each.sharding) for each in structs]


def _array(struct: jax.ShapeDtypeStruct, rng: np.random.Generator) -> Any:
    key: Any = struct
    if jnp.issubdtype(struct.dtype, jax.dtypes.prng_key):
        words = jax.eval_shape(jax.random.key_data, struct)
        empty = jnp.zeros(words.shape, words.dtype)
        return jax.random.wrap_key_data(empty, impl=jax.random.key_impl(key))
    if jnp.issubdtype(struct.dtype, jnp.floating):
        x = rng.standard_normal(struct.shape, np.float32) * 0.02
        return jnp.asarray(x, struct.dtype)
    return jnp.zeros(struct.shape, struct.dtype)
