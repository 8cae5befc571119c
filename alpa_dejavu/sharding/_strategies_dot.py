"""Strategies of matrix products and convolutions: which of their dimensions each mesh axis cuts.

Names say which role's dimensions are cut by which axes. By the axes that cut what is summed over, devices then add up
partial sums. In the gradient of a convolution's kernel the roles change places: the examples are the input channels,
which are summed over.

References:
    Table 3 of the Alpa paper (OSDI 2022).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

from alpa_dejavu.sharding._operator import ConvolutionDims, DotDims, free_dims
from alpa_dejavu.sharding._planning import ShardingStrategy, Site, StrategyTable, keep_batch_cut, make_table, whole
from alpa_dejavu.sharding._spec import divides, num_tiles

Cut = tuple[str, int, tuple[int, ...]]
"""A role, which of the role's dimensions, and the axes that cut it.

A product's roles are "batch", "lhs", "rhs" and "contract", which is summed over; a convolution's are "batch", "out",
"in", which is summed over, and "group" (channels that never meet).
"""
Places = dict[str, tuple[int | None, ...]]
"""The dimensions of each role."""


def dot_table(site: Site) -> StrategyTable:
    """Returns the table of a matrix product: Alpa's ways of cutting its dimensions by mesh axes.

    If the options force the batch dimension onto a mesh axis, only ways that cut it so are kept, if there are any.
    """
    places = _dot_places(site)
    return _product_table(site, places, _dot_ways(site, len(places[0]["batch"])), "contract")


def convolution_table(site: Site) -> StrategyTable:
    """Returns the table of a convolution, likewise: Alpa's ways of cutting batch and channels."""
    dims = site.operator.attributes
    assert isinstance(dims, ConvolutionDims)
    group_of_lhs = dims.lhs_feature if dims.feature_groups > 1 else dims.lhs_batch
    out = {"batch": dims.out_batch, "out": dims.out_feature, "group": dims.out_feature}
    lhs = {"batch": dims.lhs_batch, "in": dims.lhs_feature, "group": group_of_lhs}
    rhs = {"in": dims.rhs_in_feature, "out": dims.rhs_out_feature, "group": dims.rhs_out_feature}
    places: list[Places] = [{role: (dim,) for role, dim in where.items()} for where in (out, lhs, rhs)]
    return _product_table(site, places, _convolution_ways(site, dims), "in")


def _product_table(site: Site, places: Sequence[Places], ways: Iterable[tuple[Cut, ...]], summed: str) -> StrategyTable:
    """Returns the table of the strategies that cut result, left and right operand by the roles' places in each."""
    each_way = (_strategy(site, places, cuts, summed) for cuts in ways)
    strategies = keep_batch_cut(site, list(dict.fromkeys(strategy for strategy in each_way if strategy is not None)))
    if site.options.sequence_parallel and site.batch_dim is not None:
        strategies += [scattered for strategy in strategies for scattered in _scattered(site, strategy)]
    if strategies and not any(
        divides(strategy.output, site.operator.shape, site.mesh_shape) for strategy in strategies
    ):
        # Each cuts the result unevenly, which then can't be a program's output: 32 columns on 7 devices, say. So there
        # are further ones, which cut only what is summed over, or nothing.
        axes = site.costs.mesh.axes
        partial = [_strategy(site, places, ((summed, 0, (axis,)),), summed) for axis in axes]
        both = float(sum(operand.num_bytes for operand in site.operands[:2]))
        strategies += [strategy for strategy in partial if strategy is not None]
        strategies.append(whole(site, site.costs.all_reduce(both, axes)))
    return make_table(site, strategies)


def _scattered(site: Site, strategy: ShardingStrategy) -> Iterator[ShardingStrategy]:
    """Yields the strategy that leaves each device a part of the sums, along the first dimension behind the batch: the
    tokens of a sequence. What is computed of it token by token is then divided like it.
    """
    shape, output = site.operator.shape, strategy.output
    dim = next((dim for dim, size in enumerate(shape) if dim != site.batch_dim and size > 1), None)
    if dim is None or len(strategy.all_reduce) != 1 or output[dim]:
        return
    parts = (*output[:dim], strategy.all_reduce, *output[dim + 1 :])
    if divides(parts, shape, site.mesh_shape):
        num_bytes = site.operator.num_bytes / num_tiles(output, site.mesh_shape)
        cost = site.costs.mesh.reduce_scatter_cost(num_bytes, *strategy.all_reduce)
        yield dataclasses.replace(strategy, name=f"{strategy.name} scattered", output=parts, communication=cost)


def _strategy(site: Site, places: Sequence[Places], cuts: tuple[Cut, ...], summed: str) -> ShardingStrategy | None:
    mesh, is_dot = site.costs.mesh, summed == "contract"
    used = [axis for _, _, axes in cuts for axis in axes]
    specs = []
    for where, operand in zip(places, (None, 0, 1), strict=True):
        shape = (site.operator if operand is None else site.operands[operand]).shape
        pairs = [(where[role][index], axis) for role, index, axes in cuts if role in where for axis in axes]
        spec = site.tile(*pairs, of=operand)
        # Over all devices only where it comes out even.
        on_line = len(used) > len(cuts)
        if spec is None or (on_line and any(shape[dim] % mesh.num_devices for dim, _ in pairs if dim is not None)):
            return None
        specs.append(spec)
    output, lhs, rhs = specs
    all_reduce = tuple(axis for role, _, axes in cuts if role == summed for axis in axes)
    communication = site.costs.all_reduce(site.operator.num_bytes / num_tiles(output, site.mesh_shape), all_reduce)
    recomputed = 0.0
    if is_dot and set(used) != set(mesh.axes):
        recomputed = site.costs.all_reduce(float(site.operands[0].num_bytes + site.operands[1].num_bytes), mesh.axes)
    name = " ".join(f"{role}{index if is_dot else ''}@{list(axes)}" for role, index, axes in cuts)
    return ShardingStrategy(name, output, (lhs, rhs), all_reduce, recomputed, communication)


def _dot_places(site: Site) -> list[Places]:
    """Returns the dimensions of each role in the result, the left and the right operand.

    Of several free or contracted dimensions it is the first that is longer than 1: where they are reshaped into one
    dimension and that is cut, this dimension is what is cut.
    """
    dims, lhs, rhs = site.operator.attributes, site.operands[0], site.operands[1]
    assert isinstance(dims, DotDims)
    lhs_free = free_dims(lhs.rank, dims.lhs_batch, dims.lhs_contract)
    rhs_free = free_dims(rhs.rank, dims.rhs_batch, dims.rhs_contract)
    n_batch, n_lhs = len(dims.lhs_batch), len(lhs_free)

    def first_large(own: Sequence[int], shape: Sequence[int], like: Sequence[int]) -> tuple[int | None]:
        return (like[next((i for i, dim in enumerate(own) if shape[dim] > 1), 0)] if own else None,)

    in_lhs = range(n_batch, n_batch + n_lhs)
    in_rhs = range(n_batch + n_lhs, n_batch + n_lhs + len(rhs_free))
    return [
        {
            "batch": tuple(range(n_batch)),
            "lhs": first_large(lhs_free, lhs.shape, in_lhs),
            "rhs": first_large(rhs_free, rhs.shape, in_rhs),
        },
        {
            "batch": dims.lhs_batch,
            "lhs": first_large(lhs_free, lhs.shape, lhs_free),
            "contract": first_large(dims.lhs_contract, lhs.shape, dims.lhs_contract),
        },
        {
            "batch": dims.rhs_batch,
            "rhs": first_large(rhs_free, rhs.shape, rhs_free),
            "contract": first_large(dims.lhs_contract, lhs.shape, dims.rhs_contract),
        },
    ]


def _dot_ways(site: Site, n_batch: int) -> Iterator[tuple[Cut, ...]]:
    """Yields the cuts to try, in Alpa's order: of equally cheap solutions the solver keeps the first."""
    axes, options = site.costs.mesh.axes, site.options
    if not site.is_grid:
        for axis in axes:
            yield from (((role, 0, (axis,)),) for role in ("lhs", "rhs", "contract"))
            yield from ((("batch", i, (axis,)),) for i in range(n_batch))
        return
    orders = ((axes[0], axes[1]), (axes[1], axes[0]))
    split_batch = n_batch and options.batch_matmul_always_split_batch
    if not split_batch:
        pairs = (("lhs", "rhs"), ("lhs", "contract"), ("contract", "rhs"))
        yield from (((first, 0, (a,)), (second, 0, (b,))) for first, second in pairs for a, b in orders)
        if options.allow_recompute_heavy_op:
            yield from ((("contract", 0, (a,)),) for a, _ in orders)
        if options.allow_mixed_mesh_shape:
            yield from ((("lhs", 0, axes),), (("contract", 0, axes),))
    # Where both batch dimensions can be cut by both axes, cutting them is enough.
    large = n_batch == 2 and min(site.operator.shape[:2]) >= max(site.mesh_shape[axis] for axis in axes)
    if n_batch and not (split_batch and large):
        others = ("lhs", "rhs", "contract")
        yield from ((("batch", 0, (a,)), (other, 0, (b,))) for other in others for a, b in orders)
    batches = itertools.combinations(range(n_batch), 2)
    yield from ((("batch", first, (a,)), ("batch", second, (b,))) for first, second in batches for a, b in orders)
    if options.allow_mixed_mesh_shape:
        yield from ((("batch", i, axes),) for i in range(n_batch))


def _convolution_ways(site: Site, dims: ConvolutionDims) -> list[tuple[Cut, ...]]:
    lhs, features = site.operands[0].shape, site.operands[1].shape[dims.rhs_out_feature]
    depthwise = (dims.feature_groups > 1 and dims.feature_groups == lhs[dims.lhs_feature] == features) or (
        dims.batch_groups > 1 and dims.batch_groups == lhs[dims.lhs_batch] == features
    )
    grouped = (dims.feature_groups, dims.batch_groups) != (1, 1)
    channels = ["group"] if depthwise else [] if grouped else ["out"]
    axes = site.costs.mesh.axes
    if not site.is_grid:
        return [((role, 0, (axis,)),) for axis in axes for role in ("batch", *channels, "in")]
    orders = ((axes[0], axes[1]), (axes[1], axes[0]))
    pairs = [("batch", channel) for channel in channels] + [("batch", "in")] + [("in", channel) for channel in channels]
    ways: list[tuple[Cut, ...]] = [((first, 0, (a,)), (second, 0, (b,))) for first, second in pairs for a, b in orders]
    if site.options.allow_mixed_mesh_shape:
        ways += [(("batch", 0, axes),), (("in", 0, axes),)]
    return ways
