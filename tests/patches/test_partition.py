"""Shardings: what jax says of their specifications, and what stock XLA's partitioner makes of them."""

import tempfile

import alpa  # noqa: F401  (applies the patches)
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.pipeline_parallel.apply_grad import cross_mesh_allreduce_p
from alpa.pipeline_parallel.primitive_def import pipeline_p
from hypothesis import given
from hypothesis import strategies as st
from jax._src.lib import xla_client as xc
from jax._src.op_shardings import op_sharding_to_indices
from jax._src.sharding_specs import (
    Chunked,
    NoSharding,
    Replicated,
    ShardedAxis,
    ShardingSpec,
    Unstacked,
    spec_to_indices,
)
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_dejavu.sharding.hlo import HloModuleProto, inline_calls, simplify
from alpa_dejavu.sharding.hlo.graph import entry
from alpa_dejavu.sharding.hlo.schema import OpSharding
from alpa_dejavu.sharding.hlo.shardings import output_sharding, parameter_shardings, set_parameter_shardings
from alpa_stock_jax.executable import MeshExecutable
from alpa_stock_jax.lowering import lower
from alpa_stock_jax.partition import partition, propagate
from alpa_stock_jax.sharding_specs import new_mesh_sharding_specs, sharding_proto

WHOLE = OpSharding(type=0)
ROWS = OpSharding(type=3, tile_assignment_dimensions=[4, 1], tile_assignment_devices=[0, 1, 2, 3])
COLUMNS = OpSharding(type=3, tile_assignment_dimensions=[1, 4], tile_assignment_devices=[0, 1, 2, 3])


def _module(function, *args, donated=None):
    jaxpr = jax.make_jaxpr(function)(*args)
    lowered = lower("module", jaxpr, donated or [False] * len(args), "cpu")
    return simplify(inline_calls(HloModuleProto.FromString(lowered.as_serialized_hlo_module_proto())))


def _pieces(value, sharding):
    axis = {(4, 1): 0, (1, 4): 1}.get(tuple(sharding.tile_assignment_dimensions))
    return [value] * 4 if axis is None else np.split(value, 4, axis)


def _whole(pieces, sharding):
    axis = {(4, 1): 0, (1, 4): 1}.get(tuple(sharding.tile_assignment_dimensions))
    return np.asarray(pieces[0]) if axis is None else np.concatenate([np.asarray(p) for p in pieces], axis)


def _loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


@pytest.mark.parametrize("w_sharding", [WHOLE, ROWS, COLUMNS])
@pytest.mark.parametrize("x_sharding", [WHOLE, ROWS])
def test_a_gradient_step_on_four_devices(w_sharding, x_sharding):
    w, x = np.random.default_rng(0).standard_normal((2, 8, 8)).astype(np.float32)
    module = _module(lambda w, x: (w - jax.grad(_loss)(w, x), _loss(w, x)), w, x, donated=[True, False])
    set_parameter_shardings(module, [w_sharding, x_sharding])
    part = partition(module, 4)
    assert parameter_shardings(part) == [w_sharding, x_sharding]
    client = jax.devices()[0].client
    executable = MeshExecutable(client, part, client.devices()[:4], 4)
    pieces = [_pieces(w, w_sharding), _pieces(x, x_sharding)]
    buffers = [
        [client.buffer_from_pyval(np.array(p), d) for p, d in zip(arg, client.devices(), strict=False)]
        for arg in pieces
    ]
    found = executable.execute_sharded_on_local_devices(buffers)
    shardings = output_sharding(part).tuple_shardings
    expected = (w - jax.grad(_loss)(w, x), _loss(w, x))
    for pieces, sharding, value in zip(found, shardings, expected, strict=True):
        np.testing.assert_allclose(_whole(pieces, sharding), value, rtol=1e-5, atol=1e-6)
    if shardings[0] == w_sharding:
        assert buffers[0][0].is_deleted()


def test_more_partitions_than_devices_can_be_looked_at_but_not_run():
    x = np.ones((64, 8), np.float32)
    module = _module(lambda x: x.sum(0), x)
    many = OpSharding(type=3, tile_assignment_dimensions=[32, 1], tile_assignment_devices=list(range(32)))
    set_parameter_shardings(module, [many])
    part = partition(module, 32)
    executable = MeshExecutable(jax.devices()[0].client, part, None, 32)
    assert "all-reduce(" in executable.hlo_modules()[0].to_string()
    assert executable.total_allocation_size() > 0
    with pytest.raises(RuntimeError, match="compiled without devices"):
        executable.execute_sharded_on_local_devices([[x]])


def test_shardings_spread_to_what_carries_none():
    w, x = np.ones((2, 8, 8), np.float32)
    module = _module(lambda w, x: (jnp.tanh(x @ w) + 1, w), w, x)
    parameters = [node for node in entry(module).instructions if node.opcode == "parameter"]
    (named,) = [node for node in parameters if node.parameter_number == 1]
    named.sharding.CopyFrom(ROWS)
    spread = propagate(module, 4, free_output=False)
    assert parameter_shardings(spread)[1] == ROWS
    assert output_sharding(spread).tuple_shardings[0] == ROWS
    assert [node.name for node in entry(spread).instructions] == [node.name for node in entry(module).instructions]


@st.composite
def _specs(draw):
    """A specification on a mesh of up to three axes, and a shape that it divides."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3))
    rank = draw(st.integers(0, 3))
    places = [draw(st.integers(-1, rank - 1)) for _ in sizes]
    chunks = [[size for size, place in zip(sizes, places, strict=True) if place == d] for d in range(rank)]
    order = sorted((place, axis) for axis, place in enumerate(places) if place >= 0)
    number = {axis: position for position, (_, axis) in enumerate(order)}
    mapping = [ShardedAxis(number[a]) if a in number else Replicated(size) for a, size in enumerate(sizes)]
    shape = tuple(int(np.prod(c)) * draw(st.integers(1, 2)) for c in chunks)
    return ShardingSpec([Chunked(c) if c else NoSharding() for c in chunks], mapping), shape, int(np.prod(sizes))


@given(_specs())
def test_the_op_sharding_places_what_the_specification_places(case):
    spec, shape, num_devices = case
    sharding = xc.HloSharding.from_proto(sharding_proto(spec))

    def extents(indices):
        return [tuple(part.indices(size)[:2] for part, size in zip(i, shape, strict=True)) for i in indices]

    found = op_sharding_to_indices(sharding, shape, num_devices)
    assert extents(found) == extents(spec_to_indices(shape, spec))


def test_an_unstacked_dimension_is_refused():
    with pytest.raises(NotImplementedError, match="Chunked"):
        sharding_proto(ShardingSpec([Unstacked(2)], [ShardedAxis(0)]))


@pytest.mark.parametrize(
    "partition",
    [PartitionSpec("a"), PartitionSpec(None, "b"), PartitionSpec("b", "a"), PartitionSpec(("b", "a")), PartitionSpec()],
)
def test_axes_of_a_mesh_give_the_specification_that_jax_gives(partition):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    parts = [(p,) if isinstance(p, str) else p or () for p in partition]
    mapping = {axis: dimension for dimension, axes in enumerate(parts) for axis in axes}
    spec = new_mesh_sharding_specs({"a": 2, "b": 2}, ("a", "b"))(2, mapping)
    expected = NamedSharding(mesh, partition)._to_xla_hlo_sharding(2)
    found = xc.HloSharding.from_proto(sharding_proto(spec))
    assert op_sharding_to_indices(found, (4, 8), 4) == op_sharding_to_indices(expected, (4, 8), 4)


def _hlo(function, *args):
    jaxpr = jax.make_jaxpr(function)(*args)
    return lower("module", jaxpr, [False] * len(jaxpr.in_avals), "cpu").get_hlo_module().to_string()


def _marked(x, y, mark_type="start", name="stage"):
    return pipeline_p.bind(x, y, name=name, mark_type=mark_type)


X = np.ones((2, 3), np.float32)
Y = np.ones((4,), np.float32)


@pytest.mark.parametrize("mark_type", ["start", "end", "grad", "boundary", "hook", "jvp_start"])
def test_a_marker_is_an_identity_to_jax(mark_type):
    for function in (_marked, jax.jit(_marked, static_argnums=(2,))):
        x, y = function(X, Y, mark_type)
        np.testing.assert_array_equal(x, X)
        np.testing.assert_array_equal(y, Y)


@pytest.mark.parametrize("mark_type", ["grad", "boundary", "jvp_end"])
def test_marks_for_jaxprs_only_leave_nothing(mark_type):
    assert "custom-call" not in _hlo(lambda x, y: _marked(x, y, mark_type), X, Y)


def test_shapes_are_those_of_pieces_and_donation_survives_where_they_agree():
    w, x = np.ones((2, 8, 8), np.float32)
    module = _module(lambda w, x: (w + 1, x.sum()), w, x, donated=[True, False])
    set_parameter_shardings(module, [ROWS, COLUMNS])
    part = partition(module, 4)
    assert [list(n.shape.dimensions) for n in entry(part).instructions if n.opcode == "parameter"] in (
        [[2, 8], [8, 2]], [[8, 2], [2, 8]])
    assert [alias.parameter_number for alias in part.input_output_alias.entries] == [0]


def test_no_dump_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make, made = tempfile.mkdtemp, []

    def noted(*given, **named):
        made.append(make(*given, **named))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    x = np.ones((4, 12), np.float32)
    module = _module(lambda x: x * 5, x)
    set_parameter_shardings(module, [ROWS])
    partition(module, 4)
    assert made
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mark_type", ["start", "end"])
def test_a_stage_boundary_is_a_custom_call_on_a_tuple(mark_type):
    text = _hlo(lambda x, y: _marked(x, y, mark_type), X, Y)
    (line,) = [line for line in text.splitlines() if "pipeline_marker" in line]
    assert "(f32[2,3]{1,0}, f32[4]{0}) custom-call((f32[2,3]{1,0}, f32[4]{0}) %tuple" in line
    assert f'op_name="stage${mark_type}"' in line


def test_an_empty_boundary_stays():
    text = _hlo(lambda x: (pipeline_p.bind(name="stage", mark_type="start"), x)[1], X)
    assert text.count('custom_call_target="pipeline_marker"') == 1


def test_a_hook_is_a_barrier():
    text = _hlo(lambda x, y: _marked(x, y, "hook", "hook"), X, Y)
    assert "opt-barrier" in text
    assert 'op_name="hook$hook"' in text


def test_markers_can_be_differentiated():
    def loss(x):
        (x,) = pipeline_p.bind(x, name="a", mark_type="start")
        (x,) = pipeline_p.bind(jnp.sin(x), name="a", mark_type="end")
        return x.sum()

    np.testing.assert_allclose(jax.grad(loss)(X), np.cos(X), rtol=1e-6)


def test_an_all_reduce_between_meshes_names_its_meshes():
    jaxpr = jax.make_jaxpr(jnp.sin)(X)
    eqn = jaxpr.eqns[0].replace(
        primitive=cross_mesh_allreduce_p, params={"type": jax.lax.add_p, "group_meshes": (0, 1), "number": 3}
    )
    reducing = jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(eqns=[eqn]))
    text = lower("module", reducing, [False], "cpu").get_hlo_module().to_string()
    assert "__builtin$CrossMeshAllReduce" in text
    assert "SUM;" in text
