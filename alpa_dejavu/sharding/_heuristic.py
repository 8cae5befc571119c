"""Cutting parameters by a simple rule instead of solving: the baseline that the solver is compared with."""

from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._spec import Shape, Spec, divides, replicated, tile

HEURISTICS = ("shard-largest", "shard-first", "shard-last")


def heuristic_spec(shape: Shape, mesh: LogicalMesh, heuristic: str) -> Spec:
    """The spec of a parameter by a rule; whole where the rule's cut would not come out even.

    Args:
        shape: the parameter's shape.
        mesh: the devices.
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
