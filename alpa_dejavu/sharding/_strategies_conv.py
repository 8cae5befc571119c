"""Strategies of convolutions: which of the batch, the input and the output channels each mesh axis cuts.

In the gradient of a kernel the roles change places: the examples are the input channels, which are summed over.
"""

from alpa_dejavu.sharding._operator import ConvolutionDims
from alpa_dejavu.sharding._planning import Site, keep_batch_cut, make_table
from alpa_dejavu.sharding._spec import num_tiles
from alpa_dejavu.sharding._table import Strategy, Table

Cuts = tuple[tuple[str, tuple[int, ...]], ...]
"""The axes that cut each role: "batch", "in" (summed over), "out", or "group" (channels that never meet)."""


def convolution_table(site: Site) -> Table:
    """All ways of cutting a convolution that Alpa knows of."""
    found = [s for cuts in _ways(site) if (s := _strategy(site, cuts)) is not None]
    return make_table(site, keep_batch_cut(site, list(dict.fromkeys(found))))


def _ways(site: Site) -> list[Cuts]:
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


def _strategy(site: Site, cuts: Cuts) -> Strategy | None:
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
