"""Plans that add up gradients with reduction servers: their steps, what they say, and that Alpa can't run them."""

import dataclasses

import pytest

from alpa_dejavu.planning import plan
from alpa_dejavu.planning.search._ranking import with_reduction_servers
from alpa_dejavu.planning.search.given_stages import GivenStages, given_candidate, given_stages
from alpa_dejavu.problem import ReductionServer, Run
from alpa_dejavu.testing import example_cluster
from models import chain, task_of

MODEL, RUN = chain(4, flop=4e10, parameter_bytes=2e8, activation_bytes=2e8, exchanged=(1e6,)), Run(4)


def cluster(servers, hosts=4):
    bare = example_cluster(hosts, 1, 2.0**36)
    return dataclasses.replace(bare, reduction_servers=tuple(ReductionServer(f"s{n}", 1e9) for n in range(servers)))


def planned(servers, hosts=4, **how):
    return plan(task_of(MODEL, cluster(servers, hosts), 4, RUN, **how), annotations=()).plan


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_a_plan_with_servers_saves_what_the_closed_formula_says(servers):
    plain, beside = planned(0), planned(servers)
    (stage,) = beside.stages
    assert stage.logical_mesh == (4, 1)
    # Four hosts of one device with 1 GB/s, and 0.8 GB of gradients.
    taken = 2 * 4 * 3 / (16 + 4 * servers - 2 * servers) * 0.8 + 2 * 1e-4
    assert stage.synchronisation_s == pytest.approx(taken)
    assert plain.step_s - beside.step_s == pytest.approx(6 * (1e-4 + 0.8 / 4) - taken)
    said, whole = beside.notes
    assert said.startswith(f"{servers} of {servers} reduction servers pay for stage 0: they add up ")
    assert said.endswith("instead of 1.201 s")
    assert whole.startswith(f"with reduction servers a step takes {beside.step_s:.4g} s, and 1.681 s of the same ")
    assert plain.runs_on_alpa
    assert not beside.runs_on_alpa


def test_more_servers_than_pay_change_nothing():
    four, six = planned(4), planned(6)
    assert (four.stages, four.step_s) == (six.stages, six.step_s)
    assert six.notes[0].startswith("4 of 6 reduction servers pay for stage 0, more gain less than 1 %: they add ")


def test_a_plan_that_does_without_servers_runs_on_alpa_and_says_so():
    made = planned(3, hosts=2)
    assert made.runs_on_alpa
    assert made.notes == (
        "the plan uses none of the cluster's reduction servers: they speed up no all-reduce of its gradients",
    )
    assert dataclasses.replace(made, notes=()) == dataclasses.replace(planned(0, hosts=2), planning_s=made.planning_s)


def test_given_stages_are_priced_as_they_were_searched():
    beside = planned(2)
    again = planned(2, chooser=GivenStages(tuple(given_stages(beside))))
    assert (again.step_s, again.notes, again.runs_on_alpa) == (beside.step_s, beside.notes, False)


def test_nothing_is_said_of_a_strategys_plan_whose_step_is_its_own():
    task, made = task_of(MODEL, cluster(2), 4, RUN), planned(2)
    found = given_candidate(task, MODEL, RUN, given_stages(made))
    own = dataclasses.replace(made, notes=(), strategy="hetpipe (ed)")
    assert with_reduction_servers(own, found) is own
    assert with_reduction_servers(dataclasses.replace(own, runs_on_alpa=True), found).notes == made.notes
