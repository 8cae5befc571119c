"""Modules that Alpa's passes can change, and the objects of jaxlib that they give and take."""

import alpa  # noqa: F401  (applies the patches)
import jax
import jax.numpy as jnp
from jax._src.lib import xla_client as xc
from jax._src.lib import xla_extension as xe

from alpa_dejavu.sharding.hlo.schema import OpSharding
from alpa_stock_jax.hlo_module import to_proto

ROWS = OpSharding(type=3, tile_assignment_dimensions=[2, 1], tile_assignment_devices=[0, 1])
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


def test_jax_still_analyses_and_prints_its_own_modules():
    lowered = jax.jit(lambda x: x @ x).lower(jnp.ones((4, 4)))
    assert lowered.cost_analysis()["flops"] >= 2 * 4 * 4 * 4
    assert "dot" in lowered.compile().as_text()
    assert "dot" in lowered.as_text("hlo")
