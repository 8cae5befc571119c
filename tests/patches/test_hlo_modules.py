"""HLO modules: objects of jaxlib that Alpa's passes change, markers, disguises, and what they cost."""

import math
import pickle

import alpa  # noqa: F401  (applies the patches)
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.pipeline_parallel.primitive_def import mark_hook_jaxpreqn, pipeline_p
from alpa.wrapped_hlo import WrappedHlo
from jax._src.lib import xla_client as xc
from jax._src.lib import xla_extension as xe

from alpa_dejavu.sharding.hlo import inline_calls, simplify
from alpa_dejavu.sharding.hlo.schema import OpSharding
from alpa_dejavu.sharding.hlo.shardings import TUPLE
from alpa_stock_jax.hlo_cost import MeasuredCosts, estimate_cost
from alpa_stock_jax.hlo_markers import hooked_shardings, is_marker, remove_markers, slice_at_markers
from alpa_stock_jax.hlo_module import HloModule, StockHloModule, to_proto
from alpa_stock_jax.hlo_shield import shield_constants, shield_copies, shield_operators, unshield_constants
from hlo_tools import from_function, from_text, opcodes, run, to_text

TEXT = """HloModule m
ENTRY e { a = f32[4,4] parameter(0)
  b = f32[4,4] add(a, a)
  ROOT t = (f32[4,4]) tuple(b) }"""


def _computation():
    return xc.XlaComputation(xe.hlo_module_from_text(TEXT).as_serialized_hlo_module_proto())


def test_aliases_are_set_once_for_each_parameter():
    module = _computation().get_hlo_module()
    module.setup_alias((0,), 0, ())
    module.setup_alias((0,), 0, ())
    assert module.to_string().count("may-alias") == 1


def test_jax_still_analyses_and_prints_its_own_modules():
    lowered = jax.jit(lambda x: x @ x).lower(jnp.ones((4, 4)))
    assert lowered.cost_analysis()["flops"] >= 2 * 4 * 4 * 4
    assert "dot" in lowered.compile().as_text()
    assert "dot" in lowered.as_text("hlo")


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
    shardings = [
        OpSharding(type=0),
        OpSharding(type=3, tile_assignment_dimensions=[1, 2], tile_assignment_devices=[0, 1]),
    ]
    hook.sharding.CopyFrom(OpSharding(type=TUPLE, tuple_shardings=shardings))
    assert hooked_shardings(module) == shardings
    assert hooked_shardings(from_function(lambda x: x + 1, X)) == []


MODULE = """HloModule m
ENTRY e { a = f32[4] parameter(0)
  one = f32[] constant(1)
  wide = f32[4] broadcast(one), dimensions={}
  rows = f32[4] copy(a), sharding={devices=[2]0,1}
  whole = f32[4] copy(a), sharding={replicated}
  s = f32[4] add(rows, wide)
  ROOT t = (f32[4], f32[4]) tuple(s, whole) }"""


def test_constants_go_behind_a_barrier_and_come_back():
    module = from_text(MODULE)
    shielded = shield_constants(module)
    assert opcodes(shielded).count("opt-barrier") == 1
    back = unshield_constants(shielded)
    assert sorted(opcodes(back)) == sorted(opcodes(module))
    assert "broadcast(f32[] %one)" in to_text(back)


def test_copies_into_pieces_ask_for_their_sharding():
    shielded = shield_copies(from_text(MODULE))
    assert opcodes(shielded).count("copy") == 1
    (call,) = [line for line in to_text(shielded).splitlines() if "custom-call(" in line]
    assert 'custom_call_target="Sharding"' in call
    assert "sharding={devices=[2]0,1}" in call


def test_operators_whose_sharding_mlir_forgets_ask_for_it():
    module = from_text("""HloModule m
ENTRY e { a = f32[8] parameter(0), sharding={devices=[2]0,1}
  low = f32[4] slice(a), slice={[0:4]}, sharding={replicated}
  high = f32[4] slice(a), slice={[4:8]}
  s = f32[4] add(low, high), sharding={devices=[2]0,1}
  ROOT both = f32[8] concatenate(s, low), dimensions={0}, sharding={devices=[2]0,1} }""")
    shielded = shield_operators(module)
    calls = [line for line in to_text(shielded).splitlines() if "custom-call(" in line]
    assert [line.partition("custom-call(")[2].partition(")")[0].split("%")[-1] for line in calls] == ["low", "both"]
    assert calls[1].strip().startswith("ROOT")
    assert sorted(opcodes(shielded)) == sorted([*opcodes(module), "custom-call", "custom-call"])


ALL = ((0, 1, 2, 3),)
LINE = ((0, 1.0), (100, 2.0), (1000, 11.0))
COSTLY = """HloModule m
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY e { a = f32[10,10] parameter(0)
  x = f32[10,10] all-reduce(a), channel_id=7, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=add
  y = f32[10,10] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (f32[10,10]) tuple(y) }"""


def _costs(groups=ALL, kind="f32", points=LINE):
    return MeasuredCosts({"all-reduce": {(groups, kind): points}}, {((), "f32"): ((0, 0.0), (4000, 1.0))})


def test_an_all_reduce_and_a_product():
    assert estimate_cost(from_text(COSTLY), _costs(), 4) == pytest.approx(1.0 + 0.5)


def test_gradients_cost_once_in_all_micro_batches():
    assert estimate_cost(from_text(COSTLY), _costs(), 4, 8, [7]) == pytest.approx(1.0 / 8 + 0.5)
    assert estimate_cost(from_text(COSTLY), _costs(), 4, 8, [6]) == pytest.approx(1.0 + 0.5)


@pytest.mark.parametrize("costs", [_costs(((0, 1), (2, 3))), _costs(kind="f16")])
def test_what_was_never_measured_is_an_error_that_says_so(costs):
    with pytest.raises(ValueError, match="no all-reduce of f32 was measured"):
        estimate_cost(from_text(COSTLY), costs, 4)


def test_measurements_that_failed_are_left_out():
    points = ((0, 1.0), (50, math.inf), (100, 2.0), (1000, 11.0))
    assert estimate_cost(from_text(COSTLY), _costs(points=points), 4) == pytest.approx(1.5)
    assert estimate_cost(from_text(COSTLY), _costs(points=((0, math.inf),)), 4) == math.inf


ROWS = OpSharding(type=3, tile_assignment_dimensions=[2, 1], tile_assignment_devices=[0, 1])


def test_computations_give_modules_of_ours_and_alpa_takes_both_kinds():
    module = _computation().get_hlo_module()
    assert type(module) is HloModule
    assert isinstance(module, xe.HloModule)
    assert isinstance(module.stock(), xe.HloModule)
    assert type(module.stock()) is StockHloModule
    assert WrappedHlo(module).name == WrappedHlo(_computation()).name == "m"


def test_a_module_says_what_a_stock_one_says():
    module = _computation().as_hlo_module()
    assert module.to_string() == xe.hlo_module_from_text(TEXT).to_string()
    assert module.program_shape().parameter_shapes()[0].dimensions() == (4, 4)
    assert [shape.dimensions() for shape in module.parameter_shapes()] == [(4, 4)]


def test_shardings_go_in_and_come_out_as_objects_of_jaxlib():
    module = _computation().get_hlo_module()
    sharding = xe.HloSharding(ROWS.SerializeToString())
    assert isinstance(sharding, xc.HloSharding)
    assert isinstance(sharding, xe.HloSharding)
    assert to_proto(sharding) == ROWS
    module.set_spmd_parameters_shardings([sharding])
    module.set_spmd_output_sharding(xe.HloSharding.replicate())
    assert module.spmd_parameters_shardings() == [sharding]
    assert module.spmd_output_sharding() == xc.HloSharding.replicate()
    module.infer_spmd_shardings()
    assert module.spmd_parameters_shardings() == [xc.HloSharding.replicate()]


def test_modules_can_be_pickled():
    module = _computation().get_hlo_module()
    copy = pickle.loads(pickle.dumps(module))
    assert copy.to_string() == module.to_string()
    wrapped = pickle.loads(pickle.dumps(WrappedHlo(module)))
    assert wrapped.get_hlo_proto() == module.as_serialized_hlo_module_proto()
