"""Strategies of operators that move, resize, reduce or sort dimensions, or look along them by indices.

Each cut of the operand is carried on where it can be.
"""

from alpa_dejavu.sharding._operator import Dims, IndexDims
from alpa_dejavu.sharding._planning import Site, grid_specs, line_specs, make_table, one_dim_specs, whole
from alpa_dejavu.sharding._propagate import broadcast_spec, reshape_spec, same_size_spec, transpose_spec, window_spec
from alpa_dejavu.sharding._spec import Spec, divides, num_tiles, of_rank, replicated
from alpa_dejavu.sharding._table import Strategy, Table, unique_outputs


def broadcast_table(site: Site) -> Table:
    """Returns the strategy table of a broadcast: cut where the operand is; in any way for a computed scalar."""
    operand = site.operands[0]
    if operand.rank == 0 and (site.feeds_output or operand.kind != "constant"):
        strategies = [Strategy("S", spec, ((),)) for spec in one_dim_specs(site, divisible=False)]
        return make_table(site, unique_outputs([*strategies, whole(site, site.costs.replication_penalty())]))
    assert isinstance(site.operator.attributes, Dims)
    dims = site.operator.attributes.dims
    return _carried(site, 0, [broadcast_spec(spec, site.operator.rank, dims) for spec in site.tables[0].outputs])


def transpose_table(site: Site) -> Table:
    """Returns the strategy table of a transposition: the result is cut where the operand is."""
    assert isinstance(site.operator.attributes, Dims)
    dims = site.operator.attributes.dims
    return _carried(site, 0, [transpose_spec(spec, dims) for spec in site.tables[0].outputs])


def same_size_table(site: Site) -> Table:
    """Returns the strategy table of a slice, pad or concatenation: dimensions that keep their size keep their cut."""
    leader = site.leader[0]
    old, new = site.operands[leader].shape, site.operator.shape
    return _carried(site, leader, [same_size_spec(spec, old, new) for spec in site.tables[leader].outputs])


def window_table(site: Site) -> Table:
    """Returns the strategy table of pooling or its gradient: only dimensions with windows of width 1 are cut."""
    leader = site.leader[0]
    assert isinstance(site.operator.attributes, Dims)
    window = site.operator.attributes.dims
    return _carried(site, leader, [window_spec(spec, window) for spec in site.tables[leader].outputs])


def reshape_table(site: Site) -> Table:
    """Returns the strategy table of a reshape: it follows its operand, or is cut freely if several read the result.

    It is cut freely only where the mesh gives a choice.
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
    """Returns the strategy table of a pipeline marker: its result is cut as its operand is."""
    return _carried(site, 0, list(site.tables[0].outputs))


def output_table(site: Site) -> Table:
    """Returns the strategy table of an output of the program: cut like its operand, but only into equal parts."""
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
    """Returns the strategy table of a reduction: axes that cut a reduced dimension sum up partial results."""
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
    """Returns the strategy table of a sort: it follows an operand, gathered where the sorted dimension is cut."""
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
    """Returns the strategy table of an operator's further result: cut like the first if the shapes are equal."""
    main = site.tables[0].outputs
    same = site.operands[0].shape == site.operator.shape
    specs = [spec if same else replicated(site.operator.rank) for spec in main]
    strategies = [Strategy("=", spec, (before,)) for spec, before in zip(specs, main, strict=True)]
    return make_table(site, strategies, 0, range(len(strategies)))


def index_table(site: Site) -> Table:
    """Returns the strategy table of a gather or scatter: it may be cut along dimensions that are only carried along.

    The indices are whole.
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
