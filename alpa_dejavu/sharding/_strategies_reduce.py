"""Strategies of reductions and sorts."""

from alpa_dejavu.sharding._operator import Dims, IndexDims
from alpa_dejavu.sharding._planning import Site, make_table, whole
from alpa_dejavu.sharding._spec import num_tiles, of_rank, replicated
from alpa_dejavu.sharding._table import Strategy, Table


def reduce_table(site: Site) -> Table:
    """Follow an operand: what is cut along a dimension that goes away has to be summed over that axis."""
    operator, leader = site.operator, site.leader[0]
    assert isinstance(operator.attributes, Dims)
    gone = operator.attributes.dims
    strategies = []
    for before in site.tables[leader].outputs:
        spec = tuple(axes for dim, axes in enumerate(before) if dim not in gone)
        axes = tuple(axis for dim in gone for axis in before[dim])
        inputs = tuple(of_rank(before, o.rank) for o in site.operands)
        on_device = operator.num_bytes / num_tiles(spec, site.mesh_shape)
        strategies.append(Strategy(
            f"allreduce @ {list(axes)}" if axes else "=", spec, inputs, axes,
            communication=site.costs.all_reduce(on_device, axes),
        ))
    return make_table(site, strategies, leader, range(len(strategies)))


def sort_table(site: Site) -> Table:
    """Follow an operand: what is cut along the sorted dimension has to be gathered for it."""
    operator, leader = site.operator, site.leader[0]
    assert isinstance(operator.attributes, Dims)
    strategies = []
    for spec in site.tables[leader].outputs:
        along = any(spec[dim] for dim in operator.attributes.dims)
        gathered = replicated(operator.rank)
        cost = site.costs.reshard(float(operator.num_bytes), spec, gathered) if along else 0.0
        inputs = tuple(
            spec if position == leader or not along else gathered for position in range(len(site.operands))
        )
        strategies.append(Strategy("=", spec, inputs, communication=cost))
    return make_table(site, strategies, leader, range(len(strategies)))


def sibling_table(site: Site) -> Table:
    """A further result of the operator before it: cut like the first where the shapes allow it."""
    main = site.tables[0].outputs
    same = site.operands[0].shape == site.operator.shape
    specs = [spec if same else replicated(site.operator.rank) for spec in main]
    strategies = [Strategy("=", spec, (before,)) for spec, before in zip(specs, main, strict=True)]
    return make_table(site, strategies, 0, range(len(strategies)))


def index_table(site: Site) -> Table:
    """Gather and scatter: dimensions that are only carried along may be cut; the indices are whole."""
    dims = site.operator.attributes
    assert isinstance(dims, IndexDims)
    strategies = []
    for number, (operand_dim, result_dim) in enumerate(zip(dims.operand, dims.result, strict=True)):
        for axis in site.costs.mesh.axes:
            result = site.tile((result_dim, axis))
            source = site.tile((operand_dim, axis), of=0)
            if result is None or source is None:
                continue
            inputs = [source, replicated(site.operands[1].rank)]
            if site.operator.kind == "scatter":
                updates = site.tile((dims.updates[number], axis), of=2)
                if updates is None:
                    continue
                inputs.append(updates)
            strategies.append(Strategy(f"S{result_dim} @ {axis}", result, tuple(inputs)))
    return make_table(site, [*strategies, whole(site)])
