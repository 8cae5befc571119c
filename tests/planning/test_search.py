"""The search: shapes that are asked for, and the slicer's answers, simulated."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import unlike
from alpa_dejavu.calibration import prices
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.planning import PlanningTask, Searched, plan
from alpa_dejavu.planning.search._searched import fewer_hosts, numbers_of_hosts
from alpa_dejavu.planning.search._shapes import Shape, ShapeSearch, micro_batch_counts
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

    def __init__(self, off=1.0):
        self.off, self.priced_exactly = off, []

    def exact(self, num_layers, micro_batch):
        self.priced_exactly.append(num_layers)
        return self.scaled(num_layers, micro_batch, off=1.0)

    def scaled(self, num_layers, micro_batch, off=None):
        flop = 1e12 * (1 + 5e-5 * num_layers) / num_layers * (off or self.off)
        return with_micro_batch(chain(num_layers, flop=flop, exchanged=()), micro_batch)


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
    coarser = plan(dataclasses.replace(task, layers=(8,)), annotations=())
    assert found.plan.num_layers == 16
    assert 1e-4 < found.plan.step_s / coarser.plan.step_s - 1 < 1e-3
    chosen = task.chooser.choose(task, Clock()).candidates[0]
    assert chosen.model.num_layers == 16
    assert chosen.costs.exact


@pytest.mark.parametrize("off", [0.95, 1.0, 1.05])
def test_an_exact_price_of_most_layers_says_how_far_those_of_fewer_are_off(off):
    cluster, source = example_cluster(2), FinerIsSlower(off)
    task = PlanningTask(source, prices(cluster, None, "analytic", "free"), 64, (4, 8, 16), (32,), Searched("all"))
    found, exactly = plan(task, annotations=()), plan(dataclasses.replace(task, source=FinerIsSlower()), annotations=())
    assert source.priced_exactly == [16]
    assert found.plan.step_s == exactly.plan.step_s


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


COUNTS = (1, 2, 4, 8, 16, 32, 64)


def searched(search, step_s, num_stages=lambda shape: shape.stages or 4):
    """Tells a search of the steps of all that it asks for; the shapes in the order that they were asked in."""
    asked = []
    while (shape := search.ask()) is not None:
        assert shape not in asked, "no shape is asked for twice"
        asked.append(shape)
        search.tell(shape, step_s(shape), num_stages(shape))
    assert search.ask() is None
    assert list(search.told) == asked
    return asked


def best(search):
    return min(search.told, key=search.told.get)


def away_from(layers, count, stages=4):
    """Steps that are longer the farther a shape is from the best one."""

    def step_s(shape):
        off = abs(math.log2(shape.micro_batches / count)) + abs((shape.stages or 4) - stages)
        return 1.0 + 0.2 * off + 0.1 * (layers - shape.layers)

    return step_s


def test_counts_divide_the_batch():
    assert micro_batch_counts(1) == (1,)
    assert micro_batch_counts(1024)[-1] == 1024
    assert all(96 % count == 0 for count in micro_batch_counts(96))
    assert len(micro_batch_counts(2**20)) <= 22
    assert 4 in micro_batch_counts(2**16), "few micro-batches of many samples each may be best"


@pytest.mark.parametrize("count", COUNTS)
def test_the_best_number_of_micro_batches_is_found_wherever_it_is(count):
    search = ShapeSearch([16], COUNTS)
    searched(search, away_from(16, count))
    assert best(search).micro_batches == count


def test_more_layers_are_tried_as_long_as_they_gain():
    steps = {16: 1.0, 24: 0.999, 32: 0.9, 48: 0.899, 56: 0.898, 64: 0.1}
    asked = searched(ShapeSearch(list(steps), COUNTS), lambda s: steps[s.layers] * (1 + abs(s.micro_batches - 8) / 400))
    tried = {shape.layers for shape in asked}
    assert tried == {16, 24, 32, 48, 56}, "24 gain too little alone, 48 and 56 in a row"
    assert {shape.micro_batches for shape in asked if shape.layers == 24 and not shape.stages} == {2, 4, 8}


@pytest.mark.parametrize(("gain", "tried"), [(0.001, [16, 32]), (0.1, [16, 32, 48, 24])])
def test_of_a_power_of_two_devices_multiples_of_the_fewest_layers_are_tried_first(gain, tried):
    asked = searched(ShapeSearch([16, 24, 32, 48], [8], halved=True), lambda shape: 100 - gain * shape.layers)
    assert list(dict.fromkeys(shape.layers for shape in asked)) == tried


def test_other_numbers_of_stages_are_tried_as_long_as_they_gain():
    search = ShapeSearch([16], [8])
    asked = searched(search, away_from(16, 8, stages=7))
    assert [shape.stages for shape in asked] == [0, 2, 5, 6, 7, 8, 3]
    assert best(search) == Shape(16, 8, 7)


def test_micro_batches_that_more_layers_help_most_stay_in_the_search():
    """The steps of a GPT-2.6B on eight V100: with 24 layers 1024 micro-batches take longer than 512 and 128."""
    steps = {
        16: {1024: 45.5, 512: 44.4, 256: 47.0, 128: 44.5, 64: 47.5},
        24: {1024: 44.1, 512: 41.3, 128: 44.0},
        32: {1024: 40.8, 512: 41.4, 128: 44.8},
        48: {1024: 40.0, 512: 41.3, 128: 44.2},
    }
    search = ShapeSearch(list(steps), sorted(steps[16]))
    searched(search, lambda shape: steps[shape.layers].get(shape.micro_batches, 60.0))
    assert best(search) == Shape(48, 1024)


def test_from_a_shape_the_search_goes_uphill_and_keeps_its_layers():
    search = ShapeSearch([16, 32], COUNTS, begin=Shape(32, 8))
    asked = searched(search, away_from(32, 32))
    assert [shape.micro_batches for shape in asked if not shape.stages] == [8, 16, 32, 64]
    assert {shape.layers for shape in asked} == {32}
    assert best(search) == Shape(32, 32)


@given(st.data(), st.booleans())
def test_every_search_ends_with_no_worse_than_what_it_began_with(data, thorough):
    steps = st.one_of(st.just(math.inf), st.floats(0.1, 10.0))
    begin = data.draw(st.one_of(st.none(), st.builds(Shape, st.sampled_from([4, 8]), st.sampled_from(COUNTS))))
    search = ShapeSearch([4, 8], COUNTS, begin, thorough)
    asked = searched(search, lambda shape: data.draw(steps), lambda shape: shape.stages or data.draw(st.integers(1, 4)))
    assert search.told[best(search)] <= search.told[asked[0]]
    assert all(shape.layers in (4, 8) and shape.micro_batches in COUNTS for shape in asked)


def test_the_slicers_best_is_taken_and_neighbouring_lengths_cost_no_less_by_its_formula():
    costs = costs_of(MODEL, CLUSTER, SPACE, RUN)
    best, *others = best_and_neighbours(costs, EXACT)
    assert best.stages == EXACT.slice(costs.problem).stages
    length = len(best.stages)
    lengths = [len(other.stages) for other in others]
    assert lengths == [n for n in sorted({length // 2, length - 1, length + 1} - {0, length}) if n <= 4]
    assert all(other.slicing.cost_s >= best.slicing.cost_s for other in others)
    assert all(one.simulated_s is not None for one in (best, *others))


def test_nothing_is_found_where_nothing_fits():
    full = chain(6, parameter_bytes=1e15)
    assert costs_of(full, CLUSTER, SPACE, RUN).sliced(EXACT) is None


def test_more_stages_than_layers_or_devices_are_not_asked_for():
    assert costs_of(chain(2), CLUSTER, SPACE, RUN).sliced(EXACT, 3) is None
    assert costs_of(MODEL, CLUSTER, SPACE, RUN).sliced(EXACT, 5) is None


def test_of_many_alike_hosts_one_less_and_numbers_about_powers_of_two_are():
    assert [len(part.hosts) for part in fewer_hosts(example_cluster(25))] == [24, 16, 12, 8, 6, 4, 3, 2, 1]
    assert [len(fewer_hosts(example_cluster(hosts))[0].hosts) for hosts in (27, 64, 96, 97)] == [26, 63, 64, 96]


def test_a_part_has_its_hosts_and_their_links():
    whole = unlike.islands()
    for part in fewer_hosts(whole):
        places = ["abcd".index(name) for name in names(part)]
        assert part.hosts == tuple(whole.hosts[n] for n in places)
        assert part.links == tuple(tuple(whole.links[a][b] for b in places) for a in places)
        assert part.name == whole.name


def test_of_many_kinds_each_alone_is_a_part():
    hosts = [unlike.host(f"{kind}{n}", 1e12 * (kind + 1)) for kind in range(4) for n in range(2)]
    found = [{host.name[0] for host in part.hosts} for part in fewer_hosts(unlike.cluster(hosts))]
    assert sum(len(kinds) == 4 for kinds in found) == 4, "one less of each kind"
    assert sorted(kinds for kinds in map("".join, found) if len(kinds) == 1) == ["0", "1", "2", "3"]


def test_every_choice_is_there_where_that_is_asked():
    found = [names(part) for part in fewer_hosts(unlike.two_and_two(), every=True)]
    assert sorted(found) == sorted(["a", "ab", "c", "ac", "abc", "cd", "acd"])


def test_devices_that_share_a_cpu_are_never_left_out():
    assert fewer_hosts(dataclasses.replace(example_cluster(4), cores=4)) == []


def test_a_single_host_has_no_part():
    assert fewer_hosts(example_cluster(1)) == []


def test_numbers_of_hosts_are_tried_all_where_there_are_few():
    assert numbers_of_hosts(unlike.two_and_two()) == [
        counts for counts in itertools.product(range(3), range(3)) if any(counts) and counts != (2, 2)
    ]


def test_numbers_that_get_ever_worse_are_not_tried_to_the_end():
    asked = searched(ShapeSearch([16], COUNTS), lambda shape: 64.0 / shape.micro_batches)
    assert Shape(16, 1) not in asked
    assert asked[0] == Shape(16, 64)


def test_what_fits_nowhere_is_tried_with_all_numbers():
    asked = searched(ShapeSearch([16, 32], COUNTS), lambda shape: math.inf)
    assert {shape.micro_batches for shape in asked if shape.layers == 16} == set(COUNTS)
    assert [shape for shape in asked if shape.layers == 32] == [Shape(32, 64)], "then with the most micro-batches"


def test_there_is_no_plan_without_stages():
    asked = searched(ShapeSearch([16], [8]), lambda shape: 1.0 + shape.stages, lambda shape: shape.stages or 1)
    assert [shape.stages for shape in asked] == [0, 2], "neither half of one stage nor one less"


def test_micro_batches_that_are_far_from_the_best_are_not_tried_with_more_layers():
    steps = {16: 1.0, 24: 0.9}
    asked = searched(ShapeSearch(list(steps), COUNTS), lambda s: steps[s.layers] * (1 + abs(s.micro_batches - 8) / 50))
    assert {shape.micro_batches for shape in asked if shape.layers == 24 and not shape.stages} == {4, 8}


def test_the_best_number_of_stages_is_tried_with_more_layers():
    def step_s(shape):
        return 1.0 if shape.layers == 16 else 0.5 if shape.stages == 4 else 2.0

    search, asked = ShapeSearch([16, 24], [8]), []
    while (shape := search.ask()) is not None:
        asked.append(shape)
        search.tell(shape, step_s(shape), shape.stages or (4 if shape.layers == 16 else 3))
    assert Shape(24, 8, 4) in asked


def test_a_beginning_that_is_not_among_the_numbers_is_the_nearest_one():
    assert ShapeSearch([16], COUNTS, begin=Shape(16, 24)).ask() == Shape(16, 32)
    assert ShapeSearch([16], COUNTS, begin=Shape(16, 500)).ask() == Shape(16, 64)


def test_where_the_beginning_does_not_fit_others_are_tried_until_one_does():
    search = ShapeSearch([16], COUNTS, begin=Shape(16, 2))
    searched(search, lambda shape: 1.0 + shape.micro_batches if shape.micro_batches >= 16 else math.inf)
    assert best(search) == Shape(16, 16)


def test_a_thorough_search_leaves_no_number_out():
    asked = searched(ShapeSearch([3], COUNTS, thorough=True), away_from(3, 8), lambda shape: shape.stages or 2)
    assert {shape.micro_batches for shape in asked} == set(COUNTS)
    assert {shape.stages for shape in asked if shape.micro_batches == 8} == {0, 1, 3}


def test_a_thorough_search_tries_more_layers_even_where_two_numbers_gain_nothing():
    steps = {16: 1.0, 24: 1.1, 32: 1.1, 48: 0.9}
    asked = searched(ShapeSearch(list(steps), [8], thorough=True), lambda shape: steps[shape.layers])
    assert 48 in {shape.layers for shape in asked}
    asked = searched(ShapeSearch(list(steps), [8]), lambda shape: steps[shape.layers])
    assert 48 not in {shape.layers for shape in asked}


@pytest.mark.parametrize("begin", [None, Shape(24, 8)])
@pytest.mark.parametrize("best", range(8))
def test_about_as_many_pairs_are_left_as_it_then_asks_for(best, begin):
    search, counts = ShapeSearch([16, 24, 32, 48], [2**n for n in range(8)], begin), []
    while (shape := search.ask()) is not None:
        step_s = 1 + (math.log2(shape.micro_batches) - best) ** 2 / 20 + 0.05 / shape.layers + 0.02 * bool(shape.stages)
        search.tell(shape, step_s, 4)
        counts.append((sum(search.left), not shape.stages))
    pairs = [left for left, is_pair in counts if is_pair]
    for n, left in enumerate(pairs[:-1], 1):
        assert 0 <= left <= 2 * (len(pairs) - n) + 4
        assert left >= (len(pairs) - n) / 2 - 3
