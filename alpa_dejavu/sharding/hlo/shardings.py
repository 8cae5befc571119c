"""Shardings of a module's parameters and result: read, written, and made from one another.

Within an annotated module every parameter carries its sharding and the root a tuple of them; a partitioned module
carries them beside its computations, because its values have the shapes of the parts already.

References: `OpSharding` in XLA's `xla_data.proto`.
"""

from __future__ import annotations

from collections.abc import Sequence

from alpa_dejavu.sharding.hlo.graph import entry
from alpa_dejavu.sharding.hlo.schema import HloInstructionProto, HloModuleProto, OpSharding, ShapeProto
from alpa_dejavu.sharding.hlo.shapes import is_tuple

REPLICATED, MAXIMAL, TUPLE, OTHER, MANUAL, UNKNOWN = 0, 1, 2, 3, 4, 5


def replicated() -> OpSharding:
    """Returns the HLO sharding of a value that every device has whole."""
    return OpSharding(type=REPLICATED)


def tuple_sharding(parts: Sequence[OpSharding]) -> OpSharding:
    """Returns the HLO sharding of a tuple, made from those of its parts."""
    return OpSharding(type=TUPLE, tuple_shardings=list(parts))


def sharding_of(shape: ShapeProto, parts: Sequence[OpSharding]) -> OpSharding:
    """Returns the HLO sharding of a value, made from those of its arrays: a tuple's, or that of the only one."""
    return tuple_sharding(parts) if is_tuple(shape) else parts[0]


def parameter_shardings(module: HloModuleProto) -> list[OpSharding]:
    """Returns the sharding of each parameter of a module, by number; replicated where none is written."""
    if module.spmd_parameters_shardings:
        return list(module.spmd_parameters_shardings)
    parameters = sorted(_parameters(module), key=lambda node: node.parameter_number)
    return [node.sharding if node.HasField("sharding") else replicated() for node in parameters]


def output_sharding(module: HloModuleProto) -> OpSharding:
    """Returns the sharding of a module's result: a tuple's where the result is a tuple."""
    if module.HasField("spmd_output_sharding"):
        return module.spmd_output_sharding
    root = _root(module)
    if not is_tuple(root.shape):
        return root.sharding if root.HasField("sharding") else replicated()
    return tuple_sharding(element_shardings(root))


def element_shardings(node: HloInstructionProto) -> list[OpSharding]:
    """Returns the sharding of each element of a tuple-shaped instruction; replicated where none is written."""
    count = len(node.shape.tuple_shapes)
    if not node.HasField("sharding"):
        return [replicated() for _ in range(count)]
    if node.sharding.type == TUPLE:
        return list(node.sharding.tuple_shardings)
    return [node.sharding for _ in range(count)]


def set_parameter_shardings(module: HloModuleProto, shardings: Sequence[OpSharding]) -> None:
    """Writes a sharding on each parameter of a module; one of type `MANUAL` leaves its parameter as it is.

    Raises:
        ValueError: if there aren't as many shardings as parameters.
    """
    parameters = _parameters(module)
    if len(parameters) != len(shardings):
        raise ValueError(f"{len(shardings)} shardings for the {len(parameters)} parameters of {module.name}")
    for node in parameters:
        sharding = shardings[node.parameter_number]
        if sharding.type != MANUAL:
            node.sharding.CopyFrom(sharding)
    _forget_summary(module)


def set_output_shardings(module: HloModuleProto, shardings: Sequence[OpSharding]) -> None:
    """Writes the sharding of each element of a module's result.

    Raises:
        ValueError: if there aren't as many shardings as elements.
    """
    root = _root(module)
    count = len(root.shape.tuple_shapes) if is_tuple(root.shape) else 1
    if count != len(shardings):
        raise ValueError(f"{len(shardings)} shardings for the {count} results of {module.name}")
    root.sharding.CopyFrom(sharding_of(root.shape, shardings))
    _forget_summary(module)


def summarize(module: HloModuleProto) -> None:
    """Copies the shardings that a module's parameters and root instruction carry into the module's own fields."""
    _forget_summary(module)
    parameters, output = parameter_shardings(module), output_sharding(module)
    module.spmd_parameters_shardings.extend(parameters)
    module.spmd_output_sharding.CopyFrom(output)


def _forget_summary(module: HloModuleProto) -> None:
    module.ClearField("spmd_parameters_shardings")
    module.ClearField("spmd_output_sharding")


def _parameters(module: HloModuleProto) -> list[HloInstructionProto]:
    return [node for node in entry(module).instructions if node.opcode == "parameter"]


def _root(module: HloModuleProto) -> HloInstructionProto:
    computation = entry(module)
    return next(node for node in computation.instructions if node.id == computation.root_id)
