"""HLO modules as MLIR: stock jaxlib compiles nothing else.

The way there loses what the module says about aliases, and wraps the results in a tuple; both are put right here. A
module that is partitioned already is marked as manual code all through, so that the partitioner leaves it as it is,
`partition-id` and collectives included, and the executable has partitions, as Alpa's has.
"""

from __future__ import annotations

from collections.abc import Iterable

from jax._src.interpreters import mlir
from jax._src.lib import xla_extension as xe
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import func

from alpa_dejavu.sharding.hlo import HloModuleProto

__all__ = ["annotated_module", "manual_module"]

_MANUAL = "{manual}"
_SHARDING = "mhlo.sharding"
# Their regions are code of the program; the regions of others (reductions, sorts, collectives) work on scalars.
_BRANCHES = frozenset({"stablehlo.case", "stablehlo.if"})
_CONTROL_FLOW = _BRANCHES | {"stablehlo.while"}


def annotated_module(module: HloModuleProto) -> str:
    """The MLIR text of a module, with the shardings that the module carries, but for those of conditionals."""
    module = HloModuleProto.FromString(module.SerializeToString())
    for part in module.computations:
        for node in part.instructions:
            if node.opcode == "conditional":
                node.ClearField("sharding")
    text: str = xe.mlir.xla_computation_to_mlir_module(xe.XlaComputation(module.SerializeToString()))
    return text


def manual_module(module: HloModuleProto, partitioned: bool) -> bytes:
    """The MLIR bytecode of a module as it shall run: several results instead of a tuple, and donated arguments.

    Args:
        module: what is compiled; its `input_output_alias` says which arguments are donated to which results.
        partitioned: whether it is one partition of several, to be left as it is.
    """
    with mlir.make_ir_context(), ir.Location.unknown():
        parsed = ir.Module.parse(annotated_module(module))
        main = next(op for op in parsed.body.operations if ir.StringAttr(op.attributes["sym_name"]).value == "main")
        _return_several(main)
        if partitioned:
            for function in parsed.body.operations:
                _mark_manual(function.regions[0].blocks[0])
        _describe_arguments(main, module, partitioned)
        return mlir.module_to_bytecode(parsed)


def _return_several(main: ir.OpView) -> None:
    """Makes a function that returns a tuple return its elements."""
    block = main.regions[0].blocks[0]
    returned = list(block.operations)[-1]
    (value,) = returned.operands
    if ir.TupleType.isinstance(value.type):
        wrapped = value.owner
        if wrapped.name != "stablehlo.tuple":
            raise ValueError(f"the module's root is a {wrapped.name}; a tuple of the results is expected")
        values = list(wrapped.operands)
        with ir.InsertionPoint(returned):
            func.ReturnOp(values)
        returned.operation.erase()
        wrapped.erase()
    else:
        values = [value]
    kind = ir.FunctionType.get([argument.type for argument in block.arguments], [value.type for value in values])
    main.operation.attributes["function_type"] = ir.TypeAttr.get(kind)


def _mark_manual(block: ir.Block) -> None:
    for operation in list(block.operations):
        operation = _as_dialect_operation(operation.operation)
        results = list(operation.results)
        if results and operation.name != "stablehlo.tuple":
            parts = _leaves(result.type for result in results)
            # What a conditional is given becomes a tuple that takes over its sharding, of whatever number of parts.
            single = operation.name in _BRANCHES or (parts == 1 and not ir.TupleType.isinstance(results[0].type))
            sharding = _MANUAL if single else "{" + ", ".join([_MANUAL] * parts) + "}"
            operation.attributes[_SHARDING] = ir.StringAttr.get(sharding)
        if operation.name in _CONTROL_FLOW:
            for region in operation.regions:
                for inner in region.blocks:
                    _mark_manual(inner)


def _as_dialect_operation(operation: ir.Operation) -> ir.Operation:
    """The operation, or what a custom call stands for (such as `mhlo.erf`): as a call it must not carry a sharding."""
    if operation.name != "stablehlo.custom_call":
        return operation
    target = ir.StringAttr(operation.attributes["call_target_name"]).value
    if not target.startswith("mhlo.") or "mhlo.attributes" not in operation.attributes:
        return operation
    attributes = {entry.name: entry.attr for entry in ir.DictAttr(operation.attributes["mhlo.attributes"])}
    made = ir.Operation.create(
        target,
        results=[result.type for result in operation.results],
        operands=list(operation.operands),
        attributes=attributes,
        loc=operation.location,
        ip=ir.InsertionPoint(operation),
    )
    for old, new in zip(operation.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    operation.erase()
    return made


def _leaves(types: Iterable[ir.Type]) -> int:
    count = 0
    for kind in types:
        if ir.TupleType.isinstance(kind):
            inner = ir.TupleType(kind)
            count += _leaves(inner.get_type(i) for i in range(inner.num_types))
        else:
            count += 1
    return count


def _describe_arguments(main: ir.OpView, module: HloModuleProto, partitioned: bool) -> None:
    """Writes which result each argument is donated to, and the shardings of partitioned code."""
    kind = ir.FunctionType(ir.TypeAttr(main.operation.attributes["function_type"]).value)
    donated = {
        entry.parameter_number: entry.output_shape_index[0] if entry.output_shape_index else 0
        for entry in module.input_output_alias.entries
    }
    sharding = {_SHARDING: ir.StringAttr.get(_MANUAL)} if partitioned else {}
    i32 = ir.IntegerType.get_signless(32)
    arguments = [
        ir.DictAttr.get({**sharding, "tf.aliasing_output": ir.IntegerAttr.get(i32, donated[number])})
        if number in donated
        else ir.DictAttr.get(sharding)
        for number in range(len(kind.inputs))
    ]
    main.operation.attributes["arg_attrs"] = ir.ArrayAttr.get(arguments)
    results = [ir.DictAttr.get(sharding) for _ in kind.results]
    main.operation.attributes["res_attrs"] = ir.ArrayAttr.get(results)
