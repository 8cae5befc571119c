"""What the slicer proposes, simulated, and the plans beside it."""

import dataclasses

from alpa_dejavu.search import Candidate, micro_batch_counts, neighbours, proposed, simulated, stage_times
from models import chain, space

from alpa_dejavu.communication import AlphaBeta, Free
from alpa_dejavu.cost_models import CostModels
from alpa_dejavu.cost_table import cost_table
from alpa_dejavu.latency import AnalyticLatency
from alpa_dejavu.problem import Run
from alpa_dejavu.slicing import slicer
from alpa_dejavu.testing import example_cluster

CLUSTER, SPACE, RUN = example_cluster(1), space(), Run(8)


MODEL = chain(6, flop=1e9, activation_bytes=1e6, parameter_bytes=1e6)


def table():
    return cost_table(MODEL, CLUSTER, SPACE, RUN, CostModels(AnalyticLatency(), AlphaBeta()))


def test_counts_divide_the_batch():
    assert micro_batch_counts(1) == (1,)
    assert micro_batch_counts(1024)[-1] == 1024
    assert all(96 % count == 0 for count in micro_batch_counts(96))
    assert len(micro_batch_counts(2**20)) <= 12


def test_the_slicers_best_is_proposed_and_neighbouring_lengths_cost_no_less():
    exact = slicer("dynamic")
    best = proposed(MODEL, table(), CLUSTER, SPACE, RUN, exact)
    assert best.slicing.stages == exact.slice(table().slicing_problem(CLUSTER, SPACE, RUN)).stages
    length = len(best.slicing.stages)
    beside = neighbours(best, CLUSTER, exact)
    lengths = [len(candidate.slicing.stages) for candidate in beside]
    assert lengths == [n for n in sorted({length // 2, length - 1, length + 1} - {0, length}) if n <= 4]
    assert all(candidate.slicing.cost_s >= best.slicing.cost_s for candidate in beside)
    assert all(candidate.timeline is not None for candidate in beside)


def test_nothing_is_proposed_where_nothing_fits():
    full = chain(6, parameter_bytes=1e15)
    table = cost_table(full, CLUSTER, SPACE, RUN, CostModels(AnalyticLatency(), AlphaBeta()))
    assert proposed(full, table, CLUSTER, SPACE, RUN, slicer("dynamic")) is None


def test_a_stage_sends_what_its_neighbour_takes_in():
    problem = table().slicing_problem(CLUSTER, SPACE, RUN)
    sliced = slicer("dynamic").slice(dataclasses.replace(problem, num_stages=2))
    two = Candidate(MODEL, table(), SPACE, RUN, sliced)
    one, other = stage_times(two.table, two.slicing.stages, SPACE)
    before, after = two.slicing.stages
    ahead, back = two.table.interstage.seconds(after.first, before.submesh, after.submesh)
    assert one.forward_send_s == ahead > 0
    assert other.backward_send_s == back > 0
    assert other.forward_send_s == one.backward_send_s == 0


def test_devices_that_share_a_cpu_are_no_faster_than_its_work_on_its_cores():
    shared = dataclasses.replace(CLUSTER, cores=2)
    model = chain(6, flop=1e9)
    free = cost_table(model, shared, SPACE, RUN, CostModels(AnalyticLatency(), Free()))
    best = proposed(model, free, shared, SPACE, RUN, slicer("dynamic"))
    for candidate in [simulated(best, shared), *neighbours(best, shared, slicer("dynamic"))]:
        work = free.slicing_problem(shared, SPACE, RUN).total_s(candidate.slicing.stages)
        assert candidate.step_s >= work * (1 - 1e-9)
