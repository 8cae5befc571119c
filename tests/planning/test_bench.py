"""The bench of costs: what is offered there, and when models are priced at their own micro-batches."""

import dataclasses

import numpy as np
import pytest

import jax_models
import unlike
from alpa_dejavu.calibration import Prices
from alpa_dejavu.costs._megatron_division import EvenDivision
from alpa_dejavu.costs.memory import ModelMemory
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.planning import PlanningTask, Searched, plan
from alpa_dejavu.planning.search._priced_shapes import PricedShapes, _scaling_errors
from alpa_dejavu.planning.search._shapes import Shape, ShapeSearch
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


def test_layers_that_were_given_stay_scaled():
    found = PricedShapes(task_of(GivenModel(MODEL, 2)), Clock()).searched(ShapeSearch([4], [1, 2, 4, 8], thorough=True))
    assert {one.run.num_micro_batches for one in found if one.costs.exact} == {8}


def test_costs_on_fewer_alike_hosts_are_those_that_are_known():
    asked = task_of(GivenModel(MODEL, 2), cluster=example_cluster(4, 2, 2.0**34))
    bench = PricedShapes(asked, Clock())
    bench.searched(ShapeSearch([4], [8]))
    names = [host.name for host in asked.cluster.hosts]
    part = asked.cluster.part([0, 1])
    (known,) = PricedShapes(asked.on(part), Clock(), bench.priced).priced
    fresh = PricedShapes(asked.on(part), Clock()).costs(4, 8)
    assert [host.name for host in known.cluster.hosts] == names[:2]
    for s, submesh in enumerate(known.space.submeshes):
        n = fresh.space.submeshes.index(submesh)
        offered = [config for config in known.space.configs[s] if config is not None]
        assert offered == [config for config in fresh.space.configs[n] if config is not None]
        here, there = known.table.costs_s[:, :, s, : len(offered)], fresh.table.costs_s[:, :, n, : len(offered)]
        finite = np.isfinite(there)  # a stage on all devices has all layers, which the fresh costs know
        assert here[finite] == pytest.approx(there[finite])


class TakesLonger(GrowsSlowly):
    """A model that takes longer with other micro-batches than scaling says, and a little longer in more layers."""

    def exact(self, num_layers, micro_batch):
        self.priced.append((num_layers, micro_batch))
        ratio, more = micro_batch / self.micro_batch, 1 + 0.02 * (micro_batch != self.micro_batch)
        return chain(
            num_layers, flop=more * (4 + 0.02 * num_layers) / num_layers * 1e12 * ratio, activation_bytes=1e4 * ratio
        )


def test_what_scaling_is_off_in_one_number_of_layers_is_not_asked_again_of_others_on_the_same_submeshes():
    cluster = example_cluster(num_hosts=1, devices_per_host=1, memory_bytes=2.0**34)
    source = TakesLonger(0.0)
    asked = task_of(source, cluster=cluster, counts=(4,), layers=(4, 5, 6))
    bench = PricedShapes(dataclasses.replace(asked, space=SpaceRules(remat=("none",))), Clock())
    best, *others = bench.searched(ShapeSearch(asked.layers, asked.micro_batches, thorough=True))
    assert {layers for layers, micro_batch in source.priced if micro_batch == 4} == {4}
    assert (best.model.num_layers, best.costs.exact) == (4, True)
    assert not any(other.model.num_layers > 4 for other in others), "their steps are only as sure as scaling is"


def test_costs_by_which_plans_are_far_from_the_best_one_are_forgotten(monkeypatch):
    monkeypatch.setattr("alpa_dejavu.planning.search._priced_shapes._FAR", 1.0)
    bench = PricedShapes(task_of(GivenModel(MODEL, 2), layers=(4,)), Clock())
    plans = bench.searched(ShapeSearch([4], [1, 2, 4, 8], thorough=True))
    least_s = min(candidate.step_s for candidate in plans)
    kept = {costs.run.num_micro_batches for costs in bench.priced}
    of_counts = {count: [one for one in plans if one.run.num_micro_batches == count] for count in (1, 2, 4, 8)}
    for count, candidates in of_counts.items():
        far = all(candidate.step_s > least_s for candidate in candidates)
        assert (count in kept) != far
        for one in candidates:
            assert one.costs.partial == far
            assert one.costs.problem.total_s(one.slicing.stages) == pytest.approx(one.slicing.cost_s)
    assert len(kept) < 4


class CutsDiffer(GrowsSlowly):
    """A model that is fastest in four layers, which scaling says about rightly, and grows slowly in five."""

    def exact(self, num_layers, micro_batch):
        share, slower = {4: (0.95, 1.0), 5: (0.2, 1.1)}[num_layers]
        ratio = micro_batch / self.micro_batch
        each = {"flop": slower * 1e6 * ratio, "activation_bytes": (1 + share * (ratio - 1)) * 2.0**28}
        return chain(num_layers, **{name: 4 / num_layers * size for name, size in each.items()})


def test_models_of_other_layers_than_the_best_are_priced_at_their_own_micro_batch_too():
    cluster = example_cluster(num_hosts=1, devices_per_host=1, memory_bytes=2.0**33)
    asked = task_of(CutsDiffer(0.0), cluster=cluster, layers=(4, 5))
    bench = PricedShapes(dataclasses.replace(asked, space=SpaceRules(remat=("none",))), Clock())
    assert bench.candidate(Shape(5, 1)) is None
    best = bench.searched(ShapeSearch(asked.layers, asked.micro_batches))[0]
    assert (best.model.num_layers, best.run.num_micro_batches) == (5, 1)


def test_scaling_is_judged_by_the_same_hosts():
    """All of this model scales, so nothing is off, on whichever of two unlike hosts a stage is."""
    asked = task_of(
        GrowsSlowly(1.0), cluster=unlike.cluster([unlike.host("a", devices=1), unlike.host("b", 0.25e12, devices=1)])
    )
    bench = PricedShapes(asked, Clock())
    scaled = bench.costs(4, 4)
    exact = bench.costs(4, 4, exactly=True)
    found = bench.candidate(Shape(4, 4, 2))
    assert {exact.space.hosts[stage.submesh] for stage in found.stages} == {(0,), (1,)}
    assert _scaling_errors(scaled, found) == pytest.approx((0, 0), abs=1e-9)


def test_stages_on_submeshes_that_partial_costs_lack_say_nothing_of_scaling():
    bench = PricedShapes(task_of(GrowsSlowly(0.5)), Clock())
    scaled, found = bench.costs(4, 4), bench.candidate(Shape(4, 4))
    used = {stage.submesh for stage in found.stages}
    others = [s for s in range(len(scaled.space.submeshes)) if s not in used]
    partial = dataclasses.replace(scaled, space=scaled.space.part(others), table=scaled.table.part(others))
    assert _scaling_errors(partial, found) == (0, 0)
