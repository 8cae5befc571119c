"""The cost table: shapes, what an entry holds, and Alpa's rules of what is offered."""

import dataclasses

import numpy as np
import pytest

from alpa_dejavu.costs.communication import AlphaBeta, Free
from alpa_dejavu.costs.latency import AnalyticLatency
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.problem import Run, StageChoice
from alpa_dejavu.testing import example_cluster
from models import chain, space

ONE_HOST = example_cluster(num_hosts=1)
RUN = Run(4)


def table_of(model, cluster=ONE_HOST, choices=None, run=RUN, communication=None):
    return cost_table(model, cluster, choices or space(), run, CostModels(AnalyticLatency(), communication or Free()))


def test_shapes_and_what_is_offered():
    table = table_of(chain(3))
    assert table.costs_s.shape == (3, 3, 3, 3)
    finite = np.isfinite(np.asarray(table.costs_s))
    assert not finite[2, 1].any()
    assert finite[:, :, 0, 0].sum() == 6
    assert finite[:, :, 2, 0].sum() == 1, "the whole cluster is for all layers alone"
    assert not finite[:, :, 0, 1].any(), "one device has one config"


def test_compute_is_the_sum_of_the_layers_divided():
    table = table_of(chain(3, flop=1e9))
    starts = 2 * 1e-5
    assert table.compute_s[0, 2, 0, 0] == pytest.approx(3 * 3e9 / 1e12 + starts)
    assert table.compute_s[1, 1, 1, 0] == pytest.approx(3e9 / 2 / 1e12 + starts)


def test_tensor_parallelism_pays_per_micro_batch_and_data_parallelism_per_step():
    table = table_of(chain(2, parameter_bytes=1e6), communication=AlphaBeta())
    data, tensor = 0, 1
    assert table.collective_s[0, 1, 1, data] == 0
    assert table.collective_s[0, 1, 1, tensor] == pytest.approx(2 * 2 * (1e-5 + 200 / 1e10))
    sync = 2 * (1e-5 + 2e6 / 2 / 1e10)
    assert table.per_step_s[0, 1, 1, data] == pytest.approx(sync)
    assert table.per_step_s[0, 1, 1, tensor] == 0


def test_a_stage_takes_in_what_crosses_on_both_its_sides():
    table, choices = table_of(chain(3, activation_bytes=1e6), communication=AlphaBeta()), space()
    once = 1e-5 + 1e6 / 1e10
    stages = [StageChoice(n, n, 0, 0) for n in range(3)]
    expected = [(0.0, once), (once, once), (once, 0.0)]
    assert [pair == pytest.approx(one) for pair, one in zip(table.interstage_s(stages, choices), expected, strict=True)]
    assert table.costs_s[1, 1, 0, 0] + 2 * once == pytest.approx(table.compute_costs_s[1, 1, 0, 0])
    assert table.costs_s[0, 2, 0, 0] == table.compute_costs_s[0, 2, 0, 0]
    problem = table.slicing_problem(ONE_HOST, choices, RUN)
    assert problem.stage_costs_s(stages)[1] == pytest.approx(table.compute_costs_s[1, 1, 0, 0])


def test_between_hosts_sending_takes_longer():
    model = chain(3, activation_bytes=1e6)
    near = table_of(model, communication=AlphaBeta())
    far = table_of(model, example_cluster(2), space(hosts=2), communication=AlphaBeta())
    assert far.interstage.seconds(1, 0, 0) > near.interstage.seconds(1, 0, 0)
    # Once it is known where they are, two stages in one host send within it.
    stages = [StageChoice(0, 0, 0, 0), StageChoice(1, 2, 0, 0)]
    beside, apart = (far.interstage_s(stages, space(hosts=2), hosts) for hosts in ([(1,), (1,)], [(0,), (1,)]))
    assert beside == near.interstage_s(stages, space())
    assert apart == far.interstage_s(stages, space(hosts=2))


@pytest.mark.parametrize("imbalance", [0.0, 0.5, 1.0])
def test_imbalance_is_bounded_as_alpa_bounds_it(imbalance):
    table = table_of(chain(4), choices=space(imbalance=imbalance))
    for i in range(4):
        for j in range(i, 4):
            for s, devices in enumerate((1, 2, 4)):
                if devices == 4 and (i, j) != (0, 3):
                    continue
                share, part = (j - i + 1) / 4, devices / 4
                allowed = part <= share * (1 + imbalance) and part >= share / (1 + imbalance)
                assert np.isfinite(table.costs_s[i, j, s, 0]) == allowed


def test_what_does_not_fit_is_not_offered():
    table = table_of(chain(4, parameter_bytes=2.0**27))
    assert np.isinf(table.costs_s[0, 3, 0, 0])
    assert np.isfinite(table.costs_s[0, 0, 0, 0])
    assert table.max_n_succ_stages[0, 3, 0, 0] == -1


def test_inference_has_no_backward():
    table = table_of(chain(3, training=False), run=Run(4, "inference"))
    assert table.compute_s[0, 2, 0, 0] == pytest.approx(3 * 1e9 / 1e12 + 1e-5)
    assert (table.max_n_succ_stages[0, 0, 0] >= -1).all()


def test_devices_that_share_a_cpu_are_asked_for_their_work():
    shared = dataclasses.replace(ONE_HOST, cores=2)
    table = table_of(chain(3, activation_bytes=1e6), shared, communication=AlphaBeta())
    problem = table.slicing_problem(shared, space(), RUN)
    assert problem.objective == "work"
    assert problem.costs_s[1, 1, 0, 0] == pytest.approx(table.costs_s[1, 1, 0, 0] / 4)
    assert problem.once_s[1, 1, 0, 0] == pytest.approx(table.per_step_s[1, 1, 0, 0] / 4)
    # What crosses is work of one of two cores, and the rest of it counts once for all micro-batches.
    crossing = sum(table.interstage.seconds(1, 1, 0))
    assert problem.sites.crossing(1, 1, 0) == pytest.approx(crossing * (1 / 2 + 1 / 2 / RUN.num_micro_batches))
    alone = table.slicing_problem(ONE_HOST, space(), RUN)
    assert alone.costs_s[1, 1, 0, 0] == table.costs_s[1, 1, 0, 0]
    assert alone.once_s[1, 1, 0, 0] == table.per_step_s[1, 1, 0, 0]
