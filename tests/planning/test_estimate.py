"""A given plan is reckoned as the planner would reckon it."""

import pytest

from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.problem import MeshConfig, Run, Submesh
from alpa_dejavu.slicing import slicer
from alpa_dejavu.testing import example_cluster
from models import best_and_neighbours, chain, costs_of

CLUSTER = example_cluster(1)
MODEL = chain(4, flop=1e9, activation_bytes=1e6, parameter_bytes=1e6)


def test_a_plan_of_ours_is_estimated_at_what_it_was_planned_at():
    run, space = Run(8), search_space(CLUSTER, 4, remat=("none", "layer"), zero=(0, 2))
    for candidate in best_and_neighbours(costs_of(MODEL, CLUSTER, space, run), slicer("dynamic")):
        given = [
            GivenStage(s.first, s.last, space.submeshes[s.submesh], space.configs[s.submesh][s.config])
            for s in candidate.stages
        ]
        planned = estimate(MODEL, CLUSTER, run, given)
        assert planned.plan.step_s == pytest.approx(candidate.step_s)
        assert [s.layers for s in planned.plan.stages] == [(s.first, s.last) for s in candidate.stages]


def test_a_plan_out_of_memory_is_reckoned_and_shows_it():
    heavy = chain(1, parameter_bytes=2.0**40)
    whole = GivenStage(0, 0, Submesh(1, 4), MeshConfig((4, 1), 4, 1))
    (stage,) = estimate(heavy, CLUSTER, Run(1), [whole]).plan.stages
    assert stage.memory_bytes > stage.memory_limit_bytes


@pytest.mark.parametrize("layers", [[(0, 1), (3, 3)], [(0, 1), (1, 3)], [(0, 2)]])
def test_stages_must_cover_the_layers(layers):
    half = MeshConfig((2, 1), 2, 1)
    stages = [GivenStage(first, last, Submesh(1, 2), half) for first, last in layers]
    with pytest.raises(ValueError, match=r"must cover 0\.\.3 in order"):
        estimate(MODEL, CLUSTER, Run(4), stages)


@pytest.mark.parametrize("degrees", [{"context_parallel": 2}, {"expert_parallel": 4}, {"sharded": 2, "zero": 3}])
def test_a_traced_model_is_not_divided_in_ways_that_its_costs_do_not_know(degrees):
    given = [GivenStage(0, 3, Submesh(1, 4), MeshConfig((4, 1), 4, 1, **degrees))]
    (name, value), *_ = degrees.items()
    with pytest.raises(ValueError, match=f"{name} (is )?{value}.*but a traced model can only have 1, 1, 0"):
        estimate(MODEL, CLUSTER, Run(8), given)
