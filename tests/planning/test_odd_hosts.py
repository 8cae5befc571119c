"""Hosts of any number of devices have plans whose stages fit on them, and the search over these is exact."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from alpa_dejavu.clusters.placement import place, place_stages
from alpa_dejavu.clusters.space import search_space, submeshes
from alpa_dejavu.planning.changed.kept import Kept
from alpa_dejavu.planning.changed.replanning import replan
from alpa_dejavu.planning.search._packing import packed
from alpa_dejavu.problem import Run, StageChoice, Submesh
from alpa_dejavu.slicing import Dynamic
from alpa_dejavu.testing import example_cluster
from models import chain, costs_of, planned

RUN = Run(8)


def fits(parts, hosts, devices):
    """Whether parts of a host fit on hosts, by trying every way."""

    @functools.cache
    def rest(left, free):
        return not left or any(
            rest(left[1:], tuple(sorted((*free[:n], room - left[0], *free[n + 1 :]))))
            for n, room in enumerate(free)
            if room >= left[0] and room not in free[:n]
        )

    return rest(tuple(sorted(parts, reverse=True)), (devices,) * hosts)


def best_s(problem, space, hosts, devices):
    """The least cost of all slicings whose stages fit on the hosts, by trying each."""
    plain = dataclasses.replace(problem, sites=problem.sites.without_capacity())
    num_layers, least = problem.num_layers, math.inf
    shapes = [(submesh.num_hosts, submesh.devices_per_host) for submesh in space.submeshes]
    for count in range(1, num_layers + 1):
        rows = [
            row
            for row in itertools.combinations_with_replacement(range(len(space.submeshes)), count)
            if fits([shapes[n][1] for n in row for _ in range(shapes[n][0])], hosts, devices)
        ]
        for cuts in itertools.combinations(range(1, num_layers), count - 1):
            ranges = list(zip((0, *cuts), (*(cut - 1 for cut in cuts), num_layers - 1), strict=True))
            for row in dict.fromkeys(order for parts in rows for order in itertools.permutations(parts)):
                stages = tuple(
                    StageChoice(first, last, s, int(problem.costs_s[first, last, s].argmin()))
                    for (first, last), s in zip(ranges, row, strict=True)
                )
                least = min(least, plain.total_s(stages))
    return least


@given(st.integers(1, 15), st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6))
@example(6, 2, 3, 0)
@example(7, 2, 4, 1)
@example(12, 2, 4, 2)
@example(9, 2, 4, 3)
@settings(max_examples=25, deadline=None)
def test_no_slicing_that_fits_on_the_hosts_is_better(devices, hosts, layers, seed):
    """Stages cost what was drawn, less on more devices, so that large and small ones want to go together."""
    where = example_cluster(hosts, devices)
    space = search_space(where, 1)
    problem = costs_of(chain(layers), where, space, RUN).problem
    rng = np.random.default_rng(seed)
    lengths = np.arange(1, layers + 1)[None, :] - np.arange(layers)[:, None]
    sizes = problem.submesh_sizes[None, None, :, None]
    drawn = rng.integers(8, 12, problem.costs_s.shape) * np.maximum(lengths, 1)[..., None, None]
    costs_s = np.where(np.isfinite(problem.costs_s), drawn / sizes ** rng.choice([0.5, 1.0, 1.5]), np.inf)
    problem = dataclasses.replace(problem, costs_s=costs_s, per_step_s=None)
    found = packed(problem, space, where, Dynamic())
    assert found.cost_s == pytest.approx(best_s(problem, space, hosts, devices))
    assert found.lower_bound_s == found.cost_s
    if found.found:
        assert len(place_stages(found.stages, space, where)) == len(found.stages)


def alike_but_for_a_byte(where):
    """The cluster with each host a kind of its own."""
    hosts = [
        dataclasses.replace(host, device=dataclasses.replace(host.device, memory_bytes=host.device.memory_bytes + n))
        for n, host in enumerate(where.hosts)
    ]
    return dataclasses.replace(where, hosts=tuple(hosts))


@pytest.mark.parametrize(
    ("devices", "hosts"), [(3, 2), (5, 3), (6, 2), (7, 2), (9, 1), (10, 4), (12, 3), (31, 2), (63, 2), (72, 2), (72, 5)]
)
def test_any_number_of_devices_on_any_number_of_hosts_has_a_plan(devices, hosts):
    made = planned(chain(4, flop=1e10), example_cluster(hosts, devices, 2.0**34), 8, RUN).plan
    used = dict.fromkeys((host.name for host in made.hardware.hosts), 0)
    for stage in made.stages:
        for name in stage.hosts:
            used[name] += stage.submesh.devices_per_host
    assert all(taken <= devices for taken in used.values())
    assert sum(used.values()) == made.num_devices


@pytest.mark.parametrize(("devices", "hosts", "layers"), [(3, 2, 4), (6, 2, 6), (7, 2, 4), (5, 3, 4)])
def test_the_plan_is_that_of_the_same_hosts_taken_for_unlike_ones(devices, hosts, layers):
    where = example_cluster(hosts, devices, 2.0**34)
    model = chain(layers, flop=1e9, parameter_bytes=1e6, activation_bytes=1e5)
    alike, unlike = (planned(model, one, 4, RUN).plan for one in (where, alike_but_for_a_byte(where)))
    assert alike.step_s == pytest.approx(unlike.step_s, rel=1e-9)


@pytest.mark.parametrize(
    ("devices", "parts"), [(5, [1, 2, 4, 5]), (6, [1, 2, 3, 4, 6]), (8, [1, 2, 4, 8]), (12, [1, 2, 3, 4, 6, 8, 12])]
)
def test_parts_of_a_host_are_powers_of_two_and_those_that_tile_it(devices, parts):
    where = example_cluster(2, devices)
    assert [(s.num_hosts, s.devices_per_host) for s in submeshes(where)] == [*((1, n) for n in parts), (2, devices)]
    space = search_space(where, 8)
    assert (space.hosts is None) == (devices == 8)
    problem = costs_of(chain(2), where, space, RUN).problem
    assert (problem.sites.packing is None) == (devices == 8), "powers of two fit in any mixture"


def test_after_each_host_lost_a_device_there_is_a_plan():
    made = planned(chain(4, flop=1e10), example_cluster(2, 8, 2.0**34), 8, RUN)
    again = replan(made.plan, Kept.of(made), without=["host-0/0", "host-1/0"])
    assert [host.num_devices for host in again.plan.hardware.hosts] == [7, 7]


def test_stages_that_no_first_fit_places_are_placed():
    where = example_cluster(2, 12)
    shapes = [Submesh(1, size) for size in (6, 4, 4, 4, 3, 3)]
    parts = dict.fromkeys(range(2), 0)
    for shape, (host,) in zip(shapes, place(shapes, where), strict=True):
        parts[host] += shape.devices_per_host
    assert parts == {0: 12, 1: 12}
