"""The search over shapes: which are asked for, by what was told of those before."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_dejavu.planning.search._shapes import Shape, ShapeSearch, micro_batch_counts

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
