"""HetPipe's virtual workers: groups of devices, each of which is a pipeline of its own."""

from __future__ import annotations

from alpa_dejavu.problem import Cluster, checks

__all__ = ["ALLOCATIONS", "virtual_workers"]

ALLOCATIONS = ("np", "ed", "hd")


def virtual_workers(cluster: Cluster, allocation: str) -> list[tuple[int, ...]]:
    """Returns HetPipe's virtual workers, which are groups of devices that each run a pipeline of the whole model: for
    each worker the index of the host of each of its devices.

    Args:
        cluster: the cluster whose devices are grouped; a host's devices are alike.
        allocation: "np", node partition: a host is a virtual worker, so its devices are alike and near each other.
            "ed", equal distribution: each has one device of every host, so the virtual workers are alike. "hd", hybrid
            distribution: hosts in pairs, the fastest with the slowest, and two virtual workers of a pair, each with
            half of the devices of both. (The paper pairs its four kinds of GPU by performance and memory; pairs by
            performance are the same there.)

    Raises:
        ValueError: an unknown allocation, or hosts that it can't be made of.

    References:
        Park et al., HetPipe: Enabling Large DNN Training on (Whimpy) Heterogeneous GPU Clusters through Integration of
        Pipelined Model Parallelism and Data Parallelism, ATC 2020, section 8.

    >>> from alpa_dejavu.testing import example_cluster
    >>> virtual_workers(example_cluster(2, 2), "ed")
    [(0, 1), (0, 1)]
    """
    checks.one_of("hetpipe", "allocation", allocation, ALLOCATIONS)
    hosts = cluster.hosts
    numbers = [host.num_devices for host in hosts]
    if allocation == "np":
        return [(n,) * count for n, count in enumerate(numbers)]
    if len(set(numbers)) != 1:
        raise ValueError(
            f"hetpipe: the hosts of {cluster.name} have {numbers} devices; {allocation!r} needs equally many in each: "
            "take 'np', or leave some out"
        )
    if allocation == "ed":
        return [tuple(range(len(hosts)))] * numbers[0]
    if len(hosts) % 2 or numbers[0] % 2:
        raise ValueError(
            f"hetpipe: {cluster.name} has {len(hosts)} hosts of {numbers[0]} devices; 'hd' pairs hosts and halves "
            "their devices, so both must be even: take 'np' or 'ed'"
        )
    fastest = sorted(range(len(hosts)), key=lambda n: -hosts[n].device.rate("float32"))
    half = numbers[0] // 2
    pairs = [(fastest[n], fastest[-1 - n]) for n in range(len(hosts) // 2)]
    return [(fast,) * half + (slow,) * half for fast, slow in pairs for _ in range(2)]
