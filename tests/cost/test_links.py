"""Axes on different links, machines in files, and the fit that `experiments.calibrate` makes."""

from __future__ import annotations

import dataclasses
import pathlib
import random
import types
from typing import Any

import numpy as np
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from experiments.calibrate import Sample, fit_link, known, machine_of
from models.transformer import TransformerConfig, example_args, make_train_step, optimizer
from partir_search.profile.entries import MeasuredProduct
from partir_search.simulator.target.machine import MACHINES, find_machine
from partir_search.simulator.target.traits import XlaTraits
from partir_search.simulator.time.collectives import collective_seconds

POD = MACHINES["tpu_v5e"].with_axis("hosts", bytes_per_s=6e9, hop_seconds=2e-5)
MESH = ps.MeshShape(("hosts", "model"), (4, 8)).split({"model": (4, 2)})


def test_seconds_by_axis() -> None:
    """A ring over the slow axis: 2 (n-1)/n B/b + 2 (n-1) alpha; over both, the slower of each."""
    fast = MACHINES["tpu_v5e"]
    on_hosts = collective_seconds("all_reduce", 8e6, (0,), MESH, POD)
    assert on_hosts == pytest.approx(2 * (3 / 4 * 8e6 / 6e9 + 3 * 2e-5))
    part = collective_seconds("all_reduce", 8e6, (1,), MESH, POD)
    assert part == collective_seconds("all_reduce", 8e6, (1,), MESH, fast)
    both = collective_seconds("all_gather", 8e6, (0, 2), MESH, POD)
    assert both == pytest.approx(7 / 8 * 8e6 / 6e9 + (3 + 1) * 2e-5)
    slow_model = fast.with_axis("model", 1e9, 1e-6)
    assert collective_seconds("all_gather", 8e6, (2,), MESH, slow_model) > 4e-3


def test_search_keeps_traffic_off_the_slow_axis() -> None:
    config = TransformerConfig(layers=2, d_model=2048, heads=16, d_ff=8192, vocab=32000, seq=512)
    args = example_args(config, optimizer(), 32)
    mesh = AbstractMesh((2, 8), ("hosts", "model"))
    sent = {}
    for name, machine in (("even", MACHINES["tpu_v5e"]), ("pod", POD)):
        wrapped = ps.auto_partition(mesh, machine=machine, episodes=250, donate_argnums=0)
        plan = wrapped(make_train_step(config)).plan(*args)
        sent[name] = ps.FewestBytes("hosts").objective(plan.cost)
    assert sent["pod"] < sent["even"] / 2


def test_machines_in_files(tmp_path: pathlib.Path) -> None:
    POD.save(tmp_path / "pod.json")
    found = find_machine(str(tmp_path / "pod.json"))
    assert dataclasses.replace(found, sources=POD.sources) == POD
    (tmp_path / "bad.json").write_text('{"name": "x"}')
    with pytest.raises(ValueError, match=r"bad.json holds no machine: .*missing"):
        find_machine(str(tmp_path / "bad.json"))
    with pytest.raises(ValueError, match="holds no machine"):
        find_machine(str(tmp_path / "none.json"))


@pytest.mark.parametrize(("bandwidth", "hop"), [(5e9, 2e-6), (1e8, 1e-3), (4e11, 0.0)])
@pytest.mark.parametrize("torus", [True, False])
def test_fit_finds_what_was_there(bandwidth: float, hop: float, torus: bool) -> None:
    draw = random.Random(0)
    samples = []
    for kind, rounds in (("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)):
        for payload in (2**16, 2**20, 2**24):
            exact = rounds * (3 / 4 * payload / bandwidth + (3 if torus else 2) * hop)
            noise = draw.uniform(0.99, 1.01)
            samples.append(Sample(kind, "model", 4, payload, exact * noise))
    found = fit_link(samples, torus)
    assert found[0] == pytest.approx(bandwidth, rel=0.03)
    assert found[1] == pytest.approx(hop, rel=0.03, abs=1e-9)


def test_what_cannot_be_measured_is_the_kinds() -> None:
    """What the compiler fuses and overlaps; of unknown devices nothing is assumed."""
    assert known("NVIDIA H100 80GB HBM3") == MACHINES["h100"]
    plain = known("Graphcore IPU")
    assert not plain.torus
    assert plain.traits == XlaTraits()


def test_calibrated_rates_are_attained_in_full() -> None:
    """Whatever shares of the peak are known of the device."""
    products = tuple(
        MeasuredProduct(dtype, (1, 4096, 4096, 4096), rate)
        for dtype, rate in (("bfloat16", 8e14), ("float32", 3e14))
    )
    rates = {"hbm_bytes_per_s": 3e12, "kernel_seconds": 1e-6}
    profile = dataclasses.replace(ps.Profile.empty("h200"), products=products, rates=rates)
    device = types.SimpleNamespace(device_kind="NVIDIA H200", memory_stats=lambda: None)
    mesh: Any = types.SimpleNamespace(
        devices=np.array([device], dtype=object), axis_names=("data",), axis_sizes=(1,)
    )
    machine = machine_of(profile, mesh)
    for product in products:
        assert machine.matmul_flops_per_s(product.dtype) == product.flops_per_s
    assert machine.attained_hbm_bytes_per_s == 3e12
