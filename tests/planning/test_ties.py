"""Ties are broken by a stated order: the last bits of a processor's arithmetic decide no plan."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_dejavu._util import ties
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.planning.result import front
from alpa_dejavu.planning.search.uncertainty import Errors, Resolver, meet
from alpa_dejavu.planning.search.uncertainty._confidence import most_worthwhile
from alpa_dejavu.problem import Run
from alpa_dejavu.testing import example_cluster
from models import chain, space
from plans import example_plan

CLUSTER, SPACE, RUN = example_cluster(1), space(), Run(8)
MODEL = chain(7, flop=1.1e9, activation_bytes=1.3e4, parameter_bytes=1e8, exchanged=(2.7e5,) * 4)
BITS = 1 + 1e-14
"""What a processor's last bits make of 1."""


@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=40))
def test_what_is_rounded_is_nearly_itself_and_rounded_for_good(values):
    given_s = np.array(values)
    once = ties.rounded(given_s)
    assert np.abs(once / given_s - 1).max() < 1.5e-11
    assert (ties.rounded(once) == once).all()


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, np.inf]), min_size=1, max_size=12), st.randoms())
def test_last_bits_change_no_order(values, random):
    bits = [value * random.choice([1 / BITS, 1.0, BITS]) for value in values]
    places = list(range(len(values)))
    assert ties.ordered(places, values.__getitem__) == sorted(places, key=values.__getitem__)
    assert ties.ordered(places, bits.__getitem__) == sorted(places, key=values.__getitem__)
    assert ties.least(places, bits.__getitem__) == min(places, key=values.__getitem__)
    assert ties.first_least(np.array([values, bits])).tolist() == [values.index(min(values))] * 2


def test_layers_alike_cost_alike_wherever_they_stand():
    table = cost_table(MODEL, CLUSTER, SPACE, RUN, CostModels.named())
    costs = table.slicing_problem(CLUSTER, SPACE, RUN).costs_s
    for length in (1, 2, 3):
        # The first layer takes nothing in, and the last one gives nothing back.
        inner = [costs[first, first + length - 1] for first in range(1, 7 - length)]
        assert all((each == inner[0]).all() for each in inner), "a slicer would choose by what stands before in a sum"


DECIDED = """
import json, sys
sys.path[:0] = {paths!r}
import measured_peaks as tests
from alpa_dejavu.testing import example_cluster
asked = []
for room in (1.0, 1.5, 8.0):
    cluster = example_cluster(1, memory_bytes=room * tests.NARROW)
    measure, own = tests.measuring(lambda count: 2.0 if count % 3 == 0 else 0.3, cluster, collectives=6.0)
    plan = tests.decided(measure, cluster)
    asked.append([str(own), [[*stage.layers, *stage.logical_mesh] for stage in plan.stages], plan.step_s])
print(json.dumps(asked))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it asks Linux which kinds of processors there are")
def test_measurements_and_plans_are_the_same_on_every_processor():
    code = DECIDED.format(paths=sys.path)
    flags, found = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split(), []
    kinds = {"Nehalem": "sse4_2", "Haswell": "avx2", "SkylakeX": "avx512dq"}
    for kind in [kind for kind, needed in kinds.items() if needed in flags]:
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "OPENBLAS_CORETYPE": kind},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found.append(json.loads(done.stdout))
    for other in found[1:]:
        for (asked, stages, step_s), (its_asked, its_stages, its_step_s) in zip(found[0], other, strict=True):
            assert (its_asked, its_stages) == (asked, stages)
            assert its_step_s == pytest.approx(step_s, rel=1e-9)


def test_of_stages_that_are_worth_the_same_the_first_is_measured():
    error = 0.3 * np.random.default_rng(0).standard_normal(4000)
    steps = np.stack([np.exp(error), np.full(4000, 1.0)], axis=1)
    errors = np.stack([error, error, error], axis=1)
    for takes in ([1.0, 1.0, 1.0], [BITS, 1.0, 1.0], [1.0, BITS, 1 / BITS]):
        assert most_worthwhile(steps, errors, np.array(takes), 60.0) == 0


def test_last_bits_of_a_measurement_hardly_change_what_is_drawn_after_it():
    table = cost_table(MODEL, CLUSTER, SPACE, RUN, CostModels.named())
    resolver = Resolver()
    meet(table, SPACE, resolver)
    stage = resolver.resolved(table.stage_costs, table.devices[1], SPACE.configs[1][0])
    drawn = []
    for ratio in (1.7, 1.7 * BITS):
        errors = Errors.unmeasured(resolver)
        for first in (1, 3):
            errors = errors.measured(stage.micro_batch, stage, first, first + 1, ratio)
        drawn.append(errors.drawn(100))
    for one, other in ((drawn[0].common, drawn[1].common), (drawn[0].own, drawn[1].own)):
        assert one == pytest.approx(other, rel=1e-10)


def test_plans_that_take_the_same_stay_in_their_order():
    plan = example_plan()
    plans = [dataclasses.replace(plan, step_s=plan.step_s * factor) for factor in (2.0, BITS, 1.0, 1 / BITS)]
    cluster = named_cluster("p3.16xlarge")
    assert [one.plan for one in front(plans, cluster)] == [plans[1]]
