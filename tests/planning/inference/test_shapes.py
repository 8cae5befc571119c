"""Shapes of serving: replicas fill the hosts, and a stage has its devices on one host."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_dejavu.planning.inference import Decoder
from alpa_dejavu.planning.inference._decoder import ServingShape, shapes
from alpa_dejavu.testing import example_cluster


def model(heads=None, num_blocks=None):
    return Decoder("a model", lambda batch_size, tokens: None, 8.0, num_blocks, heads)


def test_all_divisors_of_the_heads_and_powers_of_two_of_stages_are_tried():
    found = shapes(model(12, 24), example_cluster(2, 8, 2.0**30), None, None)
    assert {shape.tensor_parallel for shape in found} == {1, 2, 3, 4, 6}
    assert ServingShape(6, 2, 1, 1) in found
    assert ServingShape(4, 2, 2, 2) in found
    assert ServingShape(1, 16, 1, 8) in found
    assert {shape.tensor_parallel for shape in shapes(model(), example_cluster(1, 6, 2.0**30), None, None)} == {1, 2, 4}


@given(st.integers(1, 4), st.integers(1, 9), st.sampled_from([None, 6, 16]), st.sampled_from([None, 3, 24]))
def test_no_shape_takes_more_devices_or_layers_than_there_are(hosts, devices, heads, blocks):
    for shape in shapes(model(heads, blocks), example_cluster(hosts, devices, 2.0**30), None, None):
        assert shape.replicas >= 1
        assert shape.tensor_parallel <= devices
        assert shape.replicas * shape.tensor_parallel * shape.stages <= hosts * devices
        assert shape.host_of(shape.stages - 1) < hosts
        assert blocks is None or shape.stages <= blocks


@pytest.mark.parametrize("stages", [0, 5])
def test_too_many_stages_are_refused(stages):
    with pytest.raises(ValueError, match=f"stages is {stages}, but must be from 1 to 4, by the devices"):
        shapes(model(8), example_cluster(2, 4, 2.0**30), 2, stages)
