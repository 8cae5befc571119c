"""Checks stages that somebody gives: their hosts must be there, and Alpa have their logical meshes and options."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from alpa_dejavu._util.near_names import near
from alpa_dejavu.plans.stage_rows import mesh_text

if TYPE_CHECKING:
    from alpa_dejavu.planning.search.given_stages import GivenStage

__all__ = ["PRICED_OPTIONS", "counts_text", "stage_differences"]

_SWITCHES = (
    "enable_auto_sharding", "allow_all_gather", "allow_all_to_all", "allow_replicated_parameters",
    "force_data_parallel", "force_zero_stage_3", "prefer_reduce_scatter", "allow_mixed_mesh_shape",
    "allow_recompute_heavy_op",
)  # fmt: skip
_AXIS = "force_batch_dim_to_mesh_dim"
_OPTIONS: Mapping[str, tuple[type, str]] = {
    **dict.fromkeys(_SWITCHES, (bool, "true or false")),
    _AXIS: (int, "an axis of the logical mesh"),
    "force_zero_stage_3_all_gather_threshold": (int, "a whole number of bytes"),
    "force_simple_heuristic": (str, "text"),
    "all_reduce_threshold": (int, "a whole number of bytes"),
}
"""The options of Alpa's `AutoShardingOption`, each with its type and the words for it."""
PRICED_OPTIONS = (_AXIS, "force_zero_stage_3", "prefer_reduce_scatter")
"""The options that a stage's costs go by; the last two by its ZeRO level."""


def stage_differences(
    stages: Sequence[GivenStage], devices: Mapping[str, int], cluster: str, counts: Sequence[int], chunks: int = 1
) -> Iterator[str]:
    """Yields a sentence for each host, device, mesh or option of given stages that the cluster or Alpa doesn't have.

    Args:
        stages: the stages, each on hosts that it names, or on any.
        devices: how many devices each host of the cluster has, by its name.
        cluster: the cluster's name.
        counts: how many devices each of its hosts has.
        chunks: how many stages share each submesh.
    """
    for n, stage in enumerate(stages):
        hosts, shape = stage.hosts, stage.submesh
        if hosts is not None:
            for host in hosts:
                if host not in devices:
                    yield f"stage {n} is on host {host!r}, but {cluster} has {', '.join(map(repr, devices))}"
            if min((devices.get(host, shape.devices_per_host) for host in hosts), default=0) < shape.devices_per_host:
                there = counts_text(counts) + ("" if "[" in counts_text(counts) else " devices")
                yield (
                    f"stage {n} is on {shape.num_hosts} hosts with {shape.devices_per_host} devices each, but "
                    f"{cluster} has {there}"
                )
                return
            if len(set(hosts)) != shape.num_hosts or len(hosts) != shape.num_hosts:
                yield f"stage {n} is on {shape.num_hosts} hosts, but names {list(hosts)}"
        if math.prod(stage.config.shape) != shape.num_devices:
            mesh = mesh_text(stage.config.shape)
            yield f"stage {n} has the logical mesh {mesh}, but its submesh has {shape.num_devices} devices"
        yield from _option_differences(n, stage)
    for host, count in _taken(stages[: len(stages) // chunks]).items():
        if count > devices.get(host, count):
            yield f"its stages take {count} devices of host {host!r}, which has {devices[host]}"


def counts_text(counts: Sequence[int]) -> str:
    """Returns in words how many hosts there are, and how many devices each has.

    >>> counts_text([4, 4]), counts_text([4, 2])
    ('2 hosts of 4', 'hosts of [4, 2] devices')
    """
    return f"hosts of {list(counts)} devices" if len(set(counts)) > 1 else f"{len(counts)} hosts of {counts[0]}"


def _option_differences(n: int, stage: GivenStage) -> Iterator[str]:
    """Yields sentences that say which auto-sharding options of a stage Alpa hasn't, or not with such a value."""
    axes = len(stage.config.shape)
    for name, value in stage.config.options.items():
        if name not in _OPTIONS:
            yield f"stage {n} has the auto-sharding option {name!r}, which Alpa hasn't{near(name, _OPTIONS)}"
            continue
        kind, asked = _OPTIONS[name]
        if (name == _AXIS and _is_axis(value, axes)) or (name != _AXIS and type(value) is kind):
            continue
        yield f"stage {n} has the auto-sharding option {name}={value!r}, but it must be {asked}"


def _is_axis(value: Any, axes: int) -> bool:
    """Returns whether a value is one of the axes, or one of Alpa's words for none."""
    return value is None or (type(value) is int and -1 <= value < axes)


def _taken(stages: Sequence[GivenStage]) -> collections.Counter[str]:
    """Returns how many devices of each host the stages are on."""
    taken: collections.Counter[str] = collections.Counter()
    for stage in stages:
        taken.update(dict.fromkeys(stage.hosts or (), stage.submesh.devices_per_host))
    return taken
