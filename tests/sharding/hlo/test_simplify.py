"""HLO modules: simplified, with literals and shardings that are read and written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax._src.lib import xla_client as xc

from alpa_dejavu.sharding.hlo import HloModuleProto, inline_calls, shardings, simplify
from alpa_dejavu.sharding.hlo.schema import OpSharding
from alpa_dejavu.sharding.hlo.shapes import byte_size, literal_values, make_literal
from every_dtype import JAX_DTYPES
from hlo_tools import from_function, from_text, opcodes, run, to_text


def _simple(module):
    return simplify(inline_calls(module))


def _loss(weights, x):
    hidden = jax.nn.relu(x @ weights["a"] + weights["b"])
    scores = jnp.einsum("bsh,hnk->bsnk", hidden, weights["c"])
    return jnp.mean(jax.nn.softmax(scores.transpose(0, 2, 1, 3)) ** 2)


def _weights():
    draw = np.random.default_rng(0).standard_normal
    return {"a": draw((8, 6), np.float32), "b": draw(6, np.float32), "c": draw((6, 2, 3), np.float32)}


def test_a_train_step_computes_the_same():
    x = np.random.default_rng(1).standard_normal((4, 5, 8), np.float32)
    weights = _weights()
    module = from_function(jax.value_and_grad(_loss), weights, x)
    simple = _simple(module)
    flat = [*jax.tree_util.tree_leaves(weights), x]
    for old, new in zip(run(module, *flat), run(simple, *flat), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-6)
    assert "call" not in opcodes(simple)
    assert len(opcodes(simple)) < len(opcodes(inline_calls(module)))


def test_dots_have_one_row_one_column_and_one_contracted_dimension():
    x, y = np.ones((2, 3, 4, 5), np.float32), np.ones((4, 5, 6, 7), np.float32)
    module = _simple(from_function(lambda a, b: jnp.einsum("abcd,cdef->abef", a, b), x, y))
    (dot,) = [node for part in module.computations for node in part.instructions if node.opcode == "dot"]
    assert list(dot.shape.dimensions) == [6, 42]
    assert len(dot.dot_dimension_numbers.lhs_contracting_dimensions) == 1


@pytest.mark.parametrize(
    ("lines", "gone"),
    [
        ("b = f32[3,8] negate(a)\n ROOT c = f32[3,8] negate(b)", "negate"),
        ("b = f32[6,4] reshape(a)\n c = f32[3,8] reshape(b)\n ROOT d = f32[3,8] tanh(c)", "reshape"),
        ("b = f32[8,3] transpose(a), dimensions={1,0}\n ROOT c = f32[3,8] transpose(b), dimensions={1,0}", "transpose"),
        ("b = f32[3,8] slice(a), slice={[0:3], [0:8]}\n ROOT c = f32[3,8] tanh(b)", "slice"),
        ("b = f32[3,8] concatenate(a), dimensions={0}\n ROOT c = f32[3,8] tanh(b)", "concatenate"),
        ("b = f32[] constant(0)\n c = f32[3,8] pad(a, b), padding=0_0x0_0\n ROOT d = f32[3,8] tanh(c)", "pad"),
        ("b = (f32[3,8]) tuple(a)\n ROOT c = f32[3,8] get-tuple-element(b), index=0", "get-tuple-element"),
        ("b = pred[3,8] compare(a, a), direction=EQ\n c = pred[3,8] not(b)\n ROOT d = pred[3,8] not(c)", "not"),
        ("b = f32[3,8] convert(a)\n ROOT c = f32[3,8] tanh(b)", "convert"),
        *(
            (f"b = f32[] constant({neutral})\n c = f32[3,8] broadcast(b), dimensions={{}}\n"
             f" ROOT d = f32[3,8] {opcode}(a, c)", opcode)
            for opcode, neutral in (("multiply", 1), ("divide", 1), ("add", 0), ("subtract", 0))
        ),
    ],
)  # fmt: skip
def test_what_changes_nothing_is_gone(lines, gone):
    module = from_text(f"HloModule m\nENTRY e {{ a = f32[3,8] parameter(0)\n {lines} }}")
    assert gone in opcodes(module)
    simple = simplify(module)
    assert gone not in opcodes(simple)
    x = np.random.default_rng(0).standard_normal((3, 8), np.float32)
    np.testing.assert_allclose(run(simple, x)[0], run(module, x)[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("function", "gone"),
    [
        (lambda a: jnp.sum(a.reshape(3, 1, 8), axis=1) + 2, "reduce"),
        (lambda a: jnp.where(True, a, a + 3), "select"),
        (lambda a: a * 1.0 + 0.0 - 0.0, "subtract"),
    ],
)
def test_what_jax_writes_and_changes_nothing_is_gone(function, gone):
    x = np.random.default_rng(0).standard_normal((3, 8), np.float32)
    module = inline_calls(from_function(function, x))
    assert gone in opcodes(module)
    simple = simplify(module)
    assert gone not in opcodes(simple)
    np.testing.assert_allclose(run(simple, x)[0], jax.jit(function)(x), rtol=1e-6)


def test_inlining_a_call_of_a_call():
    module = from_text("""HloModule m
inner { p = f32[4] parameter(0)
  ROOT n = f32[4] negate(p) }
outer { p = f32[4] parameter(0)
  c = f32[4] call(p), to_apply=inner
  ROOT r = f32[4] call(c), to_apply=inner }
ENTRY e { a = f32[4] parameter(0)
  b = f32[4] call(a), to_apply=outer
  ROOT t = (f32[4], f32[4]) tuple(b, a) }""")
    flat = inline_calls(module)
    assert opcodes(flat) == ["parameter", "negate", "negate", "tuple"]
    assert len(flat.computations) == 1
    assert "negate" not in opcodes(simplify(flat))


_UNARY = {
    "neg": jnp.negative,
    "tanh": jnp.tanh,
    "turn": jnp.transpose,
    "flat": lambda a: a.reshape(-1).reshape(a.shape),
    "one": lambda a: a * 1.0,
    "zero": lambda a: a + 0.0,
}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from([*_UNARY, "dot", "again"]), min_size=1, max_size=8))
def test_any_chain_of_operations_computes_the_same(names):
    def function(a):
        kept = [a]
        for name in names:
            last = kept[-1]
            if name == "dot":
                kept.append(jnp.tanh(last @ kept[0].T))
            elif name == "again":
                kept.append(last + jnp.tanh(kept[0]))
            else:
                kept.append(_UNARY[name](last))
        return kept[-1]

    x = np.random.default_rng(len(names)).standard_normal((3, 3), np.float32)
    module = from_function(function, x)
    simple = _simple(module)
    to_text(simple)
    np.testing.assert_allclose(run(simple, x)[0], run(module, x)[0], rtol=1e-5, atol=1e-5)


ROWS = OpSharding(type=3, tile_assignment_dimensions=[2, 1], tile_assignment_devices=[0, 1])
COLUMNS = OpSharding(type=3, tile_assignment_dimensions=[1, 2], tile_assignment_devices=[0, 1])


def _module():
    return from_function(lambda a, b: (a + b, a), *[np.ones((4, 4), np.float32)] * 2)


def test_what_is_written_is_read_and_xla_reads_the_same():
    module = _module()
    shardings.set_parameter_shardings(module, [ROWS, OpSharding(type=shardings.MANUAL)])
    shardings.set_output_shardings(module, [COLUMNS, ROWS])
    assert shardings.parameter_shardings(module) == [ROWS, shardings.replicated()]
    assert list(shardings.output_sharding(module).tuple_shardings) == [COLUMNS, ROWS]
    text = to_text(module)
    assert text.count("sharding={devices=[2,1]0,1}") == 1
    assert "sharding={{devices=[1,2]0,1}, {devices=[2,1]0,1}}" in text


def test_a_summary_stands_for_the_instructions_until_they_are_written_again():
    module = _module()
    shardings.set_parameter_shardings(module, [ROWS, ROWS])
    shardings.summarize(module)
    for part in module.computations:
        for node in part.instructions:
            node.ClearField("sharding")
    assert shardings.parameter_shardings(module) == [ROWS, ROWS]
    shardings.set_output_shardings(module, [COLUMNS, COLUMNS])
    assert list(shardings.output_sharding(module).tuple_shardings) == [COLUMNS, COLUMNS]


@pytest.mark.parametrize("write", [shardings.set_parameter_shardings, shardings.set_output_shardings])
def test_a_wrong_number_of_shardings_is_refused(write):
    with pytest.raises(ValueError, match="1 shardings for the 2"):
        write(_module(), [ROWS])


@pytest.mark.parametrize("dtype", JAX_DTYPES, ids=str)
def test_a_literal_is_the_array_that_it_was_made_from(dtype):
    array = np.array([[1, 0, 1], [1, 1, 0]]).astype(dtype) * np.array(1j if dtype.kind == "c" else 1, dtype)
    with jax.experimental.enable_x64():
        text = jax.jit(lambda: jnp.asarray(array)).lower().as_text()
    computation = xc._xla.mlir.mlir_module_to_xla_computation(text, use_tuple_args=False, return_tuple=False)
    module = HloModuleProto.FromString(computation.as_serialized_hlo_module_proto())
    written = next(node.literal for node in module.computations[-1].instructions if node.opcode == "constant")
    values = literal_values(written)
    assert values is not None
    assert values.dtype == dtype
    np.testing.assert_array_equal(values, array)
    made = make_literal(written.shape.element_type, array)
    np.testing.assert_array_equal(literal_values(made), array)
    assert byte_size(made.shape) == array.nbytes


def test_parameters_stay_even_if_nobody_uses_them():
    module = _simple(from_function(lambda a, b, c: b + 1, *[np.ones(3, np.float32)] * 3))
    assert opcodes(module).count("parameter") == 3
    np.testing.assert_array_equal(run(module, *[np.full(3, i, np.float32) for i in range(3)])[0], 2)


def test_what_is_computed_twice_is_computed_once():
    module = _simple(from_function(lambda a: (jnp.sin(a) + 1, jnp.sin(a) + 2), np.ones(3, np.float32)))
    assert opcodes(module).count("sine") == 1


def test_transposes_of_operands_become_contracted_dimensions():
    x = np.random.default_rng(0).standard_normal((4, 5), np.float32)
    y = np.random.default_rng(1).standard_normal((6, 5), np.float32)
    module = from_function(lambda a, b: (a @ b.T, (a @ b.T).T), x, y)
    assert "transpose" in opcodes(module)
    first, second = run(_simple(module), x, y)
    np.testing.assert_allclose(first, x @ y.T, rtol=1e-5)
    np.testing.assert_allclose(second, y @ x.T, rtol=1e-5)


def test_side_effects_and_loops_stay():
    def looped(a):
        return jax.lax.fori_loop(0, 3, lambda _, b: jnp.sin(b) + a, a)

    x = np.ones(4, np.float32)
    module = _simple(from_function(looped, x))
    assert "while" in opcodes(module)
    np.testing.assert_allclose(run(module, x)[0], looped(x), rtol=1e-6)


def test_a_simplified_module_is_left_as_it_is():
    def spread(x):
        return jnp.broadcast_to(x.reshape(()), (4, 3)) + 1

    once = _simple(from_function(spread, np.ones(1, np.float32)))
    assert simplify(once) == once


def test_a_spread_out_iota_is_an_iota():
    module = from_text("""HloModule m
ENTRY e { a = s32[3] iota(), iota_dimension=0
  ROOT b = s32[2,3] broadcast(a), dimensions={1} }""")
    simple = simplify(module)
    assert opcodes(simple) == ["iota"]
    np.testing.assert_array_equal(run(simple)[0], np.tile(np.arange(3), (2, 1)))


def test_constant_factors_are_multiplied_once():
    module = _simple(from_function(lambda x: (x * 2.0) * 3.0, np.ones(4, np.float32)))
    assert opcodes(module).count("multiply") == 1
    np.testing.assert_allclose(run(module, np.arange(4, dtype=np.float32))[0], 6.0 * np.arange(4))


def test_nothing_written_is_replicated():
    module = _module()
    assert shardings.parameter_shardings(module) == [shardings.replicated()] * 2
    assert shardings.output_sharding(module) == shardings.tuple_sharding([shardings.replicated()] * 2)
