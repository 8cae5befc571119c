"""The search around the slicer: proposals, their simulation and their order."""

import dataclasses

from models import chain, space

from alpa_dejavu.communication import AlphaBeta, Free
from alpa_dejavu.cost_table import cost_table
from alpa_dejavu.latency import AnalyticLatency
from alpa_dejavu.problem import Run
from alpa_dejavu.search import Candidate, micro_batch_counts, proposals, ranked, stage_times
from alpa_dejavu.slicing import slicer
from alpa_dejavu.testing import example_cluster

CLUSTER, SPACE, RUN = example_cluster(1), space(), Run(8)


MODEL = chain(6, flop=1e9, activation_bytes=1e6, parameter_bytes=1e6)


def table():
    return cost_table(MODEL, CLUSTER, SPACE, RUN, AnalyticLatency(), AlphaBeta())


def found(name="dynamic"):
    return list(proposals(MODEL, table(), CLUSTER, SPACE, RUN, slicer(name)))


def test_counts_divide_the_batch():
    assert micro_batch_counts(1) == (1,)
    assert micro_batch_counts(1024)[-1] == 1024
    assert all(96 % count == 0 for count in micro_batch_counts(96))
    assert len(micro_batch_counts(2**20)) <= 12


def test_proposals_have_the_slicers_best_and_neighbouring_lengths():
    proposed = found()
    best = slicer("dynamic").slice(table().slicing_problem(CLUSTER, SPACE, RUN))
    assert proposed[0].slicing.stages == best.stages
    length = len(best.stages)
    lengths = [len(candidate.slicing.stages) for candidate in proposed]
    assert lengths[1:] == [n for n in sorted({length // 2, length - 1, length + 1} - {0, length}) if n <= 4]
    assert all(candidate.slicing.cost_s >= best.cost_s for candidate in proposed)
    alone = list(proposals(MODEL, table(), CLUSTER, SPACE, RUN, slicer("dynamic"), lengths=False))
    assert [candidate.slicing.stages for candidate in alone] == [best.stages]


def test_the_shortest_simulated_step_is_first():
    order = ranked(found(), CLUSTER)
    steps = [candidate.step_s for candidate in order]
    assert steps == sorted(steps)
    assert all(candidate.timeline is not None for candidate in order)


def test_a_stage_sends_what_its_neighbour_takes_in():
    problem = table().slicing_problem(CLUSTER, SPACE, RUN)
    sliced = slicer("dynamic").slice(dataclasses.replace(problem, num_stages=2))
    two = Candidate(MODEL, table(), SPACE, RUN, sliced)
    one, other = stage_times(two.table, two.slicing.stages, SPACE)
    entries = [(s.first, s.last, s.submesh, s.config) for s in two.slicing.stages]
    assert one.forward_send_s == two.table.boundary_forward_s[entries[1]] > 0
    assert other.backward_send_s == two.table.boundary_backward_s[entries[0]] > 0
    assert other.forward_send_s == one.backward_send_s == 0


def test_devices_that_share_a_cpu_are_no_faster_than_its_work_on_its_cores():
    shared = dataclasses.replace(CLUSTER, cores=2)
    model = chain(6, flop=1e9)
    free = cost_table(model, shared, SPACE, RUN, AnalyticLatency(), Free())
    for candidate in ranked(list(proposals(model, free, shared, SPACE, RUN, slicer("dynamic"))), shared):
        work = free.slicing_problem(shared, SPACE, RUN).total_s(candidate.slicing.stages)
        assert candidate.step_s >= work * (1 - 1e-9)
