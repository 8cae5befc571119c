"""Stages are cut out at their markers, with their shardings, and modules can do without markers."""

import jax.numpy as jnp
import numpy as np
import pytest
from alpa.pipeline_parallel.primitive_def import mark_hook_jaxpreqn, pipeline_p

from alpa_dejavu.sharding.hlo import inline_calls, simplify
from alpa_dejavu.sharding.hlo.schema import OpSharding
from alpa_dejavu.sharding.hlo.shardings import TUPLE
from alpa_stock_jax.hlo_markers import hooked_shardings, is_marker, remove_markers, slice_at_markers
from hlo_tools import from_function, opcodes, run, to_text


def _two_stages(x, w):
    x, w1 = pipeline_p.bind(x, w, name="first", mark_type="start")
    (y,) = pipeline_p.bind(jnp.tanh(x @ w1) + 3.0, name="first", mark_type="end")
    y, w2 = pipeline_p.bind(y, w, name="second", mark_type="start")
    z, y = pipeline_p.bind(jnp.sin(y @ w2) + 3.0, y, name="second", mark_type="end")
    return z, y


X, W = np.random.default_rng(0).standard_normal((2, 4, 4)).astype(np.float32)


def test_stages_one_after_the_other_are_the_whole():
    module = simplify(inline_calls(from_function(_two_stages, X, W)))
    first, second = slice_at_markers(module)
    assert (first.name, second.name) == ("first", "second")
    (y,) = run(first.module, X, W)
    z, passed = run(second.module, y, W)
    expected_z, expected_y = run(remove_markers(module), X, W)
    np.testing.assert_allclose(z, expected_z, rtol=1e-6)
    np.testing.assert_allclose(passed, expected_y, rtol=1e-6)


def test_without_markers_nothing_is_left_of_them_and_there_are_no_stages():
    bare = remove_markers(from_function(_two_stages, X, W))
    assert not any(is_marker(node) for part in bare.computations for node in part.instructions)
    assert slice_at_markers(bare) == []


def test_shardings_of_markers_are_those_of_parameters_and_results():
    module = simplify(inline_calls(from_function(_two_stages, X, W)))
    rows = OpSharding(type=3, tile_assignment_dimensions=[2, 1], tile_assignment_devices=[0, 1])
    for part in module.computations:
        for node in part.instructions:
            if is_marker(node):
                count = len(node.shape.tuple_shapes)
                node.sharding.CopyFrom(OpSharding(type=TUPLE, tuple_shardings=[rows] * count))
    for stage in slice_at_markers(module):
        assert to_text(stage.module).count("sharding={devices=[2,1]0,1}") == 2
        (root,) = [node for node in stage.module.computations[-1].instructions if node.opcode == "tuple"]
        assert all(part == rows for part in root.sharding.tuple_shardings)


def test_an_input_passed_through_is_a_parameter():
    def passing(x):
        (x,) = pipeline_p.bind(x, name="only", mark_type="start")
        return pipeline_p.bind(x, x, name="only", mark_type="end")

    (stage,) = slice_at_markers(simplify(inline_calls(from_function(passing, X))))
    assert opcodes(stage.module) == ["parameter", "tuple"]
    for result in run(stage.module, X):
        np.testing.assert_array_equal(result, X)


def test_a_stage_that_takes_what_is_not_its_input_is_refused():
    def leaking(x, w):
        (y,) = pipeline_p.bind(x, name="leaky", mark_type="start")
        return pipeline_p.bind(y @ w, name="leaky", mark_type="end")

    with pytest.raises(ValueError, match=r"leaky takes .* which isn't one of its inputs"):
        slice_at_markers(from_function(leaking, X, W))


def test_a_stage_without_an_end_is_refused():
    def open_ended(x):
        return pipeline_p.bind(x, name="open", mark_type="start")

    with pytest.raises(ValueError, match="start but don't end"):
        slice_at_markers(from_function(open_ended, X))


def test_a_hook_tells_the_shardings_of_what_it_holds():
    def hooked(x, w):
        held = pipeline_p.bind(x @ w, w, name="hook", mark_type="hook")
        return held[0] + held[1]

    assert mark_hook_jaxpreqn([], []).params == {"name": "hook", "mark_type": "hook"}
    module = from_function(hooked, X, W)
    (hook,) = [n for part in module.computations for n in part.instructions if n.opcode == "opt-barrier"]
    shardings = [OpSharding(type=0), OpSharding(type=3, tile_assignment_dimensions=[1, 2],
                                                tile_assignment_devices=[0, 1])]
    hook.sharding.CopyFrom(OpSharding(type=TUPLE, tuple_shardings=shardings))
    assert hooked_shardings(module) == shardings
    assert hooked_shardings(from_function(lambda x: x + 1, X)) == []
