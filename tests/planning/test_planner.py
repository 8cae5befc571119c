"""From a model and a cluster to a plan, and the errors where there is none."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

import alpa_dejavu
from alpa_dejavu._util.search_watch import SearchWatch, watched
from alpa_dejavu.clusters.placement import place
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.planning.task import Clock
from alpa_dejavu.problem import MeshConfig, NoPlanError, Run, Submesh
from alpa_dejavu.testing import example_cluster
from models import chain, planned, space, task_of


def test_a_plan_covers_layers_and_devices():
    cluster = example_cluster(num_hosts=2)
    made = planned(chain(6), cluster, space(hosts=2), Run(8)).plan
    assert [n for layers in made.layer_ids for n in layers] == list(range(6))
    assert sum(stage.submesh.num_devices for stage in made.stages) == 8
    assert made.num_layers == 6
    assert made.step_s >= made.lower_bound_s * (1 - 1e-9) > 0
    steps = {"features", "cost table", "slicing", "placement", "confidence", "memory", "cache"}
    assert set(made.planning_s) == steps


@pytest.mark.parametrize("contingencies", [False, True])
def test_every_second_of_planning_is_a_steps(contingencies):
    # A look at the clock takes a second: all between the first and the last is told, each under its step.
    looks = itertools.count()
    task = task_of(chain(6), example_cluster(num_hosts=2), space(hosts=2), Run(8), contingencies=contingencies)
    made = alpa_dejavu.plan(task, clock=Clock(lambda: float(next(looks)))).plan
    assert made.total_planning_s == next(looks) - 1
    assert min(made.planning_s.values()) >= 1.0
    assert made.after({"features": 100.0}).planning_s["features"] == 100.0 + made.planning_s["features"]


def test_a_search_that_is_stopped_says_how_much_was_left_and_its_bound():
    task = task_of(chain(6), example_cluster(num_hosts=2), 2, Run(8), contingencies=True)
    task = dataclasses.replace(task, micro_batches=(1, 2, 4, 8, 16))
    whole, watch = alpa_dejavu.plan(task).plan, SearchWatch()
    price = watch.price

    def stop(has_plan, left, anew):
        price(has_plan, left, anew)
        watch.is_stopped = watch.has_plan

    watch.price = stop
    with watched(watch):
        best = alpa_dejavu.plan(task).plan
    (note,) = (note for note in best.notes if note.startswith("stopped early"))
    assert note.startswith(f"stopped early: {watch.priced} of about {watch.priced + sum(watch.left)} candidates priced")
    assert f"layers and {best.num_micro_batches} micro-batches takes less than" in note
    assert best.step_s >= whole.step_s * (1 - 1e-9)
    assert not best.contingencies
    assert not any("nothing fits" in note for note in best.notes)
    assert whole.contingencies
    assert not any("stopped" in note for note in whole.notes)


def test_a_search_that_is_stopped_before_it_has_a_plan_is_interrupted():
    watch = SearchWatch()
    watch.is_stopped = True
    with watched(watch), pytest.raises(KeyboardInterrupt):
        planned(chain(6), example_cluster(num_hosts=2), space(hosts=2), Run(8))


def test_a_model_larger_than_memory_says_how_much_is_missing():
    with pytest.raises(NoPlanError, match=r"GiB are missing.*what helps: more micro-batches \(now 2\)"):
        planned(chain(2, parameter_bytes=2.0**33), example_cluster(1), space(), Run(2))


def test_a_search_space_without_a_plan_says_so():
    with pytest.raises(NoPlanError, match=r"exactly 4 devices; allow other submeshes"):
        planned(chain(1), example_cluster(1), space(devices=2), Run(2))


def test_slicers_are_chosen_by_name():
    exact = planned(chain(5), example_cluster(1), space(), Run(4), slicing="exhaustive").plan
    best = planned(chain(5), example_cluster(1), space(), Run(4)).plan
    even = planned(chain(5), example_cluster(1), space(), Run(4), slicing="uniform").plan
    assert best.step_s == pytest.approx(exact.step_s)
    assert even.step_s >= best.step_s * (1 - 1e-9)


def test_a_slicer_that_misses_all_plans_is_told_apart_from_there_being_none():
    """Devices that share a CPU are all used, and no equal stages on 1 or 2 use 3."""
    cluster, unlike = dataclasses.replace(example_cluster(1, devices_per_host=3), cores=3), space(devices=3)
    assert len(planned(chain(2), cluster, unlike, Run(2)).plan.stages) == 2
    with pytest.raises(NoPlanError, match=r"Uniform\(\) found no plan, but there are some; choose --slicer dynamic"):
        planned(chain(2), cluster, unlike, Run(2), slicing="uniform")


def test_the_largest_submeshes_are_placed_first():
    cluster = example_cluster(num_hosts=2, devices_per_host=4)
    assert place([Submesh(1, 2), Submesh(1, 4), Submesh(1, 2)], cluster) == [(1,), (0,), (1,)]
    assert place([Submesh(1, 4), Submesh(1, 4)], cluster) == [(1,), (0,)], "of equal ones the last"
    assert place([Submesh(2, 4)], cluster) == [(0, 1)]
    with pytest.raises(NoPlanError, match="fill its hosts"):
        place([Submesh(1, 3), Submesh(1, 3), Submesh(1, 2)], cluster)


WHOLE = [GivenStage(0, 3, Submesh(1, 4), MeshConfig((4, 1), 4, 1))]


def estimated(cluster=None, batch=32, count=8):
    return estimate(chain(4, flop=1e9), cluster or example_cluster(1), Run(count), WHOLE, batch=batch)


def test_utilisation_is_the_models_work_by_what_all_devices_could_do():
    whole = estimated()
    # 4 layers of 1 GFLOP forward and 2 backward, 8 micro-batches; 4 devices of 1 TFLOP/s.
    assert whole.model_flop == pytest.approx(4 * 3e9 * 8)
    assert whole.flop_utilisation == pytest.approx(4 * 3e9 * 8 / 4e12 / whole.plan.step_s)
    assert 0 < whole.flop_utilisation <= 1


def test_a_plan_reads_as_a_table():
    made = planned(chain(2), example_cluster(1), space(), Run(2)).plan
    text = alpa_dejavu.plan_table(made)
    assert text.splitlines()[0].split()[:3] == ["stage", "layers", "submesh"]
    assert len(text.splitlines()) == len(made.stages) + 2
    assert "host-0" in text
    assert " a step, " in text.splitlines()[-1]


def test_expensive_sending_makes_one_stage_and_cheap_sending_more():
    lengths = []
    for sent in (1e7, 1.0):
        model = chain(4, parameter_bytes=3e7, activation_bytes=sent, exchanged=(1e9,) * 4)
        lengths.append(len(planned(model, example_cluster(1), space(), Run(4)).plan.stages))
    assert lengths == [1, 4]


def test_expensive_synchronisation_makes_stages():
    model = chain(4, parameter_bytes=1e8, activation_bytes=1.0, exchanged=(1e9,) * 4)
    assert len(planned(model, example_cluster(1), space(), Run(4)).plan.stages) > 1


def test_throughput_is_samples_by_the_step():
    whole = estimated()
    assert whole.samples_per_s == pytest.approx(32 / whole.plan.step_s)
    assert estimated(batch=None).samples_per_s is None


def test_each_device_counts_by_its_own_rate():
    cluster = example_cluster(1)
    (host,) = cluster.hosts
    device = dataclasses.replace(host.device, flop_per_s={"float32": 2e12})
    faster = dataclasses.replace(cluster, hosts=(dataclasses.replace(host, device=device),))
    whole = estimated(faster)
    assert whole.flop_utilisation == pytest.approx(4 * 3e9 * 8 / 8e12 / whole.plan.step_s)
