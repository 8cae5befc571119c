"""Whether the devices of a cluster can compute what a model is made of."""

from __future__ import annotations

from collections.abc import Iterator

from alpa_dejavu.clusters.gpus import gpu_of
from alpa_dejavu.costs.kernels import check_fused
from alpa_dejavu.problem import Cluster, Model, Operator

__all__ = ["check_computable"]

_EIGHT_BITS = "float8"


def check_computable(model: Model, cluster: Cluster) -> None:
    """Checks that a cluster's devices have products of 8 bits where a model's are, and that libraries have kernels of
    its fused attention for them.

    Raises:
        ValueError: a device can't compute the model.
    """
    devices = {host.device.name: host.device for host in cluster.hosts}.values()
    narrow, heads = _needs(model)
    for device in devices:
        gpu = gpu_of(device.name)
        rates = device.flop_per_s if gpu is None else {**gpu.flop_per_s, **device.flop_per_s}
        if narrow and _EIGHT_BITS not in rates:
            raise ValueError(
                f"the model's products are in {_EIGHT_BITS}, but {device.name} computes none of 8 bits (it has "
                f"{', '.join(rates)}); give another precision, or GPUs of the Ada or Hopper generation or "
                "a later one"
            )
        if gpu is not None and heads:
            check_fused(gpu, heads)


def _needs(model: Model) -> tuple[bool, float]:
    """Whether a model has products of 8 bits, and the elements of a head of its fused attention; 0: it has none."""
    forward = {id(layer.forward): layer.forward for layer in model.layers}
    narrow = any(_narrow(record) for each in forward.values() for record in each.records)
    heads = (head for each in forward.values() for record in each.records for head in _heads(record))
    return narrow, max(heads, default=0.0)


def _narrow(record: Operator) -> bool:
    return record.dtype.startswith(_EIGHT_BITS) and record.kind in ("dot", "grouped")


def _heads(record: Operator) -> Iterator[float]:
    if record.kind == "attention":
        yield float(record.input_shapes[0][-1])
