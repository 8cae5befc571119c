"""The bench of costs: what is offered there, and when models are priced at their own micro-batches."""

import dataclasses

import pytest

import jax_models
from alpa_dejavu.calibration import Prices
from alpa_dejavu.costs._megatron_division import EvenDivision
from alpa_dejavu.costs.memory import ModelMemory
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.planning import PlanningTask, Searched, plan
from alpa_dejavu.planning.search._priced_shapes import PricedShapes
from alpa_dejavu.planning.search._shapes import ShapeSearch
from alpa_dejavu.planning.search.models.model_source import GivenModel, ModelSource
from alpa_dejavu.planning.search.models.traced_model import TracedModel
from alpa_dejavu.planning.task import Clock, SpaceRules
from alpa_dejavu.problem import NoShardingError
from alpa_dejavu.testing import example_cluster
from models import chain

CLUSTER = example_cluster(num_hosts=2, devices_per_host=2, memory_bytes=2.0**34)


def task_of(source, counts=(1, 2, 4, 8), layers=(4,), batch=16, cluster=CLUSTER):
    return PlanningTask(
        source=source, prices=Prices(cluster, CostModels.named()), batch=batch, layers=layers, micro_batches=counts,
        chooser=Searched(),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class OnOneHost:
    """Layers divided evenly, but for meshes of more than two devices."""

    def prepare(self, configs):
        for config in configs:
            if config.data_parallel * config.tensor_parallel > 2:
                raise NoShardingError("too many devices")

    def on(self, layers, config):
        self.prepare([config])
        return EvenDivision(MODEL, ModelMemory.of(MODEL), config.data_parallel, config.tensor_parallel, config.zero)

    def with_micro_batch(self, ratio):
        return self


MODEL = chain(4, flop=1e10, activation_bytes=1e4)


def test_meshes_that_cannot_divide_the_model_are_not_offered():
    divided = dataclasses.replace(MODEL, sharding=OnOneHost())
    planned = plan(task_of(GivenModel(divided, 2), counts=(8,)), annotations=())
    assert all(stage.submesh.num_devices <= 2 for stage in planned.plan.stages)
    whole = plan(task_of(GivenModel(MODEL, 2), counts=(8,)), annotations=())
    assert whole.plan.step_s <= planned.plan.step_s


@pytest.mark.parametrize("far", [1.0, 1.5])
def test_the_best_plan_is_priced_at_its_own_micro_batch(monkeypatch, far):
    monkeypatch.setattr("alpa_dejavu.planning.search._priced_shapes._FAR", far)
    source = TracedModel(jax_models.trained, 16)
    asked = task_of(source)
    bench = PricedShapes(asked, Clock())
    found = bench.searched(ShapeSearch(asked.layers, asked.micro_batches))
    best = min(found, key=lambda one: one.step_s)
    assert best.costs.exact
    scaled = bench.searched(ShapeSearch(asked.layers, asked.micro_batches, thorough=True), exactly=False)
    assert {one.run.num_micro_batches for one in scaled} == {1, 2, 4, 8}


class GrowsSlowly(ModelSource):
    """A model of which all but a small share of the activations stays as the micro-batch grows."""

    name, training, traces, micro_batch = "grows slowly", True, True, 2

    def __init__(self, share):
        self.share, self.priced = share, []

    def numbers_of_layers(self, wanted):
        return tuple(wanted)

    def exact(self, num_layers, micro_batch):
        self.priced.append(micro_batch)
        grown = 1 + self.share * (micro_batch / self.micro_batch - 1)
        return chain(num_layers, flop=1e6 * micro_batch / self.micro_batch, activation_bytes=grown * 2.0**28)

    def scaled(self, num_layers, micro_batch):
        return with_micro_batch(self.exact(num_layers, self.micro_batch), micro_batch / self.micro_batch)


@pytest.mark.parametrize(("share", "best"), [(0.2, 1), (1.0, 2)])
def test_what_a_scaled_model_has_too_little_memory_for_is_priced_at_its_own_micro_batch(share, best):
    """Larger micro-batches are faster here, as kernels start less often; with a share of 1 they don't fit."""
    cluster = example_cluster(num_hosts=1, devices_per_host=1, memory_bytes=2.0**33)
    source = GrowsSlowly(share)
    asked = dataclasses.replace(task_of(source, cluster=cluster), space=SpaceRules(remat=("none",)))
    found = PricedShapes(asked, Clock()).searched(ShapeSearch([4], asked.micro_batches, thorough=True))
    assert found[0].run.num_micro_batches == best
    assert found[0].costs.exact
