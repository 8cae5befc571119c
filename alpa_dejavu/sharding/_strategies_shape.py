"""Strategies of all operators but products: what brings tensors into being, element-wise operators, and those that
move, resize, reduce or sort dimensions, or look along them by indices.

Each cut of the leading operand, which lies deepest in the program, is carried on where it can be.
"""

from __future__ import annotations

from collections.abc import Callable

from alpa_dejavu.sharding._batch import carried_dims
from alpa_dejavu.sharding._operator import Dims, IndexDims
from alpa_dejavu.sharding._planning import (
    ShardingStrategy,
    Site,
    StrategyTable,
    grid_specs,
    keep_batch_cut,
    line_specs,
    make_table,
    one_dim_specs,
    unique_outputs,
    whole,
    whole_table,
)
from alpa_dejavu.sharding._spec import (
    Spec,
    carried_spec,
    divides,
    num_tiles,
    of_rank,
    replicated,
    reshape_spec,
)

PARTIAL_CUT = 0.8
"""The share of the replication penalty that a parameter pays if it uses only one of two axes."""
WHOLE_IOTA = 5.0
"""An iota kept whole drags what reads it along, so its penalty is that much higher."""


def parameter_table(site: Site) -> StrategyTable:
    """Returns the table of a parameter or random tensor: cut along one dimension, or whole at a penalty.

    On a mesh of two axes one that has a batch dimension may be cut along two dimensions.
    """
    penalty = site.costs.replication_penalty()
    partial = penalty * PARTIAL_CUT if site.is_grid else 0.0
    strategies = [ShardingStrategy("S", spec, computation=partial) for spec in one_dim_specs(site, divisible=True)]
    if site.is_grid:
        if site.batch_dim is not None:
            strategies += [ShardingStrategy("SS", spec) for spec in grid_specs(site, divisible=True)]
        if site.options.allow_mixed_mesh_shape:
            strategies += [ShardingStrategy("S 1d", spec) for spec in line_specs(site, divisible=True)]
    if site.options.allow_replicated_parameters or not strategies:
        strategies.append(whole(site, penalty))
    inputs = tuple(replicated(operand.rank) for operand in site.operands)
    strategies = [
        ShardingStrategy(s.name, s.output, inputs, computation=s.computation) for s in unique_outputs(strategies)
    ]
    return make_table(site, keep_batch_cut(site, strategies))


def iota_table(site: Site) -> StrategyTable:
    """Returns the table of an iota: cut along any dimensions, which costs nothing.

    It may also be whole, at a penalty, if it has no batch dimension or is soon broadcast, or if it can't be cut.
    """
    strategies = [ShardingStrategy("SS", spec) for spec in grid_specs(site, divisible=True)]
    if site.options.allow_mixed_mesh_shape:
        strategies += [ShardingStrategy("S 1d", spec) for spec in line_specs(site, divisible=True)]
    if not strategies or site.around.feeds_broadcast or site.batch_dim is None:
        strategies.append(whole(site, site.costs.replication_penalty() * WHOLE_IOTA))
    return make_table(site, unique_outputs(strategies))


def elementwise_table(site: Site) -> StrategyTable:
    """Returns the table of an element-wise operator: it is cut like its leading operand.

    It chooses among the cuts of all operands if all are broadcasts, or if it is a comparison, an "and", or has three
    operands, of which several would do as the leading one: these meet an iota and a tensor of data, neither of which
    may decide for the other.
    """
    leader, tie = site.leader
    masks = site.operator.name in ("compare", "and") or len(site.operands) == 3
    if (tie and masks) or (site.operands and all(operand.kind == "broadcast" for operand in site.operands)):
        pairs = zip(site.operands, site.tables, strict=True)
        rank = site.operator.rank
        specs = [spec for operand, table in pairs if operand.rank == rank for spec in table.outputs]
        return make_table(site, unique_outputs([ShardingStrategy("=", spec) for spec in specs]))
    return _for_each(site, leader, [ShardingStrategy("=", spec) for spec in site.tables[leader].outputs])


def _for_each(site: Site, leader: int, strategies: list[ShardingStrategy]) -> StrategyTable:
    """Returns the table of an operator with one strategy for each of its leading operand."""
    return make_table(site, strategies, leader, range(len(strategies)))


def _carried(site: Site, leader: int, specs: list[Spec | None]) -> StrategyTable:
    """Returns the table that carries on the leading operand's cuts, but for None; others are cut like the result."""
    strategies, sources = [], []
    for source, (spec, before) in enumerate(zip(specs, site.tables[leader].outputs, strict=True)):
        if spec is not None:
            ranks = enumerate(operand.rank for operand in site.operands)
            inputs = tuple(before if position == leader else of_rank(spec, rank) for position, rank in ranks)
            strategies.append(ShardingStrategy("=", spec, inputs))
            sources.append(source)
    return make_table(site, strategies, leader, sources)


def carried_table(site: Site) -> StrategyTable:
    """Returns the table of a transpose, broadcast, window, slice, pad, concatenation or marker, by those of its leading
    operand.

    Dimensions along which the size changes, or a window is wider than 1, aren't cut.
    """
    leader = site.leader[0]
    pairs, rank = carried_dims(site.operator, site.operands[leader]), site.operator.rank
    return _carried(site, leader, [carried_spec(spec, pairs, rank) for spec in site.tables[leader].outputs])


def broadcast_table(site: Site) -> StrategyTable:
    """Returns the table of a broadcast: its result is cut where its operand is.

    The broadcast of a scalar that isn't a constant, or of one that becomes an output, is cut along any one dimension.
    """
    operand = site.operands[0]
    if operand.rank == 0 and (site.around.feeds_output or operand.kind != "constant"):
        strategies = [ShardingStrategy("S", spec, ((),)) for spec in one_dim_specs(site, divisible=True)]
        return make_table(site, unique_outputs([*strategies, whole(site, site.costs.replication_penalty())]))
    return carried_table(site)


def reshape_table(site: Site) -> StrategyTable:
    """Returns the table of a reshape: it is cut like its operand, or chooses its cut freely.

    It chooses freely if several operators read its result, it stands between a batched product and a transpose, or no
    cut of its operand can be kept; but on a mesh of two axes without mixed mesh shapes only for the last reason.
    """
    old, new, around = site.operands[0].shape, site.operator.shape, site.around
    mixed = site.options.allow_mixed_mesh_shape
    if (around.users == 1 and not around.batch_switch) or (site.is_grid and not mixed):
        specs = [reshape_spec(spec, old, new, site.mesh_shape) for spec in site.tables[0].outputs]
        if any(spec is not None for spec in specs):
            return _carried(site, 0, specs)
    candidates = one_dim_specs(site, divisible=False)
    if mixed and site.is_grid:
        candidates += line_specs(site, divisible=False)
        first = site.costs.mesh.axes[0]
        if site.batch_dim is not None:
            candidates += [s for s in grid_specs(site, divisible=False) if s[site.batch_dim][:1] == (first,)]
    pairs = [(spec, reshape_spec(spec, new, old, site.mesh_shape)) for spec in candidates]
    strategies = [ShardingStrategy("S", spec, (source,)) for spec, source in pairs if source is not None]
    return make_table(site, unique_outputs([*strategies, whole(site, site.costs.replication_penalty())]))


def output_table(site: Site) -> StrategyTable:
    """Returns the table of a program's output: cut like its operand, but whole where that can't be cut evenly."""
    strategies = []
    for spec in site.tables[0].outputs:
        pairs = zip(site.operator.shape, spec, strict=True)
        even = tuple(axes if divides((axes,), (size,), site.mesh_shape) else () for size, axes in pairs)
        strategies.append(ShardingStrategy("=", even))
    return _for_each(site, 0, strategies)


def reduce_table(site: Site) -> StrategyTable:
    """Returns the table of a reduction.

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
        communication = site.costs.all_reduce(operator.num_bytes / num_tiles(spec, site.mesh_shape), axes)
        name = f"allreduce @ {list(axes)}" if axes else "="
        strategies.append(ShardingStrategy(name, spec, inputs, axes, communication=communication))
    return _for_each(site, leader, strategies)


def sort_table(site: Site) -> StrategyTable:
    """Returns the table of a sort, which pays for gathering its leading operand where that is cut along the sort."""
    operator, leader = site.operator, site.leader[0]
    assert isinstance(operator.attributes, Dims)
    strategies = []
    for spec in site.tables[leader].outputs:
        along = any(spec[dim] for dim in operator.attributes.dims)
        gathered = replicated(operator.rank)
        cost = site.costs.reshard(float(operator.num_bytes), spec, gathered) if along else 0.0
        inputs = tuple(spec if position == leader or not along else gathered for position in range(len(site.operands)))
        strategies.append(ShardingStrategy("=", spec, inputs, communication=cost))
    return _for_each(site, leader, strategies)


def sibling_table(site: Site) -> StrategyTable:
    """Returns the table of a further result of an operator: cut like the first one if shaped alike, or else whole."""
    same, nothing = site.operands[0].shape == site.operator.shape, replicated(site.operator.rank)
    main = site.tables[0].outputs
    return _for_each(site, 0, [ShardingStrategy("=", before if same else nothing, (before,)) for before in main])


def index_table(site: Site) -> StrategyTable:
    """Returns the table of a gather or scatter: whole, or cut along dimensions that aren't indexed."""
    dims = site.operator.attributes
    assert isinstance(dims, IndexDims)
    strategies = []
    for number, (operand_dim, result_dim) in enumerate(zip(dims.operand, dims.result, strict=True)):
        for axis in site.costs.mesh.axes:
            result, source = site.tile((result_dim, axis)), site.tile((operand_dim, axis), of=0)
            updates = [site.tile((dims.updates[number], axis), of=2)] if site.operator.kind == "scatter" else []
            if result is not None and source is not None and None not in updates:
                inputs = (source, replicated(site.operands[1].rank), *filter(None, updates))
                strategies.append(ShardingStrategy(f"S{result_dim} @ {axis}", result, inputs))
    return make_table(site, [*strategies, whole(site)])


RULES: dict[str, Callable[[Site], StrategyTable]] = {
    "parameter": parameter_table, "random": parameter_table, "constant": whole_table, "iota": iota_table,
    "elementwise": elementwise_table, "broadcast": broadcast_table, "reshape": reshape_table,
    "transpose": carried_table, "same_size": carried_table, "window": carried_table, "identity": carried_table,
    "reduce": reduce_table, "sort": sort_table, "gather": index_table, "scatter": index_table,
    "sibling": sibling_table, "opaque": whole_table, "output": output_table,
}  # fmt: skip
"""The table of an operator by its kind."""
