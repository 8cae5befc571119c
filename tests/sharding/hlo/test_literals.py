"""Literals of an HLO module are numpy's arrays, of every dtype that jax has, as XLA itself writes them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.lib import xla_client as xc

from alpa_dejavu.sharding.hlo import HloModuleProto
from alpa_dejavu.sharding.hlo.shapes import byte_size, literal_values, make_literal
from every_dtype import JAX_DTYPES


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
