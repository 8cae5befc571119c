"""Strategies of operators that bring tensors into being: parameters, constants, random numbers, iota."""

from alpa_dejavu.sharding._planning import (
    Site,
    grid_specs,
    keep_batch_cut,
    line_specs,
    make_table,
    one_dim_specs,
    whole,
)
from alpa_dejavu.sharding._spec import replicated
from alpa_dejavu.sharding._table import Strategy, Table, unique_outputs

PARTIAL_CUT = 0.8
"""The share of the replication penalty that a parameter pays if it uses only one of two axes."""
WHOLE_IOTA = 5.0
"""An iota kept whole drags what reads it along, so its penalty is that much higher."""


def parameter_table(site: Site) -> Table:
    """A parameter (or random tensor) may be cut along one dimension, or two if it has a batch; whole at a penalty."""
    penalty = site.costs.replication_penalty()
    partial = penalty * PARTIAL_CUT if site.is_grid else 0.0
    strategies = [Strategy("S", spec, computation=partial) for spec in one_dim_specs(site, divisible=True)]
    if site.is_grid:
        if site.batch_dim is not None:
            strategies += [Strategy("SS", spec) for spec in grid_specs(site, divisible=True)]
        if site.options.allow_mixed_mesh_shape:
            strategies += [Strategy("S 1d", spec) for spec in line_specs(site, divisible=True)]
    if site.options.allow_replicated_parameters or not strategies:
        strategies.append(whole(site, penalty))
    strategies = [
        Strategy(s.name, s.output, tuple(replicated(o.rank) for o in site.operands), computation=s.computation)
        for s in unique_outputs(strategies)
    ]
    return make_table(site, keep_batch_cut(site, strategies))


def iota_table(site: Site) -> Table:
    """An iota costs nothing to cut; it is kept whole only where it would otherwise be cut wrongly."""
    strategies = [Strategy("SS", spec) for spec in grid_specs(site, divisible=False)]
    if site.options.allow_mixed_mesh_shape:
        strategies += [Strategy("S 1d", spec) for spec in line_specs(site, divisible=False)]
    if not strategies or site.feeds_broadcast or site.batch_dim is None:
        penalty = site.costs.replication_penalty() * WHOLE_IOTA
        strategies.append(whole(site, penalty))
    return make_table(site, unique_outputs(strategies))
