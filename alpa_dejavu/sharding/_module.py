"""An HLO module in, the same module with shardings out."""

import dataclasses

from alpa_dejavu.sharding._annotate import annotate, annotate_parameters
from alpa_dejavu.sharding._from_hlo import read_program
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._options import ShardingOptions
from alpa_dejavu.sharding._solve import Solution, solve
from alpa_dejavu.sharding._spec import Shape, Spec, divides, replicated, tile
from alpa_dejavu.sharding.hlo._schema import HloModuleProto
from alpa_dejavu.sharding.hlo.shardings import MANUAL


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
            for i, operator in enumerate(program.operators)
            if operator.kind == "parameter"
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


HEURISTICS = ("shard-largest", "shard-first", "shard-last")


def heuristic_spec(shape: Shape, mesh: LogicalMesh, heuristic: str) -> Spec:
    """Returns the mesh axes by which a rule of thumb cuts each dimension of a parameter; none if it can't cut evenly.

    Args:
        shape: the parameter's shape.
        mesh: the logical mesh of the devices.
        heuristic: "shard-first" and "shard-last" cut the first or last dimension over all devices; "shard-largest"
            cuts the largest one, or on a grid the two largest.

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
