"""What stages send to other meshes: each variable once to each, in the order in which it is made."""

import types

from alpa_stock_jax.pipeline_overlap import merge_sends, plan_sends


def _stage(invars, outvars):
    specs = [f"{name} cut" for name in invars]
    return types.SimpleNamespace(invars=list(invars), outvars=list(outvars), input_sharding_specs=specs)


def test_a_variable_goes_once_to_each_mesh_that_reads_it():
    stages = [_stage("x", "ab"), _stage("a", "c"), _stage("abc", "d"), _stage("ac", "e")]
    assert plan_sends(stages, [0, 1, 1, 2], {"x"}) == [
        [(1, "a", "a cut"), (1, "b", "b cut"), (2, "a", "a cut")],
        [(2, "c", "c cut")],
        [],
        [],
    ]


def test_sends_to_one_mesh_in_a_row_are_one():
    sends = [(1, "a", "A"), (1, "b", "B"), (2, "a", "A"), (1, "c", "C")]
    assert merge_sends(sends, {"c": 0, "b": 1, "a": 2}) == [(1, ["c", "b", "a"], ["C", "B", "A"]), (2, ["a"], ["A"])]
    assert merge_sends([], {}) == []
