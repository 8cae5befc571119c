"""What the tests of the HLO room share: modules from jax functions and from text, and running them on host devices."""

import jax
import numpy as np
from jax._src.lib import xla_extension as xe

from alpa_dejavu.sharding.hlo import HloModuleProto, inline_calls, simplify
from alpa_stock_jax.executable import MeshExecutable
from alpa_stock_jax.lowering import lower

ADD = """add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
"""
"""A computation that adds, for the reductions of a module's text."""
ALL = "replica_groups={{0,1,2,3}}, use_global_device_ids=true"
"""The attributes of a collective of all four devices."""


def from_function(function, *args):
    """The module of a jax function, as jax lowers it: with calls."""
    jaxpr = jax.make_jaxpr(function)(*args)
    donated = [False] * len(jaxpr.in_avals)
    return HloModuleProto.FromString(lower("module", jaxpr, donated, "cpu").as_serialized_hlo_module_proto())


def flat_module(function, *args):
    """The module of a jax function, simplified, as the sharding engine takes it."""
    module = jax.jit(function).lower(*args).compiler_ir("hlo").as_hlo_module()
    return simplify(inline_calls(HloModuleProto.FromString(module.as_serialized_hlo_module_proto())))


def from_text(text):
    """The module that HLO text says."""
    return HloModuleProto.FromString(xe.hlo_module_from_text(text).as_serialized_hlo_module_proto())


def to_text(module):
    """A module as HLO text; raises if XLA finds it invalid."""
    return xe.XlaComputation(module.SerializeToString()).as_hlo_module().to_string()


def opcodes(module):
    """The opcodes of a module's entry computation."""
    return [
        node.opcode for part in module.computations if part.id == module.entry_computation_id
        for node in part.instructions
    ]


def run(module, *args):
    """The results of a module on one device."""
    client = jax.devices()[0].client
    executable = MeshExecutable(client, module, client.devices()[:1], 1)
    return [np.asarray(one) for one in executable.execute([client.buffer_from_pyval(np.asarray(arg)) for arg in args])]


def run_partitions(module, count, *args):
    """The results of one partition of several; an argument is an array for each partition."""
    client = jax.devices()[0].client
    devices = client.devices()[:count]
    executable = MeshExecutable(client, module, devices, count)
    pieces = [[client.buffer_from_pyval(np.asarray(a), d) for a, d in zip(arg, devices, strict=True)] for arg in args]
    return [[np.asarray(one) for one in result] for result in executable.execute_sharded_on_local_devices(pieces)]


def check_equal(old, new, *shapes):
    """Checks that two modules give the same on four devices, for random arguments of these shapes."""
    rng = np.random.default_rng(0)
    args = [[rng.standard_normal(shape).astype(np.float32) for _ in range(4)] for shape in shapes]
    for first, second in zip(run_partitions(old, 4, *args), run_partitions(new, 4, *args), strict=True):
        for a, b in zip(first, second, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
