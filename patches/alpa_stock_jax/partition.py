"""Stock XLA's partitioner as a pass: an annotated module in, the module of one partition out.

Stock jaxlib has no call for it, but it writes down a module after any pass of a compilation. So the module is
compiled, as cheaply as the compiler can be asked to, into a private directory; what the partitioner left is read and
the rest dropped. The device assignment of that compilation names one device, whatever the number of partitions:
nothing of it runs, and partitioning needs no more devices than the process has.
"""

from __future__ import annotations

import functools
import logging
import pathlib
import tempfile

import numpy as np
from jax._src.lib import xla_client as xc

from alpa_dejavu.sharding.hlo import HloModuleProto
from alpa_dejavu.sharding.hlo.graph import entry, reduction_of
from alpa_dejavu.sharding.hlo.schema import HloInstructionProto, HloProto, OpSharding
from alpa_dejavu.sharding.hlo.shapes import dtype_name
from alpa_dejavu.sharding.hlo.shardings import output_sharding, parameter_shardings, replicated, tuple_sharding
from alpa_stock_jax._mlir_module import annotated_module
from alpa_stock_jax.hlo_collectives import COLLECTIVES
from alpa_stock_jax.hlo_markers import is_marker, remove_markers
from alpa_stock_jax.hlo_scatter import drop_redundant_slices, reassociate_all_reduces
from alpa_stock_jax.hlo_shield import shield_constants, shield_copies, shield_operators, unshield_constants

__all__ = ["compile_options", "partition", "propagate"]

_PARTITIONING = "spmd-partitioning"
_logger = logging.getLogger(__name__)


@functools.cache
def _client() -> xc.Client:
    """A client of one's own to compile with: the passes are the same on every platform, and nothing of it runs."""
    return xc.make_cpu_client()


def compile_options(num_partitions: int, device_ids: np.ndarray, **overrides: str | int | bool) -> xc.CompileOptions:
    """Options for a module of `num_partitions` partitions on the devices with the given ids, shape (1, partitions)."""
    options = xc.CompileOptions()
    options.num_replicas, options.num_partitions = 1, num_partitions
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = 1, num_partitions
    build.use_spmd_partitioning = num_partitions > 1
    build.device_assignment = xc.DeviceAssignment.create(device_ids)
    options.env_option_overrides = list(overrides.items())
    return options


def partition(module: HloModuleProto, num_partitions: int) -> HloModuleProto:
    """The module of one partition, with the shardings of the whole written beside it.

    The last few are remembered: Alpa asks for a module's partition to read its shardings and again to compile it.

    Args:
        module: annotated with shardings, wholly or in part; XLA propagates them to the rest, to results only if none
            of theirs is given.
        num_partitions: of how many partitions.
    """
    return HloModuleProto.FromString(_partition(module.SerializeToString(deterministic=True), num_partitions))


@functools.lru_cache(maxsize=4)
def _partition(serialized: bytes, num_partitions: int) -> bytes:
    module = shield_operators(shield_constants(remove_markers(HloModuleProto.FromString(serialized))))
    module = shield_copies(module)
    found = _compile_and_read(module, num_partitions, _PARTITIONING, free_output=False)
    _restore(found, module)
    found = reassociate_all_reduces(drop_redundant_slices(unshield_constants(found)))
    result: bytes = found.SerializeToString()
    return result


def propagate(module: HloModuleProto, num_partitions: int, free_output: bool) -> HloModuleProto:
    """A copy of an annotated module with XLA's propagation of its shardings written on what carried none.

    Pipeline markers, which XLA doesn't know, let shardings pass in both directions: they stand as optimization barriers
    while XLA propagates. Other instructions are found again by their names.

    Args:
        module: annotated in part.
        num_partitions: of how many partitions.
        free_output: whether XLA may choose results' shardings where the module carries some already, too.
    """
    disguised = HloModuleProto.FromString(module.SerializeToString())
    for part in disguised.computations:
        for node in part.instructions:
            node.metadata.Clear()
            if is_marker(node) and node.shape.tuple_shapes:
                node.opcode = "opt-barrier"
                node.ClearField("custom_call_target")
                node.ClearField("custom_call_has_side_effect")
                node.ClearField("backend_config")
    found = _compile_and_read(disguised, num_partitions, "sharding-propagation", free_output, free_parameters=True)
    return _copy_shardings(found, module, free_output)


def _copy_shardings(found: HloModuleProto, module: HloModuleProto, free_output: bool) -> HloModuleProto:
    module = HloModuleProto.FromString(module.SerializeToString())
    given = OpSharding()
    given.CopyFrom(_root(module).sharding)
    root = _root(found)
    known = {node.metadata.op_name: node for node in entry(found).instructions if node.HasField("sharding")}
    for node in entry(module).instructions:
        twin = root if node.id == entry(module).root_id else known.get(node.name)
        if twin is not None and twin.HasField("sharding") and twin.opcode == node.opcode:
            node.sharding.CopyFrom(twin.sharding)
    # MLIR has no tuples around barriers, so theirs are new, but they stay in order.
    markers = [
        node for node in entry(module).instructions
        if node.opcode == "opt-barrier" or (is_marker(node) and node.shape.tuple_shapes)
    ]
    barriers = [node for node in entry(found).instructions if node.opcode == "opt-barrier"]
    for marker, barrier in zip(markers, barriers, strict=True):
        if barrier.HasField("sharding"):
            marker.sharding.CopyFrom(barrier.sharding)
    if not free_output:
        _hold_to_given_results(module, given)
    return module


def _hold_to_given_results(module: HloModuleProto, given: OpSharding) -> None:
    """Writes shardings that were given for results on the markers, ends of stages, that the results come from."""
    nodes = {node.id: node for node in entry(module).instructions}
    for operand, sharding in zip(_root(module).operand_ids, given.tuple_shardings, strict=False):
        element = nodes[operand]
        if element.opcode != "get-tuple-element":
            continue
        marker = nodes[element.operand_ids[0]]
        if is_marker(marker) and marker.HasField("sharding"):
            element.sharding.CopyFrom(sharding)
            marker.sharding.tuple_shardings[element.tuple_index].CopyFrom(sharding)


def _compile_and_read(
    module: HloModuleProto, num_partitions: int, name: str, free_output: bool, free_parameters: bool = False
) -> HloModuleProto:
    module = remove_markers(module)
    with tempfile.TemporaryDirectory(prefix="alpa_stock_jax_") as directory:
        options = compile_options(
            num_partitions,
            np.array([[_client().local_devices()[0].id]]),
            xla_dump_to=directory,
            xla_dump_hlo_pass_re=f"{name}|{_PARTITIONING}",
            xla_dump_hlo_as_proto=True,
            xla_backend_optimization_level=0,
            xla_llvm_disable_expensive_passes=True,
        )
        build = options.executable_build_options
        build.num_partitions, build.use_spmd_partitioning = num_partitions, num_partitions > 1
        build.allow_spmd_sharding_propagation_to_output = [
            free_output or not _root(module).HasField("sharding")
        ]
        build.allow_spmd_sharding_propagation_to_parameters = _undecided(module) if free_parameters else [False]
        try:
            _client().compile(annotated_module(module), options)
        except xc.XlaRuntimeError as error:
            _explain(error, pathlib.Path(directory))
            raise
        return _read(pathlib.Path(directory), name)


def _explain(error: xc.XlaRuntimeError, directory: pathlib.Path) -> None:
    """Raises ValueError, with the way out, if a module needs a collective that XLA's CPU compiler doesn't have."""
    if "4 is currently only supported in convert" in str(error):
        raise ValueError(
            "the step would have an int4 or uint4 array sent or moved, but XLA's CPU compiler can only convert such; "
            "convert it to int8 before what else is done with it, or give it to one device"
        ) from error
    if any(directory.glob(f"*.after_{_PARTITIONING}*.hlo.pb")):
        _check_collectives(_read(directory, _PARTITIONING))


def _check_collectives(module: HloModuleProto) -> None:
    """Raises ValueError, with the way out, for the first collective of a module that XLA's CPU compiler doesn't have.

    It doesn't reduce floating-point numbers of 8 bits, and of complex numbers it makes sums and products only.
    """
    for part in module.computations:
        for node in part.instructions:
            dtype = dtype_name(node.shape)
            unordered = "complex" in dtype and reduction_of(module, node) not in ("add", "multiply")
            if node.opcode in COLLECTIVES and node.called_computation_ids and ("float8" in dtype or unordered):
                raise ValueError(
                    f"the step has an {node.opcode} of {dtype} between the devices of a mesh, but XLA's "
                    f"CPU compiler has none; convert to {'real numbers' if unordered else 'float32'} before what is "
                    "reduced there, or give it to one device"
                )


def _root(module: HloModuleProto) -> HloInstructionProto:
    return next(node for node in entry(module).instructions if node.id == entry(module).root_id)


def _undecided(module: HloModuleProto) -> list[bool]:
    """For each parameter, whether it carries no sharding; [False] for a module without parameters."""
    nodes = [node for node in entry(module).instructions if node.opcode == "parameter"]
    return [not node.HasField("sharding") for node in sorted(nodes, key=lambda n: n.parameter_number)] or [False]


def _read(directory: pathlib.Path, name: str) -> HloModuleProto:
    files = sorted(directory.glob(f"*.after_{name}*.hlo.pb"))
    if not files:
        raise RuntimeError(
            f"XLA wrote no module after its pass '{name}' into {directory}: this jaxlib's compiler names its passes "
            "differently; install the versions that README.md names"
        )
    return HloProto.FromString(files[-1].read_bytes()).hlo_module


def _restore(found: HloModuleProto, whole: HloModuleProto) -> None:
    """Gives the partition what the way through MLIR lost: the name, shardings beside the code, and possible aliases."""
    found.name = whole.name
    inputs, output = parameter_shardings(found), output_sharding(found)
    found.ClearField("spmd_parameters_shardings")
    found.spmd_parameters_shardings.extend(inputs)
    found.spmd_output_sharding.CopyFrom(_full(output, found))
    found.ClearField("input_output_alias")
    for alias in whole.input_output_alias.entries:
        number = alias.parameter_number
        if _same_part(found, number, list(alias.output_shape_index)):
            found.input_output_alias.entries.add().CopyFrom(alias)
        else:
            _logger.debug("%s: parameter %d isn't donated: it is cut otherwise than the result", found.name, number)


def _full(sharding: OpSharding, module: HloModuleProto) -> OpSharding:
    """A sharding for each result, where the compiler writes one for all."""
    count = len(module.host_program_shape.result.tuple_shapes)
    if sharding.type == 2 or not count:
        return sharding
    return tuple_sharding([sharding if sharding.type else replicated()] * count)


def _same_part(module: HloModuleProto, parameter: int, index: list[int]) -> bool:
    shape = module.host_program_shape.result
    for position in index:
        shape = shape.tuple_shapes[position]
    part = module.host_program_shape.parameters[parameter]
    return part.element_type == shape.element_type and list(part.dimensions) == list(shape.dimensions)
