"""A plan that is written out, for tests of what reads, prints and runs plans."""

import dataclasses

import pytest

from alpa_dejavu.problem import ClusterSummary, HostSummary, Plan, PricedBy, StagePlan, Submesh


def stage(layers, submesh=(1, 2), logical=(2, 1), **figures):
    return StagePlan(
        layers=layers,
        submesh=Submesh(*submesh),
        logical_mesh=logical,
        hosts=figures.pop("hosts", tuple(f"p3.16xlarge-{n}" for n in range(submesh[0]))),
        **{
            "compute_s": 0.02,
            "collective_s": 0.005,
            "boundary_s": 0.001,
            "per_step_s": 0.01,
            "memory_bytes": 8e9,
            "memory_limit_bytes": 16e9,
            "options": {"force_batch_dim_to_mesh_dim": 0},
            "forward_s": 0.009,
            "backward_s": 0.016,
            "forward_collective_s": 0.002,
            "forward_boundary_s": 0.0005,
            "synchronisation_s": 0.004,
            "activation_bytes": 1e9,
            "resident_bytes": 5e9,
            "temporary_bytes": 1e9,
            **figures,
        },
    )


def example_plan(**changes):
    fields = {
        "stages": (stage((0, 2)), stage((3, 3), logical=(1, 2), zero=2)),
        "step_s": 0.25,
        "lower_bound_s": 0.2,
        "num_micro_batches": 4,
        "schedule": "1f1b",
        "cluster": "1 x p3.16xlarge",
        "planning_s": {"trace": 1.0, "slicing": 0.5},
        "model": "gpt-125m",
        "batch": 32,
    }
    return Plan(**(fields | changes))


def without_draws(plan):
    """The plan's stages without what was drawn of their seconds: that depends on the plans it was compared with."""
    return [dataclasses.replace(stage, drawn=None) for stage in plan.stages]


def hardware(hosts=1, devices=8, machine="p3.16xlarge", **changes):
    """The summary of so many equal hosts of a machine type."""
    names = [f"{machine}-{n}" for n in range(hosts)]
    summaries = tuple(HostSummary(name, devices, "V100", 14.4 * 2**30) for name in names)
    return ClusterSummary(**({"hosts": summaries, "machine": machine} | changes))


def whole_plan(**changes):
    """A plan that holds all that it may say of its cluster and of how it was chosen."""
    priced_by = PricedBy(
        "analytic", "links", "", 0.01, 0.05, "power_of_two", ("none", "layer"), (0, 2), 16, "auto", "dynamic", "time",
        "dejavu",
    )  # fmt: skip
    return example_plan(**({"hardware": hardware(2, 4), "priced_by": priced_by} | changes))


def priced_alike(one, other):
    """Asserts that two plans are the same: stages, meshes, hosts and options, seconds and bytes to 1e-9 relative."""
    assert one.step_s == pytest.approx(other.step_s, rel=1e-9), (one.stages, other.stages)
    assert len(one.stages) == len(other.stages)
    for a, b in zip(one.stages, other.stages, strict=True):
        for name in ("layers", "submesh", "logical_mesh", "hosts", "options", "remat", "zero"):
            assert getattr(a, name) == getattr(b, name), name
        for name in (field.name for field in dataclasses.fields(a)):
            value = getattr(a, name)
            if isinstance(value, float):
                assert value == pytest.approx(getattr(b, name), rel=1e-9, abs=1e-15), name
