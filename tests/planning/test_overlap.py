"""Plans whose devices communicate while they compute: hidden seconds, through every door."""

import pytest

from alpa_dejavu.costs.overlap import Overlap
from alpa_dejavu.planning import GivenStage, estimate, given_stages, plan_model
from alpa_dejavu.planning.search.runtimes import runtimes_of
from alpa_dejavu.plans.plan_file import read_plan, write_plan
from alpa_dejavu.plans.stage_rows import PLANNED, known_columns, stage_rows
from alpa_dejavu.problem import MeshConfig, Run, Submesh
from alpa_dejavu.simulation.plan_times import plan_times
from alpa_dejavu.simulation.step import simulate
from alpa_dejavu.testing import example_cluster
from models import chain

SLOW = Overlap("streams", 1.1, 1.25)
SHARED = MeshConfig((2, 1), 2, 1, {"force_batch_dim_to_mesh_dim": 0}, zero=3)


def job():
    return chain(6, flop=2e10, parameter_bytes=2.0**22, activation_bytes=2.0**20)


def planned(overlap=None, runtime=None, **options):
    cluster = example_cluster(2, 2, 2.0**32)
    asked = {"batch": 8, "micro_batches": 4, "remat": ("none",), "cache": False, **options}
    return plan_model(job(), cluster, overlap=overlap, runtime=runtime, **asked)


def test_streams_hide_and_nothing_is_hidden_by_default():
    alone, streams = planned().plan, planned("streams").plan
    assert streams.step_s < alone.step_s == planned("none").plan.step_s
    assert all(stage.hidden_s == stage.hidden_per_step_s == 0 for stage in alone.stages)
    assert any(stage.hidden_per_step_s > 0 for stage in streams.stages)
    assert streams.priced_by.runtime == "alpa+streams"
    assert alone.runs_on_alpa
    assert not streams.runs_on_alpa
    assert runtimes_of(streams)["alpa"] == "no overlap of communication there"
    assert not runtimes_of(streams)["deepspeed"] or "overlap" not in runtimes_of(streams)["deepspeed"]
    names = [column.name for column in known_columns(PLANNED, stage_rows(streams))]
    assert "hidden" in names
    assert "hidden" not in [column.name for column in known_columns(PLANNED, stage_rows(alone))]


@pytest.mark.parametrize("overlap", ["streams", SLOW])
def test_every_door_says_the_same(tmp_path, overlap):
    result = planned(overlap)
    write_plan(result.plan, tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert again == result.plan
    found = estimate(
        result.model, result.cluster, result.run, given_stages(again), runtime=again.priced_by.runtime
    ).plan
    assert found.step_s == pytest.approx(again.step_s)
    assert [stage.hidden_s for stage in found.stages] == [stage.hidden_s for stage in again.stages]
    simulated = simulate(plan_times(again), again.num_micro_batches, again.schedule)
    assert simulated.step_s == pytest.approx(again.step_s)


def test_a_split_backward_pass_hides_nothing_behind_what_it_puts_off():
    model, cluster, run = job(), example_cluster(2, 2, 2.0**32), Run(4, "zb_h1")
    whole = [GivenStage(3 * n, 3 * n + 2, Submesh(1, 2), SHARED, (f"host-{n}",)) for n in range(2)]
    streams, plain = (estimate(model, cluster, run, whole, runtime=each) for each in ("alpa+streams", "alpa"))
    assert all(stage.hidden_s > 0 for stage in streams.plan.stages)
    for one, other in zip(streams.timeline.stages, plain.timeline.stages, strict=True):
        assert one.backward_collective_s == pytest.approx(other.backward_collective_s)
        assert one.forward_collective_s < other.forward_collective_s
    usual = estimate(model, cluster, Run(4), whole, runtime="alpa+streams").timeline.stages
    assert usual[0].backward_collective_s < plain.timeline.stages[0].backward_collective_s


def test_a_runtime_keeps_its_figures():
    hidden, alone = planned("streams", "megatron").plan, planned(None, "megatron").plan
    assert hidden.priced_by.runtime == "megatron+streams"
    assert alone.priced_by.runtime == "megatron"
    with pytest.raises(ValueError, match="overlap is 'all', but must be one of 'none', 'gradients', 'tensor', 'str"):
        planned("all")


def test_what_is_hidden_is_a_part_of_what_is_sent():
    result = planned("streams")
    plain = estimate(result.model, result.cluster, result.run, given_stages(result.plan)).plan
    for alone, stage in zip(plain.stages, result.plan.stages, strict=True):
        assert stage.hidden_s <= alone.collective_s + 1e-12
        assert stage.collective_s == pytest.approx(alone.collective_s - stage.hidden_s, abs=1e-9)
        assert stage.synchronisation_s == pytest.approx(alone.synchronisation_s - stage.hidden_per_step_s, abs=1e-9)
        assert stage.compute_s == alone.compute_s
    assert result.plan.step_s <= plain.step_s


def test_slower_streams_hide_less_and_never_more_than_nothing():
    steps = [planned(Overlap("streams", factor, factor)).plan.step_s for factor in (1.0, 1.5, 4.0)]
    assert steps == sorted(steps)
    assert steps[-1] <= planned().plan.step_s * (1 + 1e-9)
