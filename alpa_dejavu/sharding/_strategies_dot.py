"""Strategies of matrix products and convolutions: which of their dimensions each mesh axis cuts.

Names read like Alpa's: `SR = SS x SR @ {0,1} (allreduce @ 1)` cuts the free dimension of the left operand by axis 0
and the contracted dimension of both by axis 1, whose devices then add up partial sums.
In the gradient of a convolution's kernel the roles change places: the examples are the input channels, which are summed
over.

References:
    Table 3 of the Alpa paper (OSDI 2022).
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from alpa_dejavu.sharding._operator import ConvolutionDims, DotDims, Operator, free_dims
from alpa_dejavu.sharding._planning import Site, keep_batch_cut, make_table, whole
from alpa_dejavu.sharding._spec import divides, num_tiles
from alpa_dejavu.sharding._table import Strategy, Table

Cuts = tuple[tuple[str, tuple[int, ...]], ...]
"""The axes that cut each role: "batch", "in" (summed over), "out", or "group" (channels that never meet)."""
Cut = tuple[str, int, tuple[int, ...]]
"""A role ("batch", "lhs", "rhs", "contract"), which of the role's dimensions, and the axes that cut it."""


@dataclasses.dataclass(frozen=True)
class _Places:
    """The places of the dimensions of each role: in the left operand, the right operand and the result."""

    lhs: dict[str, tuple[int | None, ...]]
    rhs: dict[str, tuple[int | None, ...]]
    out: dict[str, tuple[int | None, ...]]


def dot_table(site: Site) -> Table:
    """Returns the table of a matrix product's sharding strategies: Alpa's ways of cutting its dimensions by mesh axes.

    If the options force the batch dimension onto a mesh axis, only ways that cut it so are kept, if there are any.
    """
    places = _places(site.operator, site.operands)
    found = []
    for cuts in _ways(site, len(places.out["batch"])):
        strategy = _strategy(site, places, cuts)
        if strategy is not None:
            found.append(strategy)
    summed = [_strategy(site, places, (("contract", 0, (axis,)),)) for axis in site.costs.mesh.axes]
    return make_table(site, _with_even_ones(site, keep_batch_cut(site, list(dict.fromkeys(found))), summed))


def _with_even_ones(site: Site, found: list[Strategy], summed: Sequence[Strategy | None]) -> list[Strategy]:
    """Returns strategies with further ones, if each of them cuts the result unevenly, which can't be a program's output
    then: 32 columns on 7 devices, say. It is whole in the further ones, which cut only what is summed over, or nothing.
    """
    if not found or any(divides(one.output, site.operator.shape, site.mesh_shape) for one in found):
        return found
    both = float(sum(operand.num_bytes for operand in site.operands[:2]))
    everywhere = whole(site, site.costs.all_reduce(both, site.costs.mesh.axes))
    return [*found, *(one for one in summed if one is not None), everywhere]


def _places(operator: Operator, operands: tuple[Operator, ...]) -> _Places:
    dims = operator.attributes
    assert isinstance(dims, DotDims)
    lhs_free = free_dims(operands[0].rank, dims.lhs_batch, dims.lhs_contract)
    rhs_free = free_dims(operands[1].rank, dims.rhs_batch, dims.rhs_contract)
    n_batch, n_lhs = len(dims.lhs_batch), len(lhs_free)

    def first_large(positions: tuple[int, ...], shape: tuple[int, ...]) -> int | None:
        """Returns the index of the first dimension of a group that is longer than 1; 0 if none is, None if it is empty.

        Where the group is reshaped into one dimension and that is cut, this dimension is what is cut.
        """
        return next((i for i, dim in enumerate(positions) if shape[dim] > 1), 0 if positions else None)

    pick_lhs = first_large(lhs_free, operands[0].shape)
    pick_rhs = first_large(rhs_free, operands[1].shape)
    pick_contract = first_large(dims.lhs_contract, operands[0].shape)

    def one(values: tuple[int, ...], pick: int | None, offset: int | None = None) -> tuple[int | None, ...]:
        if pick is None:
            return (None,)
        return (values[pick] if offset is None else offset + pick,)

    return _Places(
        lhs={"batch": dims.lhs_batch, "lhs": one(lhs_free, pick_lhs),
             "contract": one(dims.lhs_contract, pick_contract)},
        rhs={"batch": dims.rhs_batch, "rhs": one(rhs_free, pick_rhs),
             "contract": one(dims.rhs_contract, pick_contract)},
        out={"batch": tuple(range(n_batch)), "lhs": one(lhs_free, pick_lhs, n_batch),
             "rhs": one(rhs_free, pick_rhs, n_batch + n_lhs)},
    )


def _ways(site: Site, n_batch: int) -> Iterator[tuple[Cut, ...]]:
    """The cuts to try, in Alpa's order: of equally cheap solutions the solver keeps the first."""
    axes = site.costs.mesh.axes
    if not site.is_grid:
        for axis in axes:
            yield (("lhs", 0, (axis,)),)
            yield (("rhs", 0, (axis,)),)
            yield (("contract", 0, (axis,)),)
            yield from ((("batch", i, (axis,)),) for i in range(n_batch))
        return
    orders = ((axes[0], axes[1]), (axes[1], axes[0]))
    split_batch = n_batch and site.options.batch_matmul_always_split_batch
    both_batch = n_batch == 2 and site.options.batch_matmul_always_split_batch and _large_batches(site, axes)
    if not split_batch:
        yield from _plain_grid_ways(site, orders)
    if n_batch and not both_batch:
        for other in ("lhs", "rhs", "contract"):
            for a, b in orders:
                yield (("batch", 0, (a,)), (other, 0, (b,)))
    for first, second in itertools.combinations(range(n_batch), 2):
        for a, b in orders:
            yield (("batch", first, (a,)), ("batch", second, (b,)))
    if site.options.allow_mixed_mesh_shape:
        yield from ((("batch", i, axes),) for i in range(n_batch))


def _plain_grid_ways(site: Site, orders: tuple[tuple[int, int], ...]) -> Iterator[tuple[Cut, ...]]:
    for first, second in (("lhs", "rhs"), ("lhs", "contract"), ("contract", "rhs")):
        for a, b in orders:
            yield ((first, 0, (a,)), (second, 0, (b,)))
    if site.options.allow_recompute_heavy_op:
        for a, _ in orders:
            yield (("contract", 0, (a,)),)
    if site.options.allow_mixed_mesh_shape:
        axes = site.costs.mesh.axes
        yield (("lhs", 0, axes),)
        yield (("contract", 0, axes),)


def _large_batches(site: Site, axes: tuple[int, ...]) -> bool:
    """Whether both batch dimensions can be cut by both axes, so that cutting them is enough."""
    return min(site.operator.shape[:2]) >= max(site.mesh_shape[axis] for axis in axes)


def _strategy(site: Site, places: _Places, cuts: tuple[Cut, ...]) -> Strategy | None:
    specs = [
        site.tile(*_pairs(where, cuts), of=operand)
        for where, operand in ((places.out, None), (places.lhs, 0), (places.rhs, 1))
    ]
    output, lhs, rhs = specs
    if output is None or lhs is None or rhs is None:
        return None
    summed = tuple(axis for role, _, axes in cuts if role == "contract" for axis in axes)
    used = [axis for _, _, axes in cuts for axis in axes]
    if len(used) > len(cuts) and any(  # over all devices only where it comes out even
        shape[dim] % site.costs.mesh.num_devices
        for shape, where in ((site.operator.shape, places.out), (site.operands[0].shape, places.lhs))
        for dim, _ in _pairs(where, cuts) if dim is not None
    ):
        return None
    on_device = site.operator.num_bytes / num_tiles(output, site.mesh_shape)
    recomputed = 0.0
    if set(used) != set(site.costs.mesh.axes):
        both = float(site.operands[0].num_bytes + site.operands[1].num_bytes)
        recomputed = site.costs.all_reduce(both, site.costs.mesh.axes)
    name = " ".join(f"{role}{index}@{list(axes)}" for role, index, axes in cuts)
    return Strategy(
        name, output, (lhs, rhs), summed, computation=recomputed,
        communication=site.costs.all_reduce(on_device, summed),
    )


def _pairs(where: dict[str, tuple[int | None, ...]], cuts: tuple[Cut, ...]) -> list[tuple[int | None, int]]:
    return [(where[role][index], axis) for role, index, axes in cuts if role in where for axis in axes]



def convolution_table(site: Site) -> Table:
    """Returns the table of a convolution's sharding strategies: Alpa's ways of cutting batch and channels by mesh axes.

    If the options force the batch dimension onto a mesh axis, only ways that cut it so are kept, if there are any.
    """
    found = [s for cuts in _convolution_ways(site) if (s := _convolution_strategy(site, cuts)) is not None]
    summed = [_convolution_strategy(site, (("in", (axis,)),)) for axis in site.costs.mesh.axes]
    return make_table(site, _with_even_ones(site, keep_batch_cut(site, list(dict.fromkeys(found))), summed))


def _convolution_ways(site: Site) -> list[Cuts]:
    dims = site.operator.attributes
    assert isinstance(dims, ConvolutionDims)
    grouped = (dims.feature_groups, dims.batch_groups) != (1, 1)
    channels = ["group"] if _is_depthwise(site, dims) else [] if grouped else ["out"]
    axes = site.costs.mesh.axes
    if not site.is_grid:
        return [((role, (axis,)),) for axis in axes for role in ("batch", *channels, "in")]
    orders = ((axes[0], axes[1]), (axes[1], axes[0]))
    pairs = [("batch", channel) for channel in channels] + [("batch", "in")] + [("in", channel) for channel in channels]
    ways: list[Cuts] = [((first, (a,)), (second, (b,))) for first, second in pairs for a, b in orders]
    if site.options.allow_mixed_mesh_shape:
        ways += [(("batch", axes),), (("in", axes),)]
    return ways


def _is_depthwise(site: Site, dims: ConvolutionDims) -> bool:
    lhs, rhs = site.operands
    out_features = rhs.shape[dims.rhs_out_feature]
    forward = dims.feature_groups > 1 and dims.feature_groups == lhs.shape[dims.lhs_feature] == out_features
    backward = dims.batch_groups > 1 and dims.batch_groups == lhs.shape[dims.lhs_batch] == out_features
    return forward or backward


def _convolution_strategy(site: Site, cuts: Cuts) -> Strategy | None:
    dims = site.operator.attributes
    assert isinstance(dims, ConvolutionDims)
    group_of_lhs = dims.lhs_feature if dims.feature_groups > 1 else dims.lhs_batch
    lhs_dims = {"batch": dims.lhs_batch, "in": dims.lhs_feature, "group": group_of_lhs}
    rhs_dims = {"in": dims.rhs_in_feature, "out": dims.rhs_out_feature, "group": dims.rhs_out_feature}
    out_dims = {"batch": dims.out_batch, "out": dims.out_feature, "group": dims.out_feature}
    places = ((out_dims, None, site.operator), (lhs_dims, 0, site.operands[0]), (rhs_dims, 1, site.operands[1]))
    specs = []
    for where, operand, tensor in places:
        pairs = [(where[role], axis) for role, axes in cuts if role in where for axis in axes]
        spec = site.tile(*pairs, of=operand)
        on_line = len(cuts) == 1 and len(cuts[0][1]) > 1
        if spec is None or (on_line and any(tensor.shape[d] % site.costs.mesh.num_devices for d, _ in pairs)):
            return None
        specs.append(spec)
    summed = tuple(axis for role, axes in cuts if role == "in" for axis in axes)
    on_device = site.operator.num_bytes / num_tiles(specs[0], site.mesh_shape)
    name = " ".join(f"{role}@{list(axes)}" for role, axes in cuts)
    return Strategy(
        name, specs[0], (specs[1], specs[2]), summed, communication=site.costs.all_reduce(on_device, summed)
    )
