"""The slicer's answers, simulated, and those of neighbouring numbers of stages."""

from __future__ import annotations

import dataclasses

import pytest

import unlike
from alpa_dejavu.calibration import prices
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.planning import PlanningTask, Searched, plan
from alpa_dejavu.planning.search._searched import fewer_hosts, numbers_of_hosts
from alpa_dejavu.planning.search._stage_times import stage_times, timeline_alone, timeline_of
from alpa_dejavu.planning.search.models.model_source import ModelSource
from alpa_dejavu.planning.task import Clock
from alpa_dejavu.problem import Run
from alpa_dejavu.simulation.step import StageTimes
from alpa_dejavu.slicing import slicer
from alpa_dejavu.testing import example_cluster
from models import best_and_neighbours, chain, costs_of, planned, space

CLUSTER, SPACE, RUN = example_cluster(1), space(), Run(8)
MODEL = chain(6, flop=1e9, activation_bytes=1e6, parameter_bytes=1e6)
EXACT = slicer("dynamic")


def test_the_plan_is_the_one_that_simulates_fastest_whatever_its_number_of_stages():
    costs = costs_of(MODEL, CLUSTER, SPACE, RUN)
    each = [one for number in range(1, 5) if (one := costs.sliced(EXACT, number)) is not None]
    found = planned(MODEL, CLUSTER, SPACE, RUN)
    assert found.plan.step_s == found.timeline.step_s == min(one.step_s for one in each)


def test_a_stage_sends_what_its_neighbour_takes_in():
    two = costs_of(MODEL, CLUSTER, SPACE, RUN).sliced(EXACT, 2)
    one, other = stage_times(two.table, two.stages, SPACE)
    before, after = two.stages
    ahead, back = two.table.interstage.seconds(after.first, before.submesh, after.submesh)
    assert one.forward_send_s == ahead > 0
    assert other.backward_send_s == back > 0
    assert other.forward_send_s == one.backward_send_s == 0


def test_devices_that_share_a_cpu_are_no_faster_than_its_work_on_its_cores():
    shared = dataclasses.replace(CLUSTER, cores=2)
    costs = costs_of(chain(6, flop=1e9), shared, SPACE, RUN, communication="free")
    for candidate in best_and_neighbours(costs, EXACT):
        work = costs.problem.total_s(candidate.stages)
        assert candidate.step_s >= work * (1 - 1e-9)


def test_a_stage_does_half_of_its_sends_through_ray_itself():
    cluster = dataclasses.replace(CLUSTER, cores=64)
    times = [StageTimes(3.0, 2.0, forward_send_s=2.0), StageTimes(1.0, 1.0)]
    # One micro-batch takes as long as its parts, whoever does them.
    assert timeline_of(times, cluster, Run(1)).step_s == 3.0 + 2.0 + 1.0 + 1.0 + 2.0
    # The second one is computed when the first is handed over, and is then handed over and received itself.
    assert timeline_of(times, cluster, Run(2)).step_s == 3.0 + 1.0 + 3.0 + 1.0 + 1.0 + 1.0 + 1.0 + 2.0
    assert timeline_alone(times, cluster, Run(2)).step_s == 12.0


class FinerIsSlower(ModelSource):
    """A chain that takes a little more the more layers it is cut into; scaled models come out as exact ones do."""

    name, training, micro_batch, traces = "finer is slower", True, 1, True

    def numbers_of_layers(self, wanted):
        return tuple(wanted)

    def exact(self, num_layers, micro_batch):
        flop = 1e12 * (1 + 5e-5 * num_layers) / num_layers
        return with_micro_batch(chain(num_layers, flop=flop, exchanged=()), micro_batch)

    def scaled(self, num_layers, micro_batch):
        return self.exact(num_layers, micro_batch)


def test_the_plan_of_more_layers_that_is_as_good_is_priced_at_its_own_micro_batch():
    cluster = example_cluster(2)
    task = PlanningTask(
        source=FinerIsSlower(),
        prices=prices(cluster, None, "analytic", "free"),
        batch=64,
        layers=(8, 16),
        micro_batches=(32,),
        chooser=Searched("all"),
    )
    found = plan(task, annotations=())
    steps = [found.plan.step_s, *(other.plan.step_s for other in found.runners_up)]
    assert found.plan.num_layers == 16
    assert 1e-4 < found.plan.step_s / min(steps) - 1 < 1e-3
    chosen = task.chooser.choose(task, Clock()).candidates[0]
    assert chosen.model.num_layers == 16
    assert chosen.costs.exact


def names(cluster):
    return "".join(host.name for host in cluster.hosts)


@pytest.mark.parametrize("hosts", range(1, 9))
def test_of_few_alike_hosts_each_smaller_number_is_a_part(hosts):
    assert [len(part.hosts) for part in fewer_hosts(example_cluster(hosts))] == list(range(hosts - 1, 0, -1))


def test_of_unlike_hosts_one_less_of_each_kind_and_whole_kinds_are_parts():
    parts = fewer_hosts(unlike.two_and_two())
    assert {names(part) for part in parts} == {"abc", "acd", "ab", "cd"}
    sizes = [part.num_devices for part in parts]
    assert sizes == sorted(sizes, reverse=True), "the largest first"


def test_of_many_hosts_the_slow_and_dear_ones_are_left_out_one_by_one():
    many = [unlike.host(f"{kind}{n}", 1e12 * (kind + 1), price=1.0) for kind in range(4) for n in range(4)]
    found = numbers_of_hosts(unlike.cluster(many))
    assert len(found) == len(set(found)) <= 32
    assert (3, 4, 4, 4) in found, "a slow and dear host less"
    assert (0, 0, 0, 1) in found
