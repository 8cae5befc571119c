"""The search over shapes: which are asked for, by what was told of those before."""
import math

import pytest

from alpa_dejavu.planning.search._shapes import Shape, ShapeSearch

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
