"""Parallel training gives what training on one device gives: losses and every parameter, after five steps in fp32.

The tolerance is 1e-4, relative, by the norm of each tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import alpa
import jax
import numpy as np
import pytest

from alpa_dejavu import DejavuStageOption
from alpa_dejavu.alpa.local_cluster import local_cluster
from demo.training import largest_relative_difference
from training_jobs import JOBS, TrainingJob, make_frozen_step, make_step, train, with_frozen_layers

TOLERANCE = 1e-4


def assert_equal_to_one_device(job: TrainingJob, method: Any, make: Callable[..., Any] = make_step) -> None:
    expected, expected_losses = train(job, jax.jit(make(job, jax.value_and_grad)))
    # Momenta and parameters aren't donated: the first ones come from numpy.
    step = alpa.parallelize(make(job, alpa.value_and_grad), method=method, donate_argnums=(), batch_argnums=(2,))
    actual, losses = train(job, step)
    np.testing.assert_allclose(losses, expected_losses, rtol=TOLERANCE)
    assert largest_relative_difference(actual, expected) <= TOLERANCE


@pytest.mark.parametrize("name", [pytest.param(job, marks=[pytest.mark.slow] * (job == "moe")) for job in JOBS])
def test_a_sharded_step_equals_one_device(name: str) -> None:
    # The statistics of batch normalization are those of a micro-batch, so the ResNet takes its batch whole.
    method = alpa.ShardParallel(
        devices=jax.local_devices()[:4], num_micro_batches=1 if name == "wide_resnet" else 2,
    )
    assert_equal_to_one_device(JOBS[name](), method)


def test_layers_may_be_frozen() -> None:
    method = alpa.ShardParallel(devices=jax.local_devices()[:4], num_micro_batches=2)
    assert_equal_to_one_device(with_frozen_layers(JOBS["mlp"]()), method, make_frozen_step)


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    with local_cluster(devices=4):
        yield


@pytest.fixture
def cluster(ray_cluster: None) -> Iterator[None]:
    # Connected anew for each test: a virtual mesh keeps the submeshes of the first plan that ran on it.
    alpa.init("ray")
    yield
    alpa.shutdown()


def two_stages() -> alpa.ManualStageOption:
    return alpa.ManualStageOption([[0], [1]], [(1, 2), (1, 2)], [(2, 1), (1, 2)], [{}, {}])


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("name", ["moe", "wide_resnet"])  # a planned GPT and a frozen MLP are below
def test_two_stages_equal_one_device(name: str, cluster: None) -> None:
    method = alpa.PipeshardParallel(
        num_micro_batches=1 if name == "wide_resnet" else 2,
        layer_option=alpa.AutoLayerOption(2),
        stage_option=two_stages(),
    )
    assert_equal_to_one_device(JOBS[name](), method)


@pytest.mark.ray
def test_a_planned_pipeline_equals_one_device(cluster: None) -> None:
    method = alpa.PipeshardParallel(
        num_micro_batches=2, layer_option=alpa.AutoLayerOption(2), stage_option=DejavuStageOption()
    )
    assert_equal_to_one_device(JOBS["gpt"](), method)


@pytest.mark.ray
def test_a_stage_may_be_frozen(cluster: None) -> None:
    method = alpa.PipeshardParallel(
        num_micro_batches=2, layer_option=alpa.AutoLayerOption(2), stage_option=two_stages()
    )
    assert_equal_to_one_device(with_frozen_layers(JOBS["mlp"]()), method, make_frozen_step)
