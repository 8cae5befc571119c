"""The plan that the planner chooses for a case, by its links and its hosts' shares of a core."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from alpa_dejavu.latency import measured_cpu
from alpa_dejavu.model_planner import plan_model
from alpa_dejavu.problem import Cluster, Device, Host, Link, Plan
from hetero._cases import Case

__all__ = ["chosen_plan", "cluster_of"]

_SEND_LATENCY_S, _COLLECTIVE_LATENCY_S = 3e-3, 4e-3
"""Of a tensor through Ray, and of an all-reduce by gloo: as in `clusters/local-cpu.json`."""
_WITHIN = Link(0.0, 3e9)


def cluster_of(case: Case, names: Sequence[str]) -> Cluster:
    """The hosts by these names: a core is measured, and each host has its share of one; links have their rates."""
    core = measured_cpu(1)
    hosts = tuple(Host(name, _part(core, share), 1) for name, share in zip(names, case.shares, strict=True))
    links = tuple(
        tuple(_WITHIN if a == b else _link(rate) for b, rate in enumerate(row))
        for a, row in enumerate(case.bytes_per_s)
    )
    return Cluster(case.name, hosts, links)


def chosen_plan(case: Case, cluster: Cluster) -> Plan:
    """What the planner chooses with the number of micro-batches and the layers that all plans of the case have."""
    job = case.job
    return plan_model(
        job.model,
        cluster,
        batch=job.batch,
        micro_batches=case.micro_batches,
        layers=job.layers,
        remat=("none",),
        zero=(0,),
    ).plan


def _link(bytes_per_s: float) -> Link:
    return Link(_COLLECTIVE_LATENCY_S, bytes_per_s, _SEND_LATENCY_S, bytes_per_s)


def _part(device: Device, share: float) -> Device:
    """A device that has a share of a core: everything takes so many times longer."""
    return dataclasses.replace(
        device,
        name=f"{share:g} of a core",
        flop_per_s={dtype: share * rate for dtype, rate in device.flop_per_s.items()},
        vector_flop_per_s=share * device.vector_flop_per_s,
        memory_bytes_per_s=share * device.memory_bytes_per_s,
        kernel_s=device.kernel_s / share,
        dispatch_s=device.dispatch_s / share,
        step_s=device.step_s / share,
    )
