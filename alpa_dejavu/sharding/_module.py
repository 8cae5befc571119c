"""An HLO module in, the same module with shardings out."""

import dataclasses

from alpa_dejavu.sharding._annotate import annotate, annotate_parameters
from alpa_dejavu.sharding._from_hlo import read_program
from alpa_dejavu.sharding._heuristic import heuristic_spec
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._options import ShardingOptions
from alpa_dejavu.sharding._solve import Solution, solve
from alpa_dejavu.sharding.hlo._schema import HloModuleProto
from alpa_dejavu.sharding.hlo.shardings import MANUAL


@dataclasses.dataclass(frozen=True)
class ShardedModule:
    """A module with shardings.

    Attributes:
        module: the module; a sharding on each instruction, on the parameters and on the result.
        objective: the cost that the solver minimised; -1 where nothing was solved.
        solution: what was chosen for each operator; None where nothing was solved.
    """

    module: HloModuleProto
    objective: float
    solution: Solution | None


def shard_module(module: HloModuleProto, mesh: LogicalMesh, options: ShardingOptions) -> ShardedModule:
    """Choose shardings for a module and write them into it.

    Args:
        module: one entry computation without calls, simplified (see `alpa_dejavu.sharding.hlo.simplify`). Shardings
            that it has already are kept; those of type MANUAL mean that there is none.
        mesh: the devices.
        options: what the user asks; with `enable=False` only what is there is kept, for XLA to propagate.

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
    """A copy of a module without the shardings that stand for "none"."""
    result = HloModuleProto.FromString(module.SerializeToString())
    for computation in result.computations:
        for instruction in computation.instructions:
            if instruction.HasField("sharding") and instruction.sharding.type == MANUAL:
                instruction.ClearField("sharding")
    return result
