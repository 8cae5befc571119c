"""An HLO module in, the same module with shardings out."""

import dataclasses

from alpa_dejavu.sharding._from_hlo import HloProgram, leaves, read_program
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._op_sharding import to_op_sharding
from alpa_dejavu.sharding._options import ShardingOptions
from alpa_dejavu.sharding._solve import Solution, solve
from alpa_dejavu.sharding._spec import Shape, Spec, divides, replicated, tile
from alpa_dejavu.sharding.hlo.graph import HloGraph
from alpa_dejavu.sharding.hlo.schema import HloInstructionProto, HloModuleProto, OpSharding
from alpa_dejavu.sharding.hlo.shardings import MANUAL, set_output_shardings, sharding_of, summarize


@dataclasses.dataclass(frozen=True)
class ShardedModule:
    """An HLO module annotated with shardings, with the solution that they come from and its cost.

    Attributes:
        module: the HLO module, with a sharding on each instruction, on the parameters and on the result.
        objective: the cost that the solver minimised; -1 where nothing was solved.
        solution: the strategy that was chosen for each operator; None where nothing was solved.
    """

    module: HloModuleProto
    objective: float
    solution: Solution | None


def shard_module(module: HloModuleProto, mesh: LogicalMesh, options: ShardingOptions) -> ShardedModule:
    """Chooses shardings for an HLO module, and returns a copy that has them written into it.

    Args:
        module: one entry computation without calls, simplified (see `alpa_dejavu.sharding.hlo.simplify`). Shardings
            that it has already are kept; those of type MANUAL mean that there is none.
        mesh: the logical mesh of the devices.
        options: the user's sharding options; with `enable=False` the module's own shardings are all that it gets, for
            XLA to propagate.

    Raises:
        ValueError: if nothing meets the memory budget, or the heuristic that is asked for does not exist.
    """
    if not options.enable:
        return ShardedModule(_without_undefined(module), -1.0, None)
    program = read_program(module, mesh)
    if options.force_simple_heuristic:
        specs = {
            i: heuristic_spec(operator.shape, mesh, options.force_simple_heuristic)
            for i, operator in enumerate(program.operators) if operator.kind == "parameter"
        }
        return ShardedModule(annotate_parameters(module, program, specs, mesh), -1.0, None)
    solution = solve(program.operators, mesh, options)
    return ShardedModule(annotate(module, program, solution, mesh), solution.objective, solution)


def _without_undefined(module: HloModuleProto) -> HloModuleProto:
    """Returns a copy of a module without the shardings that stand for "none"."""
    result = HloModuleProto.FromString(module.SerializeToString())
    for computation in result.computations:
        for instruction in computation.instructions:
            if instruction.HasField("sharding") and instruction.sharding.type == MANUAL:
                instruction.ClearField("sharding")
    return result


HEURISTICS = ("shard-largest", "shard-first", "shard-last")


def heuristic_spec(shape: Shape, mesh: LogicalMesh, heuristic: str) -> Spec:
    """Returns the spec by which a rule of thumb cuts a parameter; it stays whole if that doesn't come out even.

    "shard-first" and "shard-last" cut the first or last dimension over all devices; "shard-largest" cuts the largest
    one, or on a grid the two largest.

    Raises:
        ValueError: if there is no such rule.

    >>> heuristic_spec((8, 16), LogicalMesh((2, 2)), "shard-largest")
    ((0,), (1,))
    >>> heuristic_spec((8, 16), LogicalMesh((2, 2)), "shard-first")
    ((0, 1), ())
    """
    if heuristic not in HEURISTICS:
        raise ValueError(f"there is no heuristic {heuristic!r}; there are {', '.join(HEURISTICS)}")
    rank, axes = len(shape), mesh.axes
    if not rank or not axes:
        return replicated(rank)
    by_size = sorted(range(rank), key=lambda dim: -shape[dim])
    if heuristic == "shard-largest" and rank > 1 and len(axes) > 1:
        cuts: dict[int, tuple[int, ...]] = {by_size[1]: (axes[0],), by_size[0]: (axes[1],)}
    else:
        cuts = {{"shard-first": 0, "shard-last": rank - 1, "shard-largest": by_size[0]}[heuristic]: axes}
    spec = tile(rank, cuts, mesh.shape)
    return spec if divides(spec, shape, mesh.shape) else replicated(rank)


def annotate(
    module: HloModuleProto, program: HloProgram, solution: Solution, mesh: LogicalMesh
) -> HloModuleProto:
    """Returns a copy of an HLO module with a sharding on every instruction, and on parameters and result.

    Where a strategy needs an operand cut otherwise than the operand is, a copy cut in that way is put between them:
    left to itself the partitioner might compute in some other way.
    """
    result = HloModuleProto.FromString(module.SerializeToString())
    graph = HloGraph(result)
    writer = _ModuleWriter(graph, program, solution, mesh)
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

    `specs` are by the parameters' operators. A result is cut like the parameter whose memory it takes over; all other
    results are whole.
    """
    result = HloModuleProto.FromString(module.SerializeToString())
    graph = HloGraph(result)
    for node in graph.parameters():
        shardings = [to_op_sharding(specs[i], mesh) for i in leaves(program.values[node.id])]
        node.sharding.CopyFrom(sharding_of(node.shape, shardings))
    outputs = [program.operators[i] for i in program.outputs]
    shardings = [
        to_op_sharding(replicated(o.rank) if o.alias is None else specs[o.alias], mesh) for o in outputs
    ]
    graph.close()
    set_output_shardings(result, shardings)
    summarize(result)
    return result


class _ModuleWriter:
    def __init__(self, graph: HloGraph, program: HloProgram, solution: Solution, mesh: LogicalMesh) -> None:
        self.graph, self.program, self.solution, self.mesh = graph, program, solution, mesh
        self.specs = solution.outputs
        self.copies: dict[tuple[int, Spec, bool], HloInstructionProto] = {}
        self.gathered = set(solution.recut.gather)
        self.lone = set(solution.recut.lone_readers)

    def sharding(self, spec: Spec) -> OpSharding:
        return to_op_sharding(spec, self.mesh)

    def mark(self, instruction: HloInstructionProto) -> None:
        """Writes the chosen sharding onto an instruction."""
        shardings = [self.sharding(self.specs[i]) for i in leaves(self.program.values[instruction.id])]
        if shardings:
            instruction.sharding.CopyFrom(sharding_of(instruction.shape, shardings))

    def bring_operands(self, instruction: HloInstructionProto) -> None:
        """Gives an instruction copies of those operands that it needs cut otherwise than the operands are."""
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
                spec = self.solution.strategies[at].output if at in self.gathered else self.specs[at]
                if wanted is not None and wanted != spec:
                    source = self._cut(source, wanted, at, (at, value) in self.lone)
            if source.id != operand_id:
                instruction.operand_ids[position] = source.id

    def _wanted(self, instruction: HloInstructionProto, value: int, position: int, source: int) -> Spec | None:
        """Returns the spec in which an instruction needs an operand; None where the partitioner may do as it likes."""
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
        """Returns whether each reader may as well compute its own part: an iota, or a constant that is spread out."""
        operator = self.program.operators[value]
        spread = operator.kind == "broadcast" and self.program.operators[operator.operands[0]].kind == "constant"
        return operator.kind == "iota" or spread

    def _cut(self, source: HloInstructionProto, spec: Spec, at: int, lone: bool = False) -> HloInstructionProto:
        """Returns the instruction's value, cut in another way: copied, or computed anew if that is cheap.

        A lone reader gets a copy of its own, behind a barrier, so that the partitioner does not merge the two.
        """
        key = (source.id, spec, lone)
        if key not in self.copies:
            if lone:
                source = self.graph.add("opt-barrier", source.shape, [source], sharding=source.sharding)
            copy = self.graph.adopt(source, source.operand_ids) if self._is_cheap(at) else (
                self.graph.add("copy", source.shape, [source])
            )
            copy.sharding.CopyFrom(self.sharding(spec))
            self.copies[key] = copy
        return self.copies[key]

    def output_spec(self, output: int) -> Spec:
        source = self.program.operators[output].operands[0]
        if source in self.solution.recut.specs and source not in self.gathered:
            return self.specs[source]
        return self.specs[output]
