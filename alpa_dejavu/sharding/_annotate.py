"""Writing a solution into the module, so that stock XLA's partitioner does what was planned."""

from alpa_dejavu.sharding._from_hlo import HloProgram, leaves
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._op_sharding import to_op_sharding
from alpa_dejavu.sharding._solve import Solution
from alpa_dejavu.sharding._spec import Spec, replicated
from alpa_dejavu.sharding.hlo._graph import Graph
from alpa_dejavu.sharding.hlo._schema import HloInstructionProto, HloModuleProto, OpSharding
from alpa_dejavu.sharding.hlo.shardings import set_output_shardings, sharding_of, summarize


def annotate(module: HloModuleProto, program: HloProgram, solution: Solution, mesh: LogicalMesh) -> HloModuleProto:
    """Returns a copy of an HLO module with a sharding on every instruction, and on parameters and result.

    Where a strategy needs an operand cut otherwise than the operand is, a copy cut in that way is put between them:
    left to itself the partitioner might compute in some other way.

    Args:
        module: the module that `program` was read from.
        program: the module as the auto-sharding engine's operators.
        solution: the strategy that was chosen for each operator.
        mesh: the logical mesh of the devices.
    """
    result = HloModuleProto.FromString(module.SerializeToString())
    graph = Graph(result)
    writer = _Writer(graph, program, solution, mesh)
    for instruction in graph:
        writer.mark(instruction)
    for instruction in graph.order():
        writer.bring_operands(instruction)
    graph.close()
    set_output_shardings(result, [writer.sharding(writer.output_spec(i)) for i in program.outputs])
    summarize(result)
    return result


def annotate_parameters(
    module: HloModuleProto, program: HloProgram, specs: dict[int, Spec], mesh: LogicalMesh
) -> HloModuleProto:
    """Returns a copy of an HLO module with shardings on its parameters and results only; XLA propagates the rest.

    Args:
        module: the module that `program` was read from.
        program: the module as the auto-sharding engine's operators.
        specs: for the index of each parameter's operator the mesh axes that cut each of its dimensions. A result is
            cut like the parameter whose memory it takes over; all other results are whole.
        mesh: the logical mesh of the devices.
    """
    result = HloModuleProto.FromString(module.SerializeToString())
    graph = Graph(result)
    for node in graph.parameters():
        found = [to_op_sharding(specs[i], mesh) for i in leaves(program.values[node.id])]
        node.sharding.CopyFrom(sharding_of(node.shape, found))
    outputs = [program.operators[i] for i in program.outputs]
    shardings = [to_op_sharding(replicated(o.rank) if o.alias is None else specs[o.alias], mesh) for o in outputs]
    graph.close()
    set_output_shardings(result, shardings)
    summarize(result)
    return result


class _Writer:
    def __init__(self, graph: Graph, program: HloProgram, solution: Solution, mesh: LogicalMesh) -> None:
        self.graph, self.program, self.solution, self.mesh = graph, program, solution, mesh
        self.specs = solution.outputs
        self.copies: dict[tuple[int, Spec, bool], HloInstructionProto] = {}
        self.gathered = set(solution.recut.gather)
        self.lone = set(solution.recut.lone_readers)

    def sharding(self, spec: Spec) -> OpSharding:
        """Returns the HLO sharding of a spec, that is, of the mesh axes that cut each dimension of a tensor."""
        return to_op_sharding(spec, self.mesh)

    def mark(self, instruction: HloInstructionProto) -> None:
        """Writes the sharding that the auto-sharding solver chose onto an HLO instruction."""
        shardings = [self.sharding(self.specs[i]) for i in leaves(self.program.values[instruction.id])]
        if shardings:
            instruction.sharding.CopyFrom(sharding_of(instruction.shape, shardings))

    def bring_operands(self, instruction: HloInstructionProto) -> None:
        """Gives an HLO instruction copies of those operands that it needs cut otherwise than the operands are."""
        value = self.program.values.get(instruction.id)
        for position, operand_id in enumerate(instruction.operand_ids):
            source = self.graph.nodes[operand_id]
            at = self.program.values.get(operand_id)
            if not isinstance(at, int) or not source.shape.dimensions:
                continue
            if at in self.gathered:
                source = self._cut(source, self.solution.strategies[at].output, at)
            if isinstance(value, int) and instruction.opcode not in ("tuple", "get-tuple-element"):
                wanted = self._wanted(instruction, value, position, at)
                held = self.solution.strategies[at].output if at in self.gathered else self.specs[at]
                if wanted is not None and wanted != held:
                    source = self._cut(source, wanted, at, (at, value) in self.lone)
            if source.id != operand_id:
                instruction.operand_ids[position] = source.id

    def _wanted(self, instruction: HloInstructionProto, value: int, position: int, source: int) -> Spec | None:
        """The spec in which an instruction needs an operand; None where the partitioner may do as it likes."""
        operator, inputs = self.program.operators[value], self.solution.strategies[value].inputs
        recut = self.solution.recut.specs
        if value in recut and operator.kind in ("transpose", "identity"):
            return None
        if len(inputs) == len(instruction.operand_ids) and not (value in recut and operator.kind == "elementwise"):
            return inputs[position]
        if self._is_cheap(source) and self.program.operators[source].rank == operator.rank:
            return self.specs[value]
        return None

    def _is_cheap(self, value: int) -> bool:
        """Whether each reader may as well compute its own part: an iota, or a constant that is spread out."""
        operator = self.program.operators[value]
        spread = operator.kind == "broadcast" and self.program.operators[operator.operands[0]].kind == "constant"
        return operator.kind == "iota" or spread

    def _cut(self, source: HloInstructionProto, spec: Spec, at: int, lone: bool = False) -> HloInstructionProto:
        """The instruction's value, cut in another way: copied, or computed anew if that is cheap.

        A lone reader gets a copy of its own, behind a barrier, so that the partitioner does not merge the two.
        """
        key = (source.id, spec, lone)
        if key not in self.copies:
            if lone:
                source = self.graph.add("opt-barrier", source.shape, [source], sharding=source.sharding)
            copy = (
                self.graph.adopt(source, source.operand_ids)
                if self._is_cheap(at)
                else (self.graph.add("copy", source.shape, [source]))
            )
            copy.sharding.CopyFrom(self.sharding(spec))
            self.copies[key] = copy
        return self.copies[key]

    def output_spec(self, output: int) -> Spec:
        """Returns the mesh axes that cut each dimension of an output of the program, given its operator's index."""
        source = self.program.operators[output].operands[0]
        if source in self.solution.recut.specs and source not in self.gathered:
            return self.specs[source]
        return self.specs[output]
