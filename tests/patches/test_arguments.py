"""Leaves are marked by the position of their argument."""
from alpa_stock_jax.arguments import mark_leaves


def test_every_leaf_of_a_marked_argument_is_marked():
    assert mark_leaves((1,), ({"a": 1, "b": 2}, (3, [4]), 5), {}) == (False, False, True, True, False)


def test_arguments_without_leaves_and_keywords_are_not_marked():
    assert mark_leaves((0, 1), (None, 1), {"k": 2}) == (True, False)
