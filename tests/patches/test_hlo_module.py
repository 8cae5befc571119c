"""Modules that Alpa's passes can change, and the objects of jaxlib that they give and take."""
import pickle

from alpa.wrapped_hlo import WrappedHlo
from jax._src.lib import xla_client as xc
from jax._src.lib import xla_extension as xe

from alpa_dejavu.sharding.hlo.schema import OpSharding
from alpa_stock_jax.hlo_module import HloModule, StockHloModule, to_proto

ROWS = OpSharding(type=3, tile_assignment_dimensions=[2, 1], tile_assignment_devices=[0, 1])


TEXT = """HloModule m
ENTRY e { a = f32[4,4] parameter(0)
  b = f32[4,4] add(a, a)
  ROOT t = (f32[4,4]) tuple(b) }"""


def _computation():
    return xc.XlaComputation(xe.hlo_module_from_text(TEXT).as_serialized_hlo_module_proto())


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
