"""Partition specifications of users are parsed in the form that Alpa expects."""
import pytest
from jax.sharding import PartitionSpec

from alpa_stock_jax.manual_sharding import is_from_global_device_array, prepare_axis_resources


def test_a_tree_of_specifications_is_parsed_leaf_by_leaf():
    parsed, leaves, structure, automatic = prepare_axis_resources({"a": PartitionSpec("x", None), "b": None}, "in")
    assert parsed["a"].partitions == (("x",), ())
    assert parsed["b"].partitions == ()
    assert leaves == [parsed["a"], parsed["b"]]
    assert structure.num_leaves == 2
    assert automatic is False


def test_what_is_no_specification_is_refused_by_name():
    with pytest.raises(TypeError, match="in_axis_resources leaf specifications"):
        prepare_axis_resources(("x",), "in_axis_resources")


def test_no_array_is_a_global_device_array():
    assert not is_from_global_device_array(object())
