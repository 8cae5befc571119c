"""Writing a solution into the module, so that stock XLA's partitioner does what was planned."""

from alpa_dejavu.hlo._graph import Graph
from alpa_dejavu.hlo._schema import HloInstructionProto, HloModuleProto, OpSharding
from alpa_dejavu.hlo._shapes import is_tuple
from alpa_dejavu.sharding._from_hlo import HloProgram, Value, leaves
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._op_sharding import to_op_sharding, tuple_op_sharding
from alpa_dejavu.sharding._spec import Spec, is_replicated
from alpa_dejavu.sharding._table import Strategy

_LEFT_TO_PROPAGATION = ("iota", "broadcast")


def annotate(
    module: HloModuleProto, program: HloProgram, strategies: tuple[Strategy, ...], mesh: LogicalMesh
) -> HloModuleProto:
    """A copy of a module with a sharding on every instruction, and on parameters and result.

    Where a strategy needs an operand cut otherwise than the operand is, a copy cut in that way stands between them:
    left to itself the partitioner might compute in some other way.

    Args:
        module: the module that `program` was read from.
        program: its operators.
        strategies: the strategy of each operator.
        mesh: the devices.
    """
    result = HloModuleProto.FromString(module.SerializeToString())
    graph = Graph(result)
    writer = _Writer(graph, program, strategies, mesh)
    for instruction in graph:
        writer.mark(instruction)
    for instruction in graph.order():
        writer.bring_operands(instruction)
    writer.mark_result(result)
    return result


class _Writer:
    def __init__(
        self, graph: Graph, program: HloProgram, strategies: tuple[Strategy, ...], mesh: LogicalMesh
    ) -> None:
        self.graph, self.program, self.strategies, self.mesh = graph, program, strategies, mesh
        self.copies: dict[tuple[int, Spec], HloInstructionProto] = {}
        self.outputs = {program.operators[i].operands[0] for i in program.outputs}

    def sharding(self, spec: Spec) -> OpSharding:
        return to_op_sharding(spec, self.mesh)

    def mark(self, instruction: HloInstructionProto) -> None:
        """Write the chosen sharding onto an instruction."""
        value = self.program.values[instruction.id]
        if self._left_to_propagation(value):
            instruction.ClearField("sharding")
            return
        shardings = [self.sharding(self.strategies[i].output) for i in leaves(value)]
        whole = tuple_op_sharding(shardings) if is_tuple(instruction.shape) else shardings[0]
        if shardings:
            instruction.sharding.CopyFrom(whole)

    def _left_to_propagation(self, value: Value) -> bool:
        """Whether an instruction costs nothing to compute in parts, so that what reads it may decide."""
        if not isinstance(value, int) or value in self.outputs:
            return False
        operator = self.program.operators[value]
        if operator.kind not in _LEFT_TO_PROPAGATION or not is_replicated(self.strategies[value].output):
            return False
        return operator.kind == "iota" or self.program.operators[operator.operands[0]].kind == "constant"

    def bring_operands(self, instruction: HloInstructionProto) -> None:
        """Put copies where the strategy needs operands that are cut in another way."""
        value = self.program.values[instruction.id]
        if not isinstance(value, int) or instruction.opcode in ("tuple", "get-tuple-element", "parameter"):
            return
        wanted = self.strategies[value].inputs
        if len(wanted) != len(instruction.operand_ids):
            return
        for position, spec in enumerate(wanted):
            source = self.graph.nodes[instruction.operand_ids[position]]
            at = self.program.values.get(source.id)
            if not spec or not isinstance(at, int) or self.strategies[at].output == spec:
                continue
            if (source.id, spec) not in self.copies:
                copy = self.graph.add("copy", source.shape, [source], sharding=self.sharding(spec))
                self.copies[source.id, spec] = copy
            instruction.operand_ids[position] = self.copies[source.id, spec].id

    def mark_result(self, module: HloModuleProto) -> None:
        """Write the shardings of the parameters and of the result onto the module, and close it."""
        outputs = [self.sharding(self.strategies[i].output) for i in self.program.outputs]
        root = self.graph.root
        root.sharding.CopyFrom(tuple_op_sharding(outputs) if is_tuple(root.shape) else outputs[0])
        parameters = [node.sharding for node in self.graph.parameters()]
        self.graph.close()
        module.spmd_output_sharding.CopyFrom(root.sharding)
        del module.spmd_parameters_shardings[:]
        module.spmd_parameters_shardings.extend(parameters)
