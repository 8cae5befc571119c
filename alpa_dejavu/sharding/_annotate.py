"""Writing a solution into the module, so that stock XLA's partitioner does what was planned."""

from alpa_dejavu.hlo._graph import Graph
from alpa_dejavu.hlo._schema import HloInstructionProto, HloModuleProto, OpSharding
from alpa_dejavu.hlo._shapes import is_tuple
from alpa_dejavu.sharding._from_hlo import HloProgram, leaves
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._op_sharding import to_op_sharding, tuple_op_sharding
from alpa_dejavu.sharding._spec import Spec
from alpa_dejavu.sharding._table import Strategy

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

    def sharding(self, spec: Spec) -> OpSharding:
        return to_op_sharding(spec, self.mesh)

    def mark(self, instruction: HloInstructionProto) -> None:
        """Write the chosen sharding onto an instruction."""
        shardings = [self.sharding(self.strategies[i].output) for i in leaves(self.program.values[instruction.id])]
        if shardings:
            whole = tuple_op_sharding(shardings) if is_tuple(instruction.shape) else shardings[0]
            instruction.sharding.CopyFrom(whole)

    def bring_operands(self, instruction: HloInstructionProto) -> None:
        """Put copies where the strategy needs operands that are cut in another way."""
        value = self.program.values.get(instruction.id)
        if not isinstance(value, int) or instruction.opcode in ("tuple", "get-tuple-element", "parameter"):
            return
        strategy, operator = self.strategies[value], self.program.operators[value]
        for position, operand_id in enumerate(instruction.operand_ids):
            source = self.graph.nodes[operand_id]
            at = self.program.values.get(operand_id)
            if not isinstance(at, int) or not source.shape.dimensions:
                continue
            cheap = self._is_cheap(at)
            if len(strategy.inputs) == len(instruction.operand_ids):
                spec = strategy.inputs[position]
            elif cheap and self.program.operators[at].rank == operator.rank:
                spec = strategy.output
            else:
                continue
            if self.strategies[at].output != spec:
                instruction.operand_ids[position] = self._cut(source, spec, cheap).id

    def _is_cheap(self, value: int) -> bool:
        """Whether each reader may as well compute its own part: an iota, or a constant that is spread out."""
        operator = self.program.operators[value]
        spread = operator.kind == "broadcast" and self.program.operators[operator.operands[0]].kind == "constant"
        return operator.kind == "iota" or spread

    def _cut(self, source: HloInstructionProto, spec: Spec, cheap: bool) -> HloInstructionProto:
        """The instruction's value, cut in another way: copied, or computed anew if that is cheap."""
        if (source.id, spec) not in self.copies:
            copy = self.graph.adopt(source, source.operand_ids) if cheap else (
                self.graph.add("copy", source.shape, [source])
            )
            copy.sharding.CopyFrom(self.sharding(spec))
            self.copies[source.id, spec] = copy
        return self.copies[source.id, spec]

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
