"""Pipeline markers: where a module is cut into stages, and how to be rid of them.

A marker is a custom call that gives back the tuple it takes. They come in pairs, `name$start` and `name$end`; what a
stage computes lies between its pair, its inputs are the elements of the start and its outputs those of the end.

References: Alpa's primitive `pipeline_marker` (pipeline_parallel/primitive_def.py) and the semantics of its pass
SliceAutoShardedStages.
"""

from __future__ import annotations

import dataclasses

from alpa_dejavu.sharding.hlo.graph import HloGraph, drop_unreachable, entry
from alpa_dejavu.sharding.hlo.schema import HloComputationProto, HloInstructionProto, HloModuleProto, OpSharding
from alpa_dejavu.sharding.hlo.shardings import element_shardings

MARKER_TARGET = "pipeline_marker"
_START, _END = "$start", "$end"


@dataclasses.dataclass(frozen=True)
class Stage:
    """A pipeline stage cut out of a module: its name, and a module from parameters (inputs) to a tuple (outputs)."""

    name: str
    module: HloModuleProto


def is_marker(node: HloInstructionProto) -> bool:
    """Returns whether an HLO instruction is a pipeline marker."""
    return node.opcode == "custom-call" and node.custom_call_target == MARKER_TARGET


def remove_markers(module: HloModuleProto) -> HloModuleProto:
    """Returns a copy of a module in which every pipeline marker is replaced by the value that it marks."""
    module = HloModuleProto.FromString(module.SerializeToString())
    for target in module.computations:
        if not any(is_marker(node) for node in target.instructions):
            continue
        graph = HloGraph(module, target)
        for node in graph:
            if is_marker(node):
                node.custom_call_has_side_effect = False
                graph.replace(node, graph.operand(node, 0))
        graph.close()
    return module


def slice_at_markers(module: HloModuleProto) -> list[Stage]:
    """Cuts a flat module into its pipeline stages, in the order of their starts; none where there are no markers.

    Shardings of inputs and outputs are those of the markers, where the markers carry any.

    Raises:
        ValueError: if an end has no start, or a stage takes a value that isn't one of its inputs.
    """
    graph = HloGraph(module)
    markers = [node for node in graph.order() if is_marker(node)]
    for marker in markers:
        _name_elements(graph, marker)
    starts = [node for node in markers if node.metadata.op_name.endswith(_START)]
    ends = {_stage_name(node): node for node in markers if node.metadata.op_name.endswith(_END)}
    if set(ends) != {_stage_name(start) for start in starts}:
        raise ValueError(f"{module.name} has stages that start but don't end, or the other way round: {sorted(ends)}")
    stages = []
    for index, start in enumerate(starts):
        name = _stage_name(start)
        stages.append(Stage(name, _cut(graph, start, ends[name], index)))
    return stages


def hooked_shardings(module: HloModuleProto) -> list[OpSharding]:
    """Returns the shardings of the values that pass a module's hook, in order; an empty list without a hook.

    A hook is an optimization barrier named `hook$hook`; values pass it so that their shardings can be looked up.
    """
    for node in entry(module).instructions:
        if node.opcode == "opt-barrier" and node.metadata.op_name.endswith("hook$hook"):
            return element_shardings(node) if node.shape.tuple_shapes else [node.sharding]
    return []


def _stage_name(marker: HloInstructionProto) -> str:
    return marker.metadata.op_name.rsplit("/", 1)[-1].rsplit("$", 1)[0]


def _cut(graph: HloGraph, start: HloInstructionProto, end: HloInstructionProto, index: int) -> HloModuleProto:
    """Returns a module of what lies between a pair of markers."""
    inside = _between(graph, start, end)
    copy = HloModuleProto.FromString(graph.module.SerializeToString())
    for field in ("input_output_alias", "buffer_donor", "spmd_parameters_shardings", "spmd_output_sharding"):
        copy.ClearField(field)
    copy.name = f"{graph.module.name}-{index}"
    source = entry(copy)
    new = HloComputationProto(name=f"{source.name}-{index}", id=source.id)
    parameters = _parameters(start, 1 + max(node.id for part in copy.computations for node in part.instructions))
    new.instructions.extend(parameters)
    for node in inside:
        kept = new.instructions.add()
        kept.CopyFrom(node)
        kept.operand_ids[:] = [parameters[_element(graph, i)].id if _is_input(graph, i, start) else i
                               for i in node.operand_ids]
    root = new.instructions.add()
    root.CopyFrom(_root(graph, start, end, parameters))
    new.root_id = root.id
    new.program_shape.parameters.extend(node.shape for node in parameters)
    new.program_shape.parameter_names.extend(node.name for node in parameters)
    new.program_shape.result.CopyFrom(root.shape)
    source.CopyFrom(new)
    copy.entry_computation_name = new.name
    copy.host_program_shape.CopyFrom(new.program_shape)
    drop_unreachable(copy)
    return copy


def _between(graph: HloGraph, start: HloInstructionProto, end: HloInstructionProto) -> list[HloInstructionProto]:
    """Returns the instructions that the end needs and the start doesn't give, each after what it takes."""
    needed: set[int] = set()
    stack = [i for i in _outputs(graph, end) if not _is_input(graph, i, start)]
    while stack:
        current = stack.pop()
        if current in needed:
            continue
        node = graph.nodes[current]
        if node.opcode == "parameter" or is_marker(node):
            raise ValueError(
                f"the stage {_stage_name(start)} takes {node.name}, which isn't one of its inputs: every value that a "
                "stage uses has to pass its start marker"
            )
        needed.add(current)
        stack.extend(i for i in node.operand_ids if not _is_input(graph, i, start))
    return [node for node in graph.order() if node.id in needed]


def _name_elements(graph: HloGraph, marker: HloInstructionProto) -> None:
    """Gives a marker a tuple of elements where it takes another marker whole, as compilers simplify it to."""
    if len(marker.operand_ids) != 1:
        return
    taken = graph.operand(marker, 0)
    if is_marker(taken):
        parts = [graph.element(taken, index) for index in range(len(taken.shape.tuple_shapes))]
        marker.operand_ids[:] = [graph.tuple(parts).id]


def _outputs(graph: HloGraph, end: HloInstructionProto) -> list[int]:
    """The ids of a stage's outputs: the elements of the tuple that its end marker takes."""
    if len(end.operand_ids) != 1:
        return list(end.operand_ids)
    taken = graph.operand(end, 0)
    return list(taken.operand_ids) if taken.opcode == "tuple" else [taken.id]


def _is_input(graph: HloGraph, node_id: int, start: HloInstructionProto) -> bool:
    node = graph.nodes[node_id]
    return node.opcode == "get-tuple-element" and node.operand_ids[0] == start.id


def _element(graph: HloGraph, node_id: int) -> int:
    return graph.nodes[node_id].tuple_index


def _parameters(start: HloInstructionProto, first_id: int) -> list[HloInstructionProto]:
    """A parameter for each element of a start marker, with ids from `first_id` on."""
    annotated = start.HasField("sharding")
    shardings = element_shardings(start)
    found = []
    for number, shape in enumerate(start.shape.tuple_shapes):
        node = HloInstructionProto(
            opcode="parameter", name=f"param_{number}", shape=shape, parameter_number=number, id=first_id + number
        )
        if annotated:
            node.sharding.CopyFrom(shardings[number])
        found.append(node)
    return found


def _root(
    graph: HloGraph, start: HloInstructionProto, end: HloInstructionProto, parameters: list[HloInstructionProto]
) -> HloInstructionProto:
    outputs = _outputs(graph, end)
    root = HloInstructionProto(opcode="tuple", name=f"tuple.stage.{end.id}", id=end.id, shape=end.shape)
    root.operand_ids.extend(
        parameters[_element(graph, i)].id if _is_input(graph, i, start) else i for i in outputs
    )
    if end.HasField("sharding"):
        root.sharding.type = 2
        root.sharding.tuple_shardings.extend(element_shardings(end))
    return root
