"""The plans that the planner and AMP choose for a case, by its links and its hosts' shares of a core."""

from __future__ import annotations

import dataclasses
import os

from alpa_dejavu.calibration import HostLinks
from alpa_dejavu.clusters.cpu_probe import measured_cpu
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.rivals import as_planned, strategy
from alpa_dejavu.problem import Cluster, Device, Host, Link, Model, Plan
from hetero._cases import Case

_BEFORE = Link(4e-3, 0.3e9, 3e-3, 0.3e9)
"""What is known of links before they are measured, as in `clusters/local-cpu.json`."""


def cluster_of(case: Case, links: HostLinks) -> Cluster:
    """The hosts with measured links: a core is measured, too, and each host has its share of one."""
    core = measured_cpu(os.cpu_count() or 1)
    hosts = tuple(Host(name, _part(core, share), 1) for name, share in zip(links.hosts, case.shares, strict=True))
    unknown = tuple((_BEFORE,) * len(hosts) for _ in hosts)
    return links.applied_to(Cluster(case.name, hosts, unknown), "links")


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
        communication="links",
    ).plan


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


def amps_plan(case: Case, model: Model, cluster: Cluster) -> Plan:
    """What AMP chooses, knowing the links and the hosts.

    Args:
        case: whose job it is.
        model: its layers, for a micro-batch of the case.
        cluster: its hosts and links.
    """
    job = case.job
    samples = job.batch // case.micro_batches
    made = strategy("amp").plan(model, cluster, batch=job.batch, samples=samples)
    plan = as_planned(made, model, cluster, samples=samples, name=job.name).plan
    return dataclasses.replace(plan, cluster=case.name)
