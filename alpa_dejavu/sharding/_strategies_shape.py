"""Strategies of operators that move, resize, reduce or sort dimensions, or look along them by indices.

Each cut of the operand is carried on where it can be.
"""

from alpa_dejavu.sharding._operator import Dims, IndexDims
from alpa_dejavu.sharding._planning import Site, grid_specs, line_specs, make_table, one_dim_specs, whole
from alpa_dejavu.sharding._propagate import broadcast_spec, reshape_spec, same_size_spec, transpose_spec, window_spec
from alpa_dejavu.sharding._spec import Spec, divides, num_tiles, of_rank, replicated
from alpa_dejavu.sharding._table import Strategy, Table, unique_outputs


def broadcast_table(site: Site) -> Table:
    """Returns the table of a broadcast's sharding strategies: its result is cut where its operand is.

    The broadcast of a scalar that isn't a constant, or of one that becomes an output, is cut along any one dimension.
    """
    operand = site.operands[0]
    if operand.rank == 0 and (site.feeds_output or operand.kind != "constant"):
        strategies = [Strategy("S", spec, ((),)) for spec in one_dim_specs(site, divisible=True)]
        return make_table(site, unique_outputs([*strategies, whole(site, site.costs.replication_penalty())]))
    assert isinstance(site.operator.attributes, Dims)
    dims = site.operator.attributes.dims
    return _carried(site, 0, [broadcast_spec(spec, site.operator.rank, dims) for spec in site.tables[0].outputs])


def transpose_table(site: Site) -> Table:
    """Returns the table of a transpose's sharding strategies: its result is cut where its operand is."""
    assert isinstance(site.operator.attributes, Dims)
    dims = site.operator.attributes.dims
    return _carried(site, 0, [transpose_spec(spec, dims) for spec in site.tables[0].outputs])


def same_size_table(site: Site) -> Table:
    """Returns the table of a slice's, pad's or concatenation's sharding strategies, by those of its leading operand.

    Dimensions that keep their size keep their cut; there is no strategy in which others are cut.
    """
    leader = site.leader[0]
    old, new = site.operands[leader].shape, site.operator.shape
    return _carried(site, leader, [same_size_spec(spec, old, new) for spec in site.tables[leader].outputs])


def window_table(site: Site) -> Table:
    """Returns the table of sharding strategies of pooling or its gradient, by those of its leading operand.

    Only dimensions along which the window has width 1 are cut.
    """
    leader = site.leader[0]
    assert isinstance(site.operator.attributes, Dims)
    window = site.operator.attributes.dims
    return _carried(site, leader, [window_spec(spec, window) for spec in site.tables[leader].outputs])


def reshape_table(site: Site) -> Table:
    """Returns the table of a reshape's sharding strategies: it is cut like its operand, or chooses its cut freely.

    It chooses freely if several operators read its result, it stands between a batched product and a transpose, or no
    cut of its operand can be kept; but on a mesh of two axes without mixed mesh shapes only for the last reason.
    """
    old, new = site.operands[0].shape, site.operator.shape
    follows = (site.users == 1 and not site.batch_switch) or (
        site.is_grid and not site.options.allow_mixed_mesh_shape
    )
    if follows:
        specs = [reshape_spec(spec, old, new, site.mesh_shape) for spec in site.tables[0].outputs]
        if any(spec is not None for spec in specs):
            return _carried(site, 0, specs)
    return _free_reshape(site)


def _free_reshape(site: Site) -> Table:
    old, new = site.operands[0].shape, site.operator.shape
    candidates = one_dim_specs(site, divisible=False)
    if site.options.allow_mixed_mesh_shape and site.is_grid:
        candidates += line_specs(site, divisible=False)
        first = site.costs.mesh.axes[0]
        if site.batch_dim is not None:
            candidates += [s for s in grid_specs(site, divisible=False) if s[site.batch_dim][:1] == (first,)]
    strategies = []
    for spec in candidates:
        source = reshape_spec(spec, new, old, site.mesh_shape)
        if source is not None:
            strategies.append(Strategy("S", spec, (source,)))
    return make_table(site, unique_outputs([*strategies, whole(site, site.costs.replication_penalty())]))


def identity_table(site: Site) -> Table:
    """Returns the table of a pipeline marker's sharding strategies: its result is cut as its operand is."""
    return _carried(site, 0, list(site.tables[0].outputs))


def output_table(site: Site) -> Table:
    """Returns the table of sharding strategies of a program's output: cut like its operand, but only into equal parts.

    A dimension that can't be cut evenly is whole.
    """
    strategies = []
    for spec in site.tables[0].outputs:
        even: Spec = tuple(
            axes if divides((axes,), (size,), site.mesh_shape) else ()
            for size, axes in zip(site.operator.shape, spec, strict=True)
        )
        strategies.append(Strategy("=", even))
    return make_table(site, strategies, 0, range(len(strategies)))


def _carried(site: Site, leader: int, specs: list[Spec | None]) -> Table:
    """The strategies that carry on those of the leading operand; the other operands are cut like the result."""
    strategies, sources = [], []
    for source, (spec, before) in enumerate(zip(specs, site.tables[leader].outputs, strict=True)):
        if spec is None:
            continue
        inputs = tuple(
            before if position == leader else of_rank(spec, operand.rank)
            for position, operand in enumerate(site.operands)
        )
        strategies.append(Strategy("=", spec, inputs))
        sources.append(source)
    return make_table(site, strategies, leader, sources)


def reduce_table(site: Site) -> Table:
    """Returns the table of a reduction's sharding strategies, one for each strategy of its leading operand.

    Mesh axes that cut a reduced dimension of the operand all-reduce partial results; the other cuts are kept.
    """
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
    """Returns the table of a sort's sharding strategies, one for each strategy of its leading operand.

    The result is cut like that operand; a strategy that cuts the sorted dimension pays for gathering the operand first.
    """
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
    """Returns the table of sharding strategies of an operator's second or later result.

    It is cut like the first result if it has the same shape, or else whole.
    """
    main = site.tables[0].outputs
    same = site.operands[0].shape == site.operator.shape
    specs = [spec if same else replicated(site.operator.rank) for spec in main]
    strategies = [Strategy("=", spec, (before,)) for spec, before in zip(specs, main, strict=True)]
    return make_table(site, strategies, 0, range(len(strategies)))


def index_table(site: Site) -> Table:
    """Returns the table of a gather's or scatter's sharding strategies: whole, or cut along dimensions not indexed.

    The indices are whole on every device.
    """
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
