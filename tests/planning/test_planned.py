"""Throughput and FLOP utilisation of a plan, reckoned by hand."""

import dataclasses

import pytest

from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.problem import MeshConfig, Run, Submesh
from alpa_dejavu.testing import example_cluster
from models import chain

WHOLE = [GivenStage(0, 3, Submesh(1, 4), MeshConfig((4, 1), 4, 1))]


def made(cluster=None, batch=32, count=8):
    return estimate(chain(4, flop=1e9), cluster or example_cluster(1), Run(count), WHOLE, batch=batch)


def test_throughput_is_samples_by_the_step():
    planned = made()
    assert planned.samples_per_s == pytest.approx(32 / planned.plan.step_s)
    assert made(batch=None).samples_per_s is None


def test_utilisation_is_the_models_work_by_what_all_devices_could_do():
    planned = made()
    # 4 layers of 1 GFLOP forward and 2 backward, 8 micro-batches; 4 devices of 1 TFLOP/s.
    assert planned.model_flop == pytest.approx(4 * 3e9 * 8)
    assert planned.flop_utilisation == pytest.approx(4 * 3e9 * 8 / 4e12 / planned.plan.step_s)
    assert 0 < planned.flop_utilisation <= 1


def test_each_device_counts_by_its_own_rate():
    cluster = example_cluster(1)
    (host,) = cluster.hosts
    device = dataclasses.replace(host.device, flop_per_s={"float32": 2e12})
    faster = dataclasses.replace(cluster, hosts=(dataclasses.replace(host, device=device),))
    planned = made(faster)
    assert planned.flop_utilisation == pytest.approx(4 * 3e9 * 8 / 8e12 / planned.plan.step_s)
